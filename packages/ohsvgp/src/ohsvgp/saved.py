"""States as flat dicts of tensors, without pickles, that are checked when they come back."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ohsvgp.bases.base import Basis
from ohsvgp.core import Site
from ohsvgp.inducing import Inducing
from ohsvgp.likelihoods import Likelihood
from ohsvgp.state import OnlineState, contiguous_copy
from ohsvgp.whitening import Whitening
from probseq.files import DamagedFileError, hash_tensors
from probseq.kernels import Kernel

_SCHEMA, _NO_HASH = 5, 64 * "0"


def pack(
    identity: dict[str, Any], values: dict[str, Any], groups: Mapping[str, Mapping[str, Tensor]]
) -> dict[str, Tensor]:
    """Return a flat dict that safetensors can write as it is.

    The identity, JSON values, is what a model must be to read the state. Copies of the groups'
    tensors have dotted names, without the dot where a name is empty. "identity" holds, in bytes,
    identity and values, a schema and a hash of these and all other tensors.
    """
    tensors = {
        f"{group}.{name}".rstrip("."): contiguous_copy(tensor)
        for group, named in groups.items()
        for name, tensor in named.items()
    }
    text = json.dumps({"schema": _SCHEMA, "sha256": _NO_HASH, **identity, "values": values})
    text = text.replace(_NO_HASH, hash_tensors(tensors, text.encode()), 1)
    return {"identity": torch.tensor(list(text.encode()), dtype=torch.uint8), **tensors}


def unpack(
    tensors: Mapping[str, Tensor], identity: dict[str, Any], device: torch.device, *, source: str
) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    """Return the values and groups that ``pack`` took, as copies.

    The source is the name of such tensors in errors.

    Raises:
        DamagedFileError: the tensors are not those that were packed.
    """
    if "identity" not in tensors:
        raise ValueError(f"tensors must come from {source}, got no identity in them")
    try:
        text = bytes(tensors["identity"].tolist()).decode()
        saved = dict(json.loads(text))
    except (TypeError, ValueError) as error:
        raise DamagedFileError(f"identity of the tensors must be JSON in bytes: {error}") from error
    digest, values = str(saved.pop("sha256", None)), saved.pop("values", {})
    expected = {"schema": _SCHEMA, **identity}
    if saved != expected:
        raise ValueError(
            f"the state must be that of a model like this one, got {differences(saved, expected)}"
        )
    others = {name: tensor for name, tensor in tensors.items() if name != "identity"}
    if hash_tensors(others, text.replace(digest, _NO_HASH, 1).encode()) != digest:
        raise DamagedFileError(
            "tensors must be those that were saved, but their hash is another: "
            "the state is damaged, incomplete or was changed"
        )
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in others.items():
        group, _, field = name.partition(".")
        groups.setdefault(group, {})[field] = contiguous_copy(tensor.to(device))
    return values, groups


def state_tensors(state: OnlineState | None) -> dict[str, dict[str, Tensor]]:
    """Return groups of tensors that ``state_from_tensors`` reads; nothing of None."""
    if state is None:
        return {}
    return {
        "inducing": state.inducing.tensors(),
        "whitening": state.whitening._asdict(),
        "site": state.site._asdict(),
        "hyperparameters": {"": state.hyperparameters},
        "length": {"": torch.tensor(state.length, dtype=torch.float64)},
        "count": {"": torch.tensor(state.count)},
    }


def state_from_tensors(
    groups: Mapping[str, dict[str, Tensor]], restore: Callable[[dict[str, Tensor]], Inducing]
) -> OnlineState | None:
    """Return the state of ``state_tensors``; None of groups without one."""
    if "site" not in groups:
        return None
    return OnlineState(
        restore(groups["inducing"]),
        Whitening(**groups["whitening"]),
        Site(**groups["site"]),
        groups["hyperparameters"][""],
        float(groups["length"][""]),
        int(groups["count"][""]),
    )


def clone_generator(generator: torch.Generator, state: Tensor | None = None) -> torch.Generator:
    """Return a generator in the same state, or in a saved one."""
    clone, now = torch.Generator(generator.device), generator.get_state()
    state = now if state is None else state
    if state.dtype != now.dtype or state.shape != now.shape:
        raise ValueError(
            f"generator must be {now.numel()} bytes of its state, got {state.dtype} "
            f"of shape {tuple(state.shape)}"
        )
    clone.set_state(state.cpu())
    return clone


def basis_settings(basis: Basis, name: str = "basis") -> dict[str, Any]:
    """Return kind and numbers of a basis, and of one that it wraps: LegT(2.0) is not LegT(3.0)."""
    settings: dict[str, Any] = {name: type(basis).__name__}
    for field, value in vars(basis).items():
        if isinstance(value, Basis):
            settings |= basis_settings(value, f"{name}.{field}")
        elif not field.startswith("_") and isinstance(value, int | float | str):
            settings[f"{name}.{field}"] = value
    return settings


def model_settings(kernel: Kernel, likelihood: Likelihood, basis: Basis) -> dict[str, Any]:
    """Return classes, with those of the terms of sums and products, shapes and numbers."""
    settings: dict[str, Any] = {"dim": kernel.dim, "kernel_batch": list(kernel.batch_shape)}
    for name, module in (("kernel", kernel), ("likelihood", likelihood)):
        kinds = [type(child).__name__ for child in module.modules()]
        settings[name] = " ".join(kind for kind in kinds if kind != "ModuleList")
        tensors = module.state_dict().items()
        settings[f"{name}_parameters"] = {key: list(tensor.shape) for key, tensor in tensors}
    return settings | basis_settings(basis)


def differences(actual: dict[str, Any], expected: dict[str, Any]) -> str:
    """Return in words what of two identities differs."""
    names = [n for n in {**expected, **actual} if actual.get(n) != expected.get(n)]
    return ", ".join(f"{n} {actual.get(n)} instead of {expected.get(n)}" for n in names)
