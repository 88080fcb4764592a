"""States as flat dicts of tensors, without pickles, that are checked when they come back."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ohsvgp.bases.base import Basis
from ohsvgp.stream.clock import Clock
from ohsvgp.stream.spacing import StampSpacing

__all__ = [
    "basis_settings",
    "clock_from_tensors",
    "clock_tensors",
    "differences",
    "fresh",
    "generator_from_tensors",
    "module_shapes",
    "pace_from_tensors",
    "pace_tensors",
    "pack",
    "unpack",
]

_SCHEMA = 3
_NO_UNIT = -1


def fresh(tensor: Tensor) -> Tensor:
    """A copy in row-major order at an aligned address, as it would come back from a file.

    BLAS and LAPACK round in other ways for other strides and alignments: only what is kept in this
    one form predicts the same bits before and after it has been saved.
    """
    # Not contiguous(): that leaves odd strides of dimensions of size 1.
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def pack(identity: dict[str, Any], groups: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """A flat dict that safetensors can write as it is.

    Args:
        identity: what a model must be to read the state; JSON values.
        groups: tensors by group and name.

    Returns:
        Fresh tensors by dotted name, without the dot where the name is empty. "identity" holds, in
        bytes, the identity, a schema and a checksum over all other tensors.
    """
    tensors = {
        f"{group}.{name}".rstrip("."): fresh(tensor)
        for group, named in groups.items()
        for name, tensor in named.items()
    }
    text = json.dumps({"schema": _SCHEMA, "sha256": _checksum(tensors), **identity})
    return {"identity": torch.tensor(list(text.encode()), dtype=torch.uint8), **tensors}


def unpack(
    tensors: Mapping[str, Tensor], identity: dict[str, Any], device: torch.device, *, source: str
) -> dict[str, dict[str, Tensor]]:
    """The groups that ``pack`` was given, as fresh tensors.

    Args:
        tensors: from ``pack``.
        identity: of the model that reads them.
        device: where the tensors shall be.
        source: where such tensors come from, for errors.

    Raises:
        ValueError: no such tensors, those of another kind of model, or tensors that are not those
            that were packed.
    """
    if "identity" not in tensors:
        raise ValueError(f"tensors must come from {source}, got no identity in them")
    try:
        saved = dict(json.loads(bytes(tensors["identity"].tolist())))
    except (TypeError, ValueError) as error:
        raise ValueError(f"identity of the tensors must be JSON in bytes: {error}") from error
    checksum = saved.pop("sha256", None)
    own = {"schema": _SCHEMA, **identity}
    if saved != own:
        raise ValueError(
            f"the state must be that of a model like this one, got {differences(saved, own)}"
        )
    rest = {name: tensor for name, tensor in tensors.items() if name != "identity"}
    if _checksum(rest) != checksum:
        raise ValueError(
            "tensors must be those that were saved, but their checksum is another: "
            "the state is damaged, incomplete or was changed"
        )
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in rest.items():
        group, _, field = name.partition(".")
        groups.setdefault(group, {})[field] = fresh(tensor.to(device))
    return groups


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def generator_from_tensors(generator: torch.Generator, state: Tensor) -> None:
    """Set the generator to a saved state.

    Raises:
        ValueError: no state of such a generator.
    """
    own = generator.get_state()
    if state.dtype != own.dtype or state.shape != own.shape:
        raise ValueError(
            f"generator must be {own.numel()} bytes of its state, got {state.dtype} "
            f"of shape {tuple(state.shape)}"
        )
    generator.set_state(state.cpu())


def clock_tensors(clock: Clock | None) -> dict[str, Tensor]:
    """Origin and unit of a clock; nothing of none."""
    if clock is None:
        return {}
    number = torch.float64 if clock.unit is None else torch.int64
    return {
        "origin": torch.tensor(clock.origin, dtype=number),
        "unit": torch.tensor(_NO_UNIT if clock.unit is None else clock.unit),
    }


def clock_from_tensors(tensors: Mapping[str, Tensor]) -> Clock | None:
    """The clock of ``clock_tensors``."""
    if not tensors:
        return None
    unit = int(tensors["unit"])
    return Clock(tensors["origin"].item(), None if unit == _NO_UNIT else unit)


def pace_tensors(pace: StampSpacing) -> dict[str, Tensor]:
    """The latest stamp and the gaps before it, in one vector; nothing of none."""
    held = [] if pace.last is None else [pace.last, *pace.gaps]
    return {"": torch.tensor(held, dtype=torch.float64)} if held else {}


def pace_from_tensors(tensors: Mapping[str, Tensor]) -> StampSpacing:
    """The pace of ``pace_tensors``."""
    if not tensors:
        return StampSpacing()
    last, *gaps = tensors[""].tolist()
    return StampSpacing(last, gaps)


def basis_settings(basis: Basis, name: str = "basis") -> dict[str, Any]:
    """Kind and numbers of a basis, and of one that it wraps: LegT(2.0) is not LegT(3.0)."""
    settings: dict[str, Any] = {name: type(basis).__name__}
    for field, value in vars(basis).items():
        if isinstance(value, Basis):
            settings |= basis_settings(value, f"{name}.{field}")
        elif not field.startswith("_") and isinstance(value, int | float | str):
            settings[f"{name}.{field}"] = value
    return settings


def module_shapes(module: nn.Module) -> dict[str, list[int]]:
    """Shapes of a module's parameters and buffers by name."""
    return {name: list(tensor.shape) for name, tensor in module.state_dict().items()}


def differences(got: dict[str, Any], expected: dict[str, Any]) -> str:
    """What of two identities differs, in words."""
    names = [name for name in {**expected, **got} if got.get(name) != expected.get(name)]
    return ", ".join(f"{name} {got.get(name)} instead of {expected.get(name)}" for name in names)
