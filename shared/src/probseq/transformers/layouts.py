"""Where the attention modules of other libraries have their queries and their output weights.

Modules are known by their classes; none of the libraries is imported.
"""

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from probseq.transformers.calls import Changed

# Where a module, or its settings, has the number of its heads.
_COUNTS = ("num_heads", "num_attention_heads", "n_heads")
# Where a layer has its widths; the second name is of the Conv1D of transformers.
_INPUTS, _OUTPUTS = ("in_features", "nx"), ("out_features", "nf")
# What compilers, parallel models and PEFT put around modules.
_WRAPPED = {
    "torch": ("_orig_mod", "module", "_fsdp_wrapped_module"),
    "peft": ("base_model", "model", "base_layer"),
}


@dataclass(frozen=True)
class Layout:
    """Where an attention module has its queries and its output weights.

    Set as ``layout`` on a class of attention modules, it lets
    :func:`~probseq.transformers.adapters.replace_attention` know them. The first argument of their
    forward must be tokens ``(batch, ..., dim)``, and what it returns, or the first of it, what
    softmax attention of heads that stand side by side gives behind the output layer.

    Attributes:
        query: name of the layer that gives queries of all heads, side by side.
        out: name of the layer that heads' outputs go through; ``None`` where the module returns
            them side by side.
        fused: whether queries are but the first outputs of that layer, as wide as the inputs of
            ``out``.
        heads: name of the number of heads; ``None`` for ``num_heads``, ``num_attention_heads`` or
            ``n_heads``, of the module or its ``config``.
        norm: name of a layer that each head's queries go through; it may be absent.
        bias: name of a vector that is added to queries; it may be absent.
        empty: attributes that must be absent, None or an identity: with them heads are more than
            softmax attention.

    Example:
        >>> import torch
        >>> from probseq.transformers import Layout
        >>> class MyAttention(torch.nn.Module):
        ...     layout = Layout("to_q", "to_out", heads="heads")
    """

    query: str
    out: str | None
    fused: bool = False
    heads: str | None = None
    norm: str | None = None
    bias: str | None = None
    empty: tuple[str, ...] = ()

    def layers(self) -> tuple[str, ...]:
        """Return the names of layers that a module must have."""
        return tuple(name for name in (self.query, self.out) if name)

    def count(self, module: Any) -> int:
        """Return the number of heads.

        Raises:
            ValueError: a module does not tell it.
        """
        names = (self.heads,) if self.heads else _COUNTS
        for owner in (module, getattr(module, "config", None)):
            for name in names:
                if hasattr(owner, name):
                    return int(getattr(owner, name))
        raise ValueError(f"{type(module).__name__} must have a number of heads: {', '.join(names)}")

    def widths(self, module: Any) -> tuple[int, int]:
        """Return the widths of all queries and of all heads' outputs.

        Raises:
            ValueError: a layer has no number of features.
        """
        value = None if self.out is None else _features(module, self.out, _INPUTS)
        if self.fused and value is not None:
            return value, value
        query = _features(module, self.query, _OUTPUTS)
        return query, query if value is None else value

    def token_widths(self, module: Any) -> set[int]:
        """Return the widths of tokens that a module takes and returns."""
        back = set() if self.out is None else {_features(module, self.out, _OUTPUTS)}
        return {_features(module, self.query, _INPUTS)} | back

    def queries(self, module: Any, x: Tensor) -> Tensor:
        """Compute the heads' queries side by side, ``(..., heads * query)``, by the layer."""
        queries: Tensor = getattr(module, self.query)(x)
        if self.fused:
            queries = queries[..., : self.widths(module)[0]]
        bias = getattr(module, self.bias or "", None)
        norm = getattr(module, self.norm or "", None)
        if bias is not None:
            queries = queries + bias
        if norm is None:
            return queries
        return norm(queries.unflatten(-1, (self.count(module), -1))).flatten(-2)

    def project(self, module: Any, heads: Tensor) -> Tensor:
        """Return by how much the output changes where heads' outputs change, by the layer."""
        if self.out is None:
            return heads
        layer = getattr(module, self.out)
        if type(layer).forward is nn.Linear.forward:
            return F.linear(heads, layer.weight)
        # Whatever else is there, like LoRA; not its hooks, which expect the heads' outputs.
        return layer.forward(heads) - layer.forward(heads.new_zeros(1, heads.shape[-1]))


class _InProjection(Layout):
    """That of ``nn.MultiheadAttention``, which reads weights past its layers."""

    def widths(self, module: nn.MultiheadAttention) -> tuple[int, int]:
        return module.embed_dim, module.embed_dim

    def token_widths(self, module: nn.MultiheadAttention) -> set[int]:
        return {module.embed_dim}

    def queries(self, module: nn.MultiheadAttention, x: Tensor) -> Tensor:
        dim, bias = module.embed_dim, getattr(module, "in_proj_bias", None)
        weight = getattr(module, "in_proj_weight", None)
        rows = module.q_proj_weight if weight is None else weight[:dim]
        return F.linear(x, rows, None if bias is None else bias[:dim])

    def project(self, module: nn.MultiheadAttention, heads: Tensor) -> Tensor:
        return F.linear(heads, module.out_proj.weight)


def _features(module: Any, layer: str, names: tuple[str, ...]) -> int:
    for name in names:
        width = getattr(getattr(module, layer), name, None)
        if isinstance(width, int):
            return width
    raise ValueError(
        f"{layer} of {type(module).__name__} must tell its {names[0]}, and does not, a "
        f"{type(getattr(module, layer)).__name__}"
    )


def layout_of(module: nn.Module) -> Layout:
    """Return the layout of an attention module that is known."""
    layout = _known(module)
    assert layout is not None
    return layout


def _known(module: nn.Module) -> Layout | None:
    """Return a module's layout; none of subclasses with a forward of their own."""
    layout = getattr(type(module), "layout", None)
    if isinstance(layout, Layout):
        return layout
    for cls in type(module).__mro__:
        homes, layout = _LAYOUTS.get(cls.__name__, ((), _BERT))
        if f"{cls.__module__}.".startswith(homes):
            there = all(hasattr(module, name) for name in layout.layers())
            return layout if there and (not layout.fused or _in_thirds(layout, module)) else None
        if "forward" in vars(cls) and not issubclass(cls, Changed):
            return None
    return None


def _in_thirds(layout: Layout, module: Any) -> bool:
    """Whether queries, keys and values have a third of a projection each."""
    if isinstance(layout, _InProjection):
        return True
    width = _features(module, layout.query, _OUTPUTS)
    return width == 3 * _features(module, str(layout.out), _INPUTS)


def plain_name(model: Any, name: str) -> str:
    """Return a module's or a weight's name without what compilers and the like put around."""
    names, owner = list[str](), model
    for step in name.split("."):
        library = type(owner).__module__.partition(".")[0]
        if step not in _WRAPPED.get(library, ()):
            names.append(step)
        owner = getattr(owner, step, None)
    return ".".join(names)


def find_attention(model: nn.Module) -> dict[str, nn.Module]:
    """Return the attention modules of a model by their names, in order.

    Raises:
        ValueError: there is none that is known.
    """
    layers = {
        plain_name(model, name): module
        for name, module in model.named_modules()
        if _known(module) is not None
    }
    if not layers:
        seen = {type(module): _named(type(module)) for module in model.modules()}
        # Subclasses with a forward of their own are not known, whatever they are called.
        like = [name for cls, name in seen.items() if "attention" in str(cls.__mro__).lower()]
        raise ValueError(
            f"model must have attention that is known ({', '.join(_LAYOUTS)}, or a class with a "
            f"Layout), and has none among its modules: {', '.join(sorted(like or seen.values()))}"
        )
    return layers


def _named(cls: type[nn.Module]) -> str:
    """Return a class's name, and where it is if others have that name."""
    return f"{cls.__module__}.{cls.__name__}" if cls.__name__ in _LAYOUTS else cls.__name__


def check_layout(name: str, module: nn.Module) -> Layout:
    """Return the layout of an attention module.

    Raises:
        ValueError: the heads' outputs do not go through the output weights alone, their widths
            differ, or the module's forward is not that of its class.
    """
    layout = layout_of(module)
    who = f"{name or 'the model'}, a {type(module).__name__},"
    for layer in layout.layers():
        if not hasattr(module, layer):
            raise ValueError(f"{who} must have what its layout names, and has no {layer!r}")
    for attribute in layout.empty:
        if not isinstance(getattr(module, attribute, None), nn.Identity | None):
            raise ValueError(
                f"{who} cannot have a deviation: with its {attribute} a head is not softmax "
                "attention through the output weights alone"
            )
    if "forward" in vars(module):
        raise ValueError(
            f"{who} cannot have a deviation: its forward was set on it, as hooks of accelerate do, "
            "and would go past; put in the deviation first"
        )
    heads, (width, value) = layout.count(module), layout.widths(module)
    if width % heads or value % heads:
        raise ValueError(
            f"{who} must have heads of equal widths, got {heads} heads for queries of width "
            f"{width} and values of width {value}"
        )
    return layout


# Where classes are, for other models of timm call other things Attention.
_VISION = (
    *(f"timm.models.{name}." for name in ("vision_transformer", "beit", "metaformer", "volo")),
    *("timm.models.swin_transformer", "timm.layers.attention.", "torchvision.models."),
)
_TEXT = "transformers.models."
_QKV = Layout(
    *("qkv", "proj", True),
    norm="q_norm",
    bias="q_bias",
    # The last two: queries of cosine attention are normalised by other means.
    empty=("norm", "gate", "logit_scale", "cpb_mlp"),
)
_BERT, _LLAMA = (Layout(*names, norm="q_norm") for names in (("query", None), ("q_proj", "o_proj")))
_LAYOUTS: dict[str, tuple[str | tuple[str, ...], Layout]] = {
    "MultiheadAttention": ("torch.", _InProjection("in_proj_weight", "out_proj", True)),
    **dict.fromkeys(("Attention", "WindowAttention"), (_VISION, _QKV)),
    **dict.fromkeys(("ShiftedWindowAttention", "ShiftedWindowAttentionV2"), (_VISION, _QKV)),
    **{
        f"{model}SelfAttention": (_TEXT, _BERT)
        for model in ("ViT", "Dinov2", "Bert", "Roberta", "XLMRoberta", "Electra")
    },
    **{
        f"{model}Attention": (_TEXT, _LLAMA)
        for model in ("ViT", "DeiT", "Dinov2", "Llama", "Mistral", "Qwen2", "Qwen3")
    },
    "DistilBertSelfAttention": (_TEXT, Layout("q_lin", "out_lin")),
    "GPT2Attention": (_TEXT, Layout("c_attn", "c_proj", True, empty=("q_attn",))),
}
