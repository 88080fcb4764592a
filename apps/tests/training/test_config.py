import importlib.util
import subprocess
import sys

import pytest

from probseq_apps.training import config as config_module
from probseq_apps.training.config import TrainConfig


@pytest.fixture(scope="module")
def unhooked():
    """The module as users have it: the tests' import hook checks types before our own messages."""
    spec = importlib.util.spec_from_file_location("plain_config", config_module.__file__)
    module = importlib.util.module_from_spec(spec)
    sys.modules["plain_config"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["plain_config"]


BASE = {"epochs": 4, "batch_size": 8, "learning_rate": 1e-3}


def test_the_dictionary_form_gives_the_same_settings_back():
    config = TrainConfig(**BASE, schedule="cosine", grad_clip=2.0, compile=True, seed=7)
    assert TrainConfig.from_dict(config.to_dict()) == config


def test_an_unknown_key_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match="'learning_rat', did you mean 'learning_rate'"):
        TrainConfig.from_dict({**BASE, "learning_rat": 1.0})


def test_missing_keys_are_listed():
    with pytest.raises(ValueError, match="lack batch_size, learning_rate"):
        TrainConfig.from_dict({"epochs": 3})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 0),
        ("epochs", 2.0),
        ("epochs", True),
        ("batch_size", -1),
        ("seed", -1),
        ("learning_rate", 0.0),
        ("learning_rate", float("nan")),
        ("learning_rate", "0.1"),
        ("final_learning_rate", float("inf")),
        ("weight_decay", -0.1),
        ("grad_clip", 0.0),
        ("warmup_epochs", 4),
        ("schedule", "step"),
        ("select", "worst"),
        ("precision", "fp16"),
        ("device", "gpu"),
        ("compile", "False"),
        ("tensorboard", 0),
    ],
)
def test_a_senseless_value_is_refused_by_name(unhooked, name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be"):
        unhooked.TrainConfig.from_dict({**BASE, name: value})


def test_whole_numbers_may_stand_for_floats():
    config = TrainConfig.from_dict({**BASE, "learning_rate": 1, "grad_clip": 2})
    assert config.to_dict()["learning_rate"] == 1.0
    assert isinstance(config.grad_clip, float)


def test_the_settings_are_importable_without_torch():
    code = "import sys, probseq_apps.training.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
