"""GP attention from a trained kernel transformer: the features before the uncertainty."""

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from probseq_apps.engine.config import TrainConfig
from probseq_apps.settings.methods import TrainingSettings

# What the attention of SGPA, and of CGPT and SCGPT, has and kernel attention has not.
SGPA_PARAMETERS = ("inducing_inputs", "inducing_mean", "raw_inducing_factor")
CGPT_PARAMETERS = ("to_latent", "inducing", "key_inducing", "raw_noise")
_OWN = frozenset((*SGPA_PARAMETERS, *CGPT_PARAMETERS))


def copy_kernel_weights(source: nn.Module, target: nn.Module) -> None:
    """Copy a kernel transformer into one with GP attention; the inducing parameters stay.

    SGPA takes symmetric kernel attention as it is. CGPT and SCGPT take asymmetric kernel attention
    with the RBF kernel: projections and lengthscales, and half of the logarithm of the variance
    for each of its two scales.
    """
    wanted = target.state_dict()
    given = source.state_dict()
    if any(name.endswith(".raw_query_scale") for name in wanted):
        given = _correlated(given, wanted)
    own = {name for name in wanted if _OWN.intersection(name.split("."))} - given.keys()
    if given.keys() != wanted.keys() - own or not own:
        raise ValueError(
            "a kernel model must have all weights of the GP model but its inducing ones: missing "
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


def _correlated(given: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Kernel attention's weights under the names of correlated GP attention."""
    result = dict(given)
    for name in given:
        if not name.endswith(".to_qk.weight") or name.replace(".to_qk.", ".to_k.") not in given:
            continue
        prefix = name.removesuffix("to_qk.weight")
        queries, keys, values = (
            result.pop(f"{prefix}{x}.weight") for x in ("to_qk", "to_k", "to_v")
        )
        result[f"{prefix}raw_lengthscale"] = result.pop(f"{prefix}kernel.raw_lengthscale")
        half = 0.5 * result.pop(f"{prefix}kernel.raw_outputscale")
        result |= {f"{prefix}raw_query_scale": half, f"{prefix}raw_key_scale": half}
        stacked = wanted.get(f"{prefix}to_qokv.weight")
        if stacked is None:
            result |= {f"{prefix}to_q.weight": queries, f"{prefix}to_k.weight": keys}
            result[f"{prefix}to_v.weight"] = values
        else:
            latent = stacked.chunk(4)[1]
            result[f"{prefix}to_qokv.weight"] = torch.cat([queries, latent, keys, values])
    return result


def warm_start_config(settings: TrainingSettings, epochs: int, *, seed: int) -> TrainConfig:
    """Return the first epochs of the kernel method's own training: its schedule, cut off."""
    full = settings.train_config(seed=seed)
    warmup = min(full.warmup_epochs, epochs - 1)
    done = (epochs - warmup) / max(1, full.epochs - full.warmup_epochs)
    peak, end = full.learning_rate, full.final_learning_rate
    if full.schedule == "cosine":
        done = 0.5 * (1.0 - math.cos(math.pi * done))
    return replace(
        full,
        epochs=epochs,
        warmup_epochs=warmup,
        final_learning_rate=peak + done * (end - peak),
        select="last",
    )
