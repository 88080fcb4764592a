"""The state of an online Gaussian process as a flat dict of tensors, without pickles."""

import json
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ohsvgp.bases.base import Basis
from ohsvgp.core import Site
from ohsvgp.inputs import Clock
from ohsvgp.state import OnlineState
from ohsvgp.whitening import Whitening

if TYPE_CHECKING:
    from ohsvgp.predictions import Predictions

__all__ = ["differences", "identity", "pack", "unpack"]

_SCHEMA = 1
_NO_UNIT = -1
# What every state has beside its inducing set.
_STATE = {
    *(f"whitening.{field}" for field in Whitening._fields),
    *(f"site.{field}" for field in Site._fields),
    *("hyperparameters", "length", "count"),
}


def pack(model: "Predictions") -> dict[str, Tensor]:
    """All that the model is made of; the dict can be written with safetensors as it is.

    Args:
        model: the model.

    Returns:
        Tensors by dotted name. "identity" holds, in bytes, what a model must be to read them.
    """
    tensors = {
        "identity": _bytes(json.dumps(identity(model))),
        "generator": model.generator.get_state(),
        **_named("kernel", model.kernel.state_dict()),
        **_named("likelihood", model.likelihood.state_dict()),
        **_named("basis", model.basis.tensors()),
    }
    if (clock := model.clock) is not None:
        number = torch.float64 if clock.unit is None else torch.int64
        tensors["clock.origin"] = torch.tensor(clock.origin, dtype=number)
        tensors["clock.unit"] = torch.tensor(_NO_UNIT if clock.unit is None else clock.unit)
    if (state := model.state) is not None:
        tensors |= {
            **_named("inducing", state.inducing.tensors()),
            **_named("whitening", state.whitening._asdict()),
            **_named("site", state.site._asdict()),
            "hyperparameters": state.hyperparameters,
            "length": torch.tensor(state.length, dtype=torch.float64),
            "count": torch.tensor(state.count),
        }
    return {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}


def unpack(model: "Predictions", tensors: dict[str, Tensor]) -> OnlineState | None:
    """Give the model the saved parameters, and return the saved state.

    Args:
        model: a model made with the same arguments.
        tensors: from ``pack``.

    Raises:
        ValueError: tensors that are no such state, or that of another kind of model.
    """
    if "identity" not in tensors or "generator" not in tensors:
        raise ValueError("tensors must come from OnlineGP.state_dict, got no identity in them")
    saved, own = json.loads(bytes(tensors["identity"].tolist())), identity(model)
    if saved != own:
        raise ValueError(
            f"the state must be that of a model like this one, got {differences(saved, own)}"
        )
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        group, _, field = name.partition(".")
        parts.setdefault(group, {})[field] = tensor.clone()
    _check_complete(model, parts)
    # The basis refuses what is not its own; until then nothing is changed.
    model.basis.load_tensors(parts.get("basis", {}))
    model.kernel.load_state_dict(parts["kernel"])
    model.likelihood.load_state_dict(parts.get("likelihood", {}))
    model.generator.set_state(tensors["generator"].clone())
    model.clock = None
    if (clock := parts.get("clock")) is not None:
        unit = int(clock["unit"])
        model.clock = Clock(clock["origin"].item(), None if unit == _NO_UNIT else unit)
    if "site" not in parts:
        return None
    return OnlineState(
        model.basis.restore(parts["inducing"]),
        Whitening(**parts["whitening"]),
        Site(**parts["site"]),
        tensors["hyperparameters"].clone(),
        float(tensors["length"]),
        int(tensors["count"]),
    )


def _check_complete(model: "Predictions", parts: dict[str, dict[str, Tensor]]) -> None:
    """Refuse saved parameters of other shapes, and a state of which something is missing."""
    for group, module in (("kernel", model.kernel), ("likelihood", model.likelihood)):
        got = {name: tuple(tensor.shape) for name, tensor in parts.get(group, {}).items()}
        own = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
        if got != own:
            raise ValueError(f"tensors of the {group} must have shapes {own}, got {got}")
    generator, own = parts["generator"][""], model.generator.get_state()
    if generator.dtype != own.dtype or generator.shape != own.shape:
        raise ValueError(
            f"generator must be {own.numel()} bytes of its state, got {generator.dtype} "
            f"of shape {tuple(generator.shape)}"
        )
    held = {f"{group}.{field}".rstrip(".") for group, fields in parts.items() for field in fields}
    missing = sorted(_STATE - held) + ["inducing"] * ("inducing" not in parts)
    if missing and ("inducing" in parts or _STATE & held):
        raise ValueError(f"tensors must hold a whole state, missing are {', '.join(missing)}")
    if "site" in parts:
        G, h = parts["site"]["precision"], parts["site"]["shift"]
        if G.shape[-2:] != (h.shape[-1], h.shape[-1]):
            raise ValueError(
                f"site.precision must have shape (..., M, M) for site.shift of shape (..., M), "
                f"got {tuple(G.shape)} and {tuple(h.shape)}"
            )


def identity(model: "Predictions") -> dict[str, Any]:
    """What two models must share for one to read the other's state."""
    return {
        "schema": _SCHEMA,
        "kernel": type(model.kernel).__name__,
        "dim": model.kernel.dim,
        "kernel_batch": list(model.kernel.batch_shape),
        "likelihood": type(model.likelihood).__name__,
        **_settings("basis", model.basis),
        "whitening": model.whitening,
        "dtype": str(model.dtype),
    }


def _settings(name: str, basis: Basis) -> dict[str, Any]:
    """Kind and numbers of a basis, and of one that it wraps: LegT(2.0) is not LegT(3.0)."""
    settings: dict[str, Any] = {name: type(basis).__name__}
    for field, value in vars(basis).items():
        if isinstance(value, Basis):
            settings |= _settings(f"{name}.{field}", value)
        elif not field.startswith("_") and isinstance(value, int | float | str):
            settings[f"{name}.{field}"] = value
    return settings


def differences(got: dict[str, Any], expected: dict[str, Any]) -> str:
    """What of two identities differs, in words."""
    names = [name for name in {**expected, **got} if got.get(name) != expected.get(name)]
    return ", ".join(f"{name} {got.get(name)} instead of {expected.get(name)}" for name in names)


def _named(group: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{group}.{name}": tensor for name, tensor in tensors.items()}


def _bytes(text: str) -> Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8)
