"""A model's state as plain tensors, each shared tensor once."""

import torch
from torch import Tensor, nn


def _canonical_names(model: nn.Module) -> dict[str, str]:
    """Map each name in the state to the first name of the same tensor.

    A module used at two places (one LayerNorm for all layers) has its tensors in the state under
    two names; safetensors refuses to store one memory twice.
    """
    first: dict[int, str] = {}
    names: dict[str, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        names[name] = first.setdefault(id(tensor), name)
    return names


def copy_weights(model: nn.Module) -> dict[str, Tensor]:
    """Copy parameters and buffers, each once, on the device where they are."""
    state = model.state_dict()
    return {
        name: state[name].detach().clone(memory_format=torch.contiguous_format)
        for name in dict.fromkeys(_canonical_names(model).values())
    }


def load_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Set all parameters and buffers of a model.

    Args:
        model: the model to change.
        weights: what `copy_weights` gave for a model of the same shape.

    Raises:
        ValueError: a name is missing, unknown, or its tensor has another shape.
    """
    names = _canonical_names(model)
    wanted, given = set(names.values()), set(weights)
    if wanted != given:
        raise ValueError(
            "weights must name the tensors of this model; "
            f"missing {sorted(wanted - given)}, unknown {sorted(given - wanted)}: "
            "build the model with the settings it was trained with"
        )
    state = model.state_dict()
    for name, tensor in weights.items():
        if tensor.shape != state[name].shape:
            raise ValueError(
                f"weights for {name} must have shape {tuple(state[name].shape)}, "
                f"got {tuple(tensor.shape)}: "
                "build the model with the settings it was trained with"
            )
    model.load_state_dict({name: weights[first] for name, first in names.items()}, strict=True)
