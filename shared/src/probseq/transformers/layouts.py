"""Where the attention modules of other libraries have their queries and their output weights.

Modules are known by the names of their classes; none of the libraries is imported.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

_LIBRARIES = ("torch", "torchvision", "timm", "transformers")
# Where a module, or its settings, has the number of its heads.
_COUNTS = ("num_heads", "num_attention_heads", "n_heads")


class Layout(NamedTuple):
    """How to reach what a deviation needs of an attention module.

    Attributes:
        queries: computes the heads' queries side by side, ``(..., heads * query)``.
        width: tells their width.
        out: tells the weight (dim, heads * value) that heads' outputs are multiplied with; None
            where the module returns them side by side.
        parts: attributes that the module must have.
        empty: attributes that must be absent, None or an identity.
    """

    queries: Callable[[Any, Tensor], Tensor]
    width: Callable[[Any], int]
    out: Callable[[Any], Tensor | None]
    parts: tuple[str, ...]
    empty: tuple[str, ...] = ()


def layout_of(module: nn.Module) -> Layout:
    """Return the layout of an attention module that is known."""
    layout = _known(module)
    assert layout is not None
    return layout


def _known(module: nn.Module) -> Layout | None:
    for cls in type(module).__mro__:
        if cls.__module__.partition(".")[0] in _LIBRARIES and cls.__name__ in _LAYOUTS:
            layout = _LAYOUTS[cls.__name__]
            named = all(hasattr(module, part) for part in layout.parts)
            return layout if named and (layout is not _FUSED or _in_thirds(module)) else None
    return None


def _in_thirds(module: Any) -> bool:
    """Whether queries, keys and values have a third of a projection each.

    Several models of timm call their own modules ``Attention``; some have values of another width.
    """
    width = getattr(module.proj, "in_features", None)
    return width is not None and getattr(module.qkv, "out_features", None) == 3 * width


def count_heads(module: Any) -> int:
    """Return the number of heads of an attention module."""
    for owner in (module, getattr(module, "config", None)):
        for name in _COUNTS:
            if hasattr(owner, name):
                return int(getattr(owner, name))
    raise ValueError(f"{type(module).__name__} must have a number of heads: {', '.join(_COUNTS)}")


def find_attention(model: nn.Module) -> dict[str, nn.Module]:
    """Return the attention modules of a model by their names, in order.

    Raises:
        ValueError: there is none that is known.
    """
    found = {name: part for name, part in model.named_modules() if _known(part) is not None}
    if not found:
        seen = {type(part).__name__ for part in model.modules()}
        like = sorted(name for name in seen if "attention" in name.lower()) or sorted(seen)
        raise ValueError(
            f"model must have attention that is known ({', '.join(_LAYOUTS)}), and has none among "
            f"its modules: {', '.join(like)}"
        )
    return found


def check_layout(name: str, module: nn.Module) -> Layout:
    """Return the layout of an attention module.

    Raises:
        ValueError: the heads' outputs do not go through the output weights alone, or their widths
            differ.
    """
    layout = layout_of(module)
    for part in layout.empty:
        if not isinstance(getattr(module, part, None), nn.Identity | None):
            raise ValueError(
                f"{name}, a {type(module).__name__}, cannot have a deviation: with its "
                f"{part} a head is not softmax attention through the output weights alone"
            )
    heads, width, out = count_heads(module), layout.width(module), layout.out(module)
    value = width if out is None else out.shape[-1]
    if width % heads or value % heads:
        raise ValueError(
            f"{name}, a {type(module).__name__}, must have heads of equal widths, got {heads} "
            f"heads for queries of width {width} and values of width {value}"
        )
    return layout


def _rows(layer: Any, x: Tensor, count: int) -> Tensor:
    """Multiply with the first rows of a projection that has queries, keys and values in one."""
    bias = None if layer.bias is None else layer.bias[:count]
    # The Conv1D of transformers has its weight transposed.
    weight = layer.weight if isinstance(layer, nn.Linear) else layer.weight.mT
    return F.linear(x, weight[:count], bias)


def _normalised(module: Any, queries: Tensor) -> Tensor:
    """Apply the normalisation of each head's queries, where a module has one."""
    norm = getattr(module, "q_norm", None)
    if norm is None:
        return queries
    return norm(queries.unflatten(-1, (count_heads(module), -1))).flatten(-2)


def _multihead_queries(module: nn.MultiheadAttention, x: Tensor) -> Tensor:
    dim, bias = module.embed_dim, getattr(module, "in_proj_bias", None)
    weight = getattr(module, "in_proj_weight", None)
    rows = module.q_proj_weight if weight is None else weight[:dim]
    return F.linear(x, rows, None if bias is None else bias[:dim])


def _separate(query: str, out: str | None) -> Layout:
    """Return the layout of modules whose queries have a projection of their own."""
    return Layout(
        lambda module, x: _normalised(module, getattr(module, query)(x)),
        lambda module: getattr(module, query).out_features,
        lambda module: None if out is None else getattr(module, out).weight,
        (query,) if out is None else (query, out),
    )


_FUSED = Layout(
    lambda module, x: _normalised(module, _rows(module.qkv, x, module.qkv.out_features // 3)),
    lambda module: module.qkv.out_features // 3,
    lambda module: module.proj.weight,
    ("qkv", "proj"),
    # The last two: queries of cosine attention are normalised by other means.
    ("norm", "gate", "logit_scale", "cpb_mlp"),
)
_LAYOUTS: dict[str, Layout] = {
    "MultiheadAttention": Layout(
        _multihead_queries,
        lambda module: module.embed_dim,
        lambda module: module.out_proj.weight,
        ("out_proj",),
    ),
    # torchvision and timm
    **dict.fromkeys(("ShiftedWindowAttention", "Attention", "WindowAttention"), _FUSED),
    # transformers
    "ViTSelfAttention": _separate("query", None),
    "Dinov2SelfAttention": _separate("query", None),
    "BertSelfAttention": _separate("query", None),
    "RobertaSelfAttention": _separate("query", None),
    "DistilBertSelfAttention": _separate("q_lin", "out_lin"),
    "GPT2Attention": Layout(
        lambda module, x: _rows(module.c_attn, x, module.embed_dim),
        lambda module: module.embed_dim,
        lambda module: module.c_proj.weight.mT,
        ("c_attn", "c_proj"),
        ("q_attn",),
    ),
    **dict.fromkeys(
        (
            *("ViTAttention", "Dinov2Attention"),
            *("LlamaAttention", "MistralAttention", "Qwen2Attention", "Qwen3Attention"),
        ),
        _separate("q_proj", "o_proj"),
    ),
}
