"""Reading the weights that improved DDPM's authors published.

Their files hold the UNet's tensors under names of their own. Each has one place in diffusers'
network; only attention is laid out in another way: one map gives query, key and value of the first
head, then those of the second, and so on.
"""

import pickle
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pseudovideo.diffusion.image import ImageDiffusion
from pseudovideo.spec import ImageDiffusionConfig, UNetConfig

CIFAR10 = ImageDiffusionConfig(num_res_blocks=3, dropout=0.3, num_steps=4000, schedule="cosine")
"""Of the unconditional CIFAR-10 weights, `cifar10_uncond_50M_500K.pt` and its VLB sister."""

IMAGENET64 = ImageDiffusionConfig(
    image_size=64,
    channel_multipliers=(1, 2, 3, 4),
    num_res_blocks=3,
    num_steps=4000,
    schedule="cosine",
)
"""Of the unconditional 64 by 64 ImageNet weights, `imagenet64_uncond_100M_1500K.pt` and its sister.
"""

_UNPICKLER = re.compile(r"WeightsUnpickler error:\s*(.+?)(?:\. Please|\n|$)")

# Layers of a residual block and of an attention: theirs, and diffusers'.
_RESIDUAL = (
    ("in_layers.0", "norm1"),
    ("in_layers.2", "conv1"),
    ("emb_layers.1", "time_emb_proj"),
    ("out_layers.0", "norm2"),
    ("out_layers.3", "conv2"),
    ("skip_connection", "conv_shortcut"),
)
_ATTENTION = (("norm", "group_norm"), ("qkv", "to_qkv"), ("proj_out", "to_out.0"))


def load_improved_ddpm(path: Path | str, config: ImageDiffusionConfig) -> ImageDiffusion:
    """Return an image model with weights that improved DDPM's code saved.

    The weights do not tell everything: the number of heads (4 in all published image models), the
    groups of the normalisations (32 in all), the dropout, the schedule and the number of steps are
    believed as `config` says. Models without
    learned variances, without scale and shift by the time, or with classes are refused.

    Args:
        path: a file of tensors by their names, such as `cifar10_uncond_50M_500K.pt`. It is read as
            data: nothing in it is run.
        config: what the weights are of; `CIFAR10` and `IMAGENET64` are those of published ones.

    Returns:
        The model, in eval mode on the CPU.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: `config` has classes, or the file is none of finite tensors, or holds another
            architecture; the message says which.
    """
    path = Path(path)
    if config.num_classes is not None:
        raise ValueError(
            "config must be of a model without classes, as weights of these are not read, got "
            f"num_classes={config.num_classes}"
        )
    weights = _read(path)
    _check_architecture(weights, config, path)
    model = ImageDiffusion(config)
    expected = model.unet.state_dict()
    state: dict[str, Tensor] = {}
    left = dict(weights)
    for theirs, ours in _names(config):
        # Blocks that keep their width have no map beside them.
        if theirs.endswith("skip_connection") and f"{ours}.weight" not in expected:
            continue
        for parameter in ("weight", "bias"):
            name = f"{theirs}.{parameter}"
            if name not in left:
                raise ValueError(f"{path} must hold {name}, and has no such tensor")
            tensor, target = left.pop(name), f"{ours}.{parameter}"
            shape = _their_shape(target, expected)
            if tensor.shape != shape:
                raise ValueError(
                    f"{path} must hold {name} of shape {shape}, got {tuple(tensor.shape)}"
                )
            state |= _converted(target, tensor, config.num_heads)
    if left:
        raise ValueError(
            f"{path} holds {len(left)} tensors that this architecture has no place for, "
            f"the first of which is {min(left)}"
        )
    model.unet.load_state_dict(state, strict=True)
    return model.eval()


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} must be a file of published weights, and is none")
    try:
        weights: Any = torch.load(path, map_location="cpu", weights_only=True)
    # What torch makes of a file that is no checkpoint depends on its first bytes.
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        # Not torch's advice, which is to load it all the same.
        reason = _UNPICKLER.search(str(error))
        raise ValueError(
            f"{path} must hold tensors and nothing that would have to be run"
            + (f": {reason[1]}" if reason else "")
        ) from error
    if not isinstance(weights, Mapping):
        raise ValueError(f"{path} must hold tensors by their names, got a {type(weights).__name__}")
    for name, value in weights.items():
        if not (isinstance(name, str) and isinstance(value, Tensor)):
            # Checkpoints of other trainers hold more than the weights.
            advice = ": save that part alone" if isinstance(value, Mapping) else ""
            raise ValueError(
                f"{path} must hold tensors by their names, got a value of type "
                f"{type(value).__name__} under {name!r}{advice}"
            )
        if not bool(value.isfinite().all()):
            raise ValueError(f"{path} must hold {name} of finite numbers, got NaN or infinity")
    return dict(weights)


def _check_architecture(
    weights: dict[str, Tensor], config: ImageDiffusionConfig, path: Path
) -> None:
    """Refuse a network of other settings; the message says which differ.

    Raises:
        ValueError: some differ.
    """
    if "label_emb.weight" in weights:
        raise ValueError(
            f"{path} must hold an unconditional model, got one of "
            f"{len(weights['label_emb.weight'])} classes"
        )
    try:
        architecture = _architecture(weights, config.image_size)
        last, moved = weights["out.2.weight"], weights["input_blocks.1.0.emb_layers.1.weight"]
    except KeyError as error:
        raise ValueError(
            f"{path} must hold improved DDPM's UNet, and has no tensor {error}"
        ) from error
    # In the order of the levels, in which those of the file are.
    expected = replace(config, attention_sizes=tuple(sorted(set(config.attention_sizes))[::-1]))
    for name, value in architecture.items():
        if value != getattr(expected, name):
            raise ValueError(
                f"{path} must hold a UNet with {name}={getattr(expected, name)} as config says, "
                f"got {value}"
            )
    if len(last) != 2 * config.channels:
        raise ValueError(
            f"{path} must hold a model with learned variances, of {2 * config.channels} outputs, "
            f"got {len(last)}"
        )
    if len(moved) != 2 * config.widths[0]:
        raise ValueError(f"{path} must hold residual blocks that the time scales and shifts")


def _architecture(weights: dict[str, Tensor], image_size: int) -> dict[str, Any]:
    """Return settings that can be read off the weights.

    Raises:
        KeyError: something that every such network has is not there.
    """
    first = weights["input_blocks.0.0.weight"]
    base = len(first)
    # (width, whether it attends) of the blocks of each level.
    levels: list[list[tuple[int, bool]]] = [[]]
    number = 1
    while any(name.startswith(f"input_blocks.{number}.") for name in weights):
        block = f"input_blocks.{number}"
        if f"{block}.0.op.weight" in weights:
            levels.append([])
        else:
            width = len(weights[f"{block}.0.out_layers.3.weight"])
            levels[-1].append((width, f"{block}.1.qkv.weight" in weights))
        number += 1
    if not all(levels):
        raise KeyError(f"input_blocks.{number}.0.out_layers.3.weight")
    return {
        "channels": first.shape[1],
        "base_channels": base,
        "channel_multipliers": tuple(level[0][0] // base for level in levels),
        "num_res_blocks": len(levels[0]),
        "attention_sizes": tuple(
            image_size >> place for place, level in enumerate(levels) if level[0][1]
        ),
    }


def _names(config: UNetConfig) -> Iterator[tuple[str, str]]:
    """Yield each layer's name in their files and in diffusers' network."""
    yield from (("time_embed.0", "time_embedding.linear_1"),)
    yield from (("time_embed.2", "time_embedding.linear_2"), ("input_blocks.0.0", "conv_in"))
    attends = [size in config.attention_sizes for size in config.sizes]
    levels, number = len(attends), 1
    for level, attending in enumerate(attends):
        for place in range(config.num_res_blocks):
            yield from _block(f"input_blocks.{number}", f"down_blocks.{level}", place, attending)
            number += 1
        if level + 1 < levels:
            yield f"input_blocks.{number}.0.op", f"down_blocks.{level}.downsamplers.0.conv"
            number += 1
    yield from _layers("middle_block.0", "mid_block.resnets.0", _RESIDUAL)
    yield from _layers("middle_block.1", "mid_block.attentions.0", _ATTENTION)
    yield from _layers("middle_block.2", "mid_block.resnets.1", _RESIDUAL)
    number = 0
    for level, attending in enumerate(reversed(attends)):
        for place in range(config.num_res_blocks + 1):
            yield from _block(f"output_blocks.{number}", f"up_blocks.{level}", place, attending)
            number += 1
        if level + 1 < levels:
            last = f"output_blocks.{number - 1}.{1 + attending}.conv"
            yield last, f"up_blocks.{level}.upsamplers.0.conv"
    yield from (("out.0", "conv_norm_out"), ("out.2", "conv_out"))


def _block(theirs: str, ours: str, place: int, attending: bool) -> Iterator[tuple[str, str]]:
    yield from _layers(f"{theirs}.0", f"{ours}.resnets.{place}", _RESIDUAL)
    if attending:
        yield from _layers(f"{theirs}.1", f"{ours}.attentions.{place}", _ATTENTION)


def _layers(
    theirs: str, ours: str, names: tuple[tuple[str, str], ...]
) -> Iterator[tuple[str, str]]:
    return ((f"{theirs}.{one}", f"{ours}.{other}") for one, other in names)


def _attends(target: str) -> bool:
    """Whether a tensor is of a map of an attention: a convolution there, a matrix here."""
    return "attentions" in target and "group_norm" not in target


def _their_shape(target: str, expected: dict[str, Tensor]) -> tuple[int, ...]:
    if not _attends(target):
        return tuple(expected[target].shape)
    rows, *columns = expected[target.replace("to_qkv", "to_q")].shape
    rows = 3 * rows if "to_qkv" in target else rows
    return (rows, *columns, 1) if columns else (rows,)


def _converted(target: str, tensor: Tensor, num_heads: int) -> dict[str, Tensor]:
    """Return a tensor of theirs by its name here; three for one that maps to q, k and v."""
    if _attends(target) and target.endswith("weight"):
        tensor = tensor[..., 0]
    if "to_qkv" not in target:
        return {target: tensor}
    # (heads, query key value, width of a head, ...) → three of all heads.
    of_heads = tensor.unflatten(0, (num_heads, 3, -1))
    return {
        target.replace("to_qkv", f"to_{letter}"): of_heads[:, place].flatten(0, 1)
        for place, letter in enumerate("qkv")
    }
