import subprocess
import sys

import pytest

from probseq_apps.engine.config import TrainConfig

BASE = {"epochs": 4, "batch_size": 8, "learning_rate": 1e-3}


def test_the_dictionary_form_gives_the_same_settings_back():
    config = TrainConfig(**BASE, schedule="cosine", grad_clip=2.0, compile=True, seed=7)
    assert TrainConfig.from_dict(config.to_dict()) == config


def test_an_unknown_key_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match="'learning_rat': did you mean 'learning_rate'"):
        TrainConfig.from_dict({**BASE, "learning_rat": 1.0})


def test_a_missing_key_is_named():
    with pytest.raises(ValueError, match="batch_size must be given"):
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
        ("warmup_steps", 1),
        ("ema_decay", 1.0),
        ("ema_decay", 0.0),
        ("schedule", "step"),
        ("select", "worst"),
        ("precision", "fp16"),
        ("device", "gpu"),
        ("compile", "False"),
        ("tensorboard", 0),
    ],
)
def test_a_senseless_value_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be"):
        TrainConfig.from_dict({**BASE, name: value})


def test_the_step_size_may_not_grow_after_the_warm_up():
    values = {**BASE, "final_learning_rate": 2e-3}
    with pytest.raises(
        ValueError, match=r"^final_learning_rate must be at most learning_rate=0.001"
    ):
        TrainConfig.from_dict(values)
    TrainConfig.from_dict({**BASE, "final_learning_rate": BASE["learning_rate"]})
    # The constant schedule knows no final step size.
    TrainConfig.from_dict({**values, "schedule": "constant"})


def test_whole_numbers_may_stand_for_floats():
    config = TrainConfig.from_dict({**BASE, "learning_rate": 1, "grad_clip": 2})
    assert config.to_dict()["learning_rate"] == 1.0
    assert isinstance(config.grad_clip, float)


def test_the_settings_are_importable_without_torch():
    code = "import sys, probseq_apps.engine.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_a_length_in_steps_takes_the_place_of_epochs_and_its_warm_up_counts_steps():
    base = {"batch_size": 8, "learning_rate": 1e-3}
    config = TrainConfig.from_dict({**base, "steps": 100, "warmup_steps": 99})
    assert TrainConfig.from_dict(config.to_dict()) == config
    for name, value in (("steps", 0), ("warmup_steps", 100), ("warmup_epochs", 1), ("epochs", 4)):
        with pytest.raises(ValueError, match=rf"^{name} must be"):
            TrainConfig.from_dict({**config.to_dict(), name: value})
    with pytest.raises(ValueError, match="epochs must be"):
        TrainConfig.from_dict(base)
    with pytest.raises(ValueError, match="epochs must be a whole number of at least 1, got 0"):
        TrainConfig(**base)
