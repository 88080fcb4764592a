"""The models of `probseq online vae`, and their files between two tasks."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from ohsvgp.bases.base import Basis
from ohsvgp.bases.legendre import LegS
from ohsvgp.bases.points import PivotedCholesky, RandomSubset
from ohsvgp.vae import MLPDecoder, MLPEncoder, OnlineSVGPVAE, SharedSet
from probseq.kernels import RBF
from probseq_apps.engine.files import sync
from probseq_apps.engine.schedule import derive_seed
from probseq_apps.experiments.online_vae_settings import VaeSettings

# Entries of a checkpoint that are no part of the model.
_EXTRA = "extra."


def build_vae(method: str, channels: int, settings: VaeSettings, *, seed: int) -> OnlineSVGPVAE:
    """A model before its first task; networks start equal for all methods of a seed.

    Args:
        method: one of `VAE_METHODS`.
        channels: d_y.
        settings: of the model.
        seed: of the run.
    """
    latents = settings.num_latents
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "networks"))
        encoder = MLPEncoder(channels, latents, hidden=settings.hidden_dim)
        decoder = MLPDecoder(latents, channels, hidden=settings.hidden_dim)
    return OnlineSVGPVAE(
        encoder,
        decoder,
        RBF(1, batch_shape=(latents,), lengthscale=settings.lengthscale),
        _basis(method, settings.num_inducing),
        num_latents=latents,
        noise=settings.noise,
        carry=settings.carry,
        consolidation=settings.consolidation,
        seed=derive_seed(seed, f"model {method}"),
    )


def save_progress(
    path: Path,
    model: OnlineSVGPVAE,
    records: Sequence[Mapping[str, Any]],
    extra: Mapping[str, Tensor],
) -> None:
    """Write a model and what was measured so far, all or nothing.

    Args:
        path: the file.
        model: after a task.
        records: of each task so far.
        extra: more tensors.
    """
    tensors = dict(model.state_dict()) | {f"{_EXTRA}{name}": x for name, x in extra.items()}
    temporary = path.with_name(f".tmp-{path.name}")
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        temporary,
        metadata={"records": json.dumps(list(records), allow_nan=False)},
    )
    sync(temporary)
    os.replace(temporary, path)


def load_progress(
    path: Path, model: OnlineSVGPVAE
) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Take over what `save_progress` wrote; nothing where there is no file.

    Args:
        path: the file.
        model: made with the same settings.

    Returns:
        The records and the other tensors.

    Raises:
        ValueError: the file is damaged.
    """
    if not path.exists():
        return [], {}
    try:
        tensors = load_file(path)
        with safe_open(path, framework="pt") as file:
            records = json.loads(file.metadata()["records"])
        extra = {n: tensors.pop(n) for n in list(tensors) if n.startswith(_EXTRA)}
        model.load_state_dict(tensors)
    except (SafetensorError, KeyError, TypeError, RuntimeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}; delete it to repeat the run") from error
    model.eval()
    return records, {name.removeprefix(_EXTRA): tensor for name, tensor in extra.items()}


def _basis(method: str, num_inducing: int) -> Basis:
    match method:
        case "ohsvgp":
            return LegS(num_inducing)
        case "ovc":
            return SharedSet(PivotedCholesky(num_inducing))
        case "ovc-per-dim":
            return PivotedCholesky(num_inducing)
        case _:
            return RandomSubset(num_inducing)
