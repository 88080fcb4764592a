"""SGPA from a trained kernel transformer: the deep kernel is learned before the uncertainty."""

import math

import torch
from torch import nn

from probseq_apps.experiments.settings import TrainingSettings
from probseq_apps.training.config import TrainConfig

# What SGPA's attention has and kernel attention has not.
SGPA_PARAMETERS = ("inducing_inputs", "inducing_mean", "raw_inducing_factor")


def copy_kernel_weights(source: nn.Module, target: nn.Module) -> None:
    """Copy a kernel transformer into an SGPA transformer; the inducing parameters stay.

    Args:
        source: transformer with symmetric kernel attention.
        target: transformer of the same settings with SGPA.

    Raises:
        ValueError: the models differ by more than SGPA's inducing parameters, or in a shape.
    """
    given, wanted = source.state_dict(), target.state_dict()
    own = {name for name in wanted if name.rpartition(".")[2] in SGPA_PARAMETERS}
    if given.keys() != wanted.keys() - own or not own:
        raise ValueError(
            "a kernel model must have all weights of the SGPA model but its inducing ones: missing "
            f"{sorted(wanted.keys() - own - given.keys())}, "
            f"unknown {sorted(given.keys() - (wanted.keys() - own))}"
        )
    for name, tensor in given.items():
        if tensor.shape != wanted[name].shape:
            raise ValueError(
                f"{name} must have the same shape in both models, got {tuple(tensor.shape)} and "
                f"{tuple(wanted[name].shape)}"
            )
    with torch.no_grad():
        target.load_state_dict({**wanted, **given}, strict=True)


def warm_start_config(settings: TrainingSettings, epochs: int, *, seed: int) -> TrainConfig:
    """First epochs of the kernel method's own training: its schedule, cut off.

    Args:
        settings: how the kernel method is trained in full.
        epochs: where to stop.
        seed: of the run.
    """
    full = settings.train_config(seed=seed)
    warmup = min(full.warmup_epochs, epochs - 1)
    done = (epochs - warmup) / max(1, full.epochs - full.warmup_epochs)
    peak, end = full.learning_rate, full.final_learning_rate
    if full.schedule == "cosine":
        done = 0.5 * (1.0 - math.cos(math.pi * done))
    return TrainConfig.from_dict(
        {
            **full.to_dict(),
            "epochs": epochs,
            "warmup_epochs": warmup,
            "final_learning_rate": peak + done * (end - peak),
            "select": "last",
        }
    )
