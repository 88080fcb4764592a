"""All public functions, the training engine and a comparison on a device that only pretends."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import nn

from fuzzing.fuzz import Target, load_targets
from probseq.calibration import calibrate
from probseq_apps.cli import main
from probseq_apps.engine import distributed
from probseq_apps.engine.config import TrainConfig
from probseq_apps.engine.fit import fit
from probseq_apps.engine.trainer import LossParts

if os.environ.get("PROBSEQ_DEVICE") != "pretend":
    # torch keeps a device for the rest of a process, and looks for its random numbers.
    pytest.skip("PROBSEQ_DEVICE=pretend runs these", allow_module_level=True)
if not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"):
    pytest.skip("torch has no devices written in Python", allow_module_level=True)

import pretend

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
METHODS = [path.name for path in (ROOT / "packages").iterdir()]


@pytest.fixture(autouse=True)
def _pretended():
    """The device is there inside of its context only."""
    with pretend.device():
        yield


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: x + torch.ones(3), "on the same device"),
        (lambda x: torch.zeros(2, 3).add_(x), "on the same device"),
        (lambda x: torch.stack([x[0, 0], torch.tensor(1.0)]), "on the same device"),
        (lambda x: torch.ones(3)[torch.tensor([0], device=x.device)], "on the same device"),
        (lambda x: nn.Linear(3, 2)(x), "on the same device"),
        (lambda x: torch.randn(2, generator=torch.Generator(), device=x.device), "generator"),
        (lambda x: x.numpy(), "numpy"),
    ],
)
def test_what_cuda_refuses_is_refused(call, message):
    with pytest.raises((RuntimeError, TypeError), match=message):
        call(torch.ones(2, 3, device=pretend.HERE))


def test_what_cuda_computes_is_computed():
    x = torch.ones(2, 3, device=pretend.HERE, requires_grad=True)
    y = (nn.Linear(3, 2).to(pretend.HERE)(x) * torch.tensor(2.0)).square()
    y[torch.tensor([0])].sum().backward()
    assert x.grad is not None
    assert (y.device, x.grad.device) == (pretend.HERE, pretend.HERE)
    assert x.grad[1].tolist() == [0.0, 0.0, 0.0]


# Of the fuzz tables: targets that make a model of their own, on the CPU, or are of numpy.
ON_THE_CPU = ("StackDecoder.step", "predict_regression")


@pytest.mark.filterwarnings("ignore::ohsvgp.LostInformationWarning")  # of models with few inducing
@pytest.mark.parametrize("member", ["shared", *sorted(f"packages/{name}" for name in METHODS)])
def test_public_functions_keep_to_the_device_of_their_arguments(member):
    faults: list[str] = []
    for target in load_targets(ROOT / member):
        if not str(target).startswith(ON_THE_CPU):
            call_there(target, faults)
    assert not faults, "\n".join(faults)


def call_there(target: Target, faults: list[str]) -> None:
    """Call a target with good arguments on the device; note what isn't a refusal."""

    @settings(
        max_examples=2,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.fixed_dictionaries(dict(target.arguments)))
    def call(arguments: dict[str, Any]) -> None:
        torch.manual_seed(0)
        try:
            target.call(**{name: pretend.moved(value) for name, value in arguments.items()})
        except ValueError:  # arguments that don't agree
            return
        except Exception as error:
            faults.append(f"{target}: {error}")

    call()


def test_training_keeps_to_the_device(tmp_path, monkeypatch):
    monkeypatch.setattr(distributed, "resolve_device", lambda _: pretend.HERE)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1), nn.Linear(8, 3))

    def loss(model, batch, step):
        x, labels = batch
        noise = torch.randn(x.shape, generator=step.generator, device=x.device)
        return LossParts(F.cross_entropy(model(x + 0.1 * noise), labels), {})

    def score(model, batches):
        shares = [(model(x).argmax(-1) == labels).double().mean().item() for x, labels in batches]
        return {"accuracy": sum(shares) / len(shares)}

    generator = torch.Generator().manual_seed(0)
    data = torch.randn(40, 6, generator=generator), torch.arange(40) % 3
    settings = {"epochs": 2, "batch_size": 8, "learning_rate": 1e-2, "ema_decay": 0.9}
    config = TrainConfig.from_dict(settings | {"warmup_epochs": 1, "grad_clip": 1.0})
    fit(model, data, config, tmp_path, held_out=data, loss=loss, score=score)
    assert next(model.parameters()).device == pretend.HERE


def test_methods_are_trained_and_measured_on_the_device(tmp_path, monkeypatch):
    monkeypatch.setattr(distributed, "resolve_device", lambda _: pretend.HERE)
    words = """classify --method mle sgpa --depth 1 --dim 8 --heads 2 --hidden-dim 8
        --patch-size 4 --sgpa.num-inducing 4 --num-samples 2 --epochs 1 --train-size 64 --seeds 0
        --workers 1 --quiet --run-dir"""
    assert main([*words.split(), str(tmp_path / "run")]) == 0


def test_data_on_the_cpu_are_brought_to_the_device_of_a_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).eval().to(pretend.HERE)
    x, labels = torch.randn(60, 4, 16), torch.arange(60) % 3
    data = list(zip(x.split(10), labels.numpy().reshape(6, 10), strict=True))
    assert calibrate(model, data)(x).device == pretend.HERE
