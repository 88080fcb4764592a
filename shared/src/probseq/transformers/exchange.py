"""Attention layers of a method's own, in place of those of models that one has.

For methods that need tokens, and not queries alone. A new layer knows nothing: train it, with the
other weights frozen or at a tenth of its rate.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from probseq.transformers.adapters import (
    Guest,
    Layers,
    choose_layers,
    guests,
    switch_off_nested_tensors,
    tokens_of,
)
from probseq.transformers.layouts import check_layout, count_heads, find_attention
from probseq.transformers.protocol import AttentionModule

M = TypeVar("M", bound=nn.Module)
# Layers in which each token attends to all real ones, by nothing but queries and keys.
_PLAIN = (
    *("MultiheadAttention", "Attention", "ViTAttention", "ViTSelfAttention"),
    *("Dinov2Attention", "Dinov2SelfAttention"),
    *("BertSelfAttention", "RobertaSelfAttention", "DistilBertSelfAttention"),
)


class ExchangedAttention(Guest):
    """A method's layer, called and answering as the layer did whose place it has.

    Args:
        attention: the method's layer.
        old: the layer whose place it takes; not a part of this one.
    """

    # Encoders of torch would go past `forward` in evaluation, were there such a bias.
    in_proj_bias = None

    def __init__(self, attention: nn.Module, old: nn.Module) -> None:
        super().__init__()
        self.attention = attention
        # What encoders of torch look at.
        self.batch_first: bool = getattr(old, "batch_first", True)
        self.num_heads = count_heads(old)
        self._qkv_same_embed_dim = True
        # Layers of timm return a tensor, all others two values, of which the second is weights.
        self.alone = type(old).__module__.startswith("timm.")
        self.penalties: list[Tensor] | None = None

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Attend.

        Raises:
            ValueError: the call is of attention to another sequence, or has a mask that is more
                than one of real tokens.
        """
        x = tokens_of(self, inputs, named)
        values, penalty = self.attention(x, self._real(x, inputs, named), generator=self.generator)
        if self.penalties is not None:
            self.penalties.append(penalty)
        if not self.batch_first:
            values = values.transpose(0, 1)
        return values if self.alone else (values, None)

    def _real(self, x: Tensor, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor | None:
        """Return where tokens are real, ``(batch, tokens)``."""
        first = inputs[0] if inputs else next(iter(named.values()))
        others = (*inputs[1:3], named.get("key"), named.get("value"))
        others = (*others, named.get("encoder_hidden_states"))
        if any(isinstance(o, Tensor) and o.ndim == 3 and o is not first for o in others):
            raise ValueError(
                "query, key and value must be one tensor: cross-attention is not known"
            )
        if named.get("is_causal") or named.get("past_key_values") is not None:
            raise ValueError("attention must be to all tokens, got a causal call")
        padding = named.get("key_padding_mask")  # here a mask hides
        if padding is not None:
            return padding == 0
        mask = named.get("attention_mask", named.get("attn_mask"))
        if mask is None:
            return None
        rows = mask.expand(len(x), *mask.shape[1:]) if mask.ndim in (2, 4) else mask
        allowed = rows == 0 if rows.is_floating_point() else rows.bool()
        row = allowed[:, 0, 0] if allowed.ndim == 4 else allowed
        same = allowed.ndim == 2 or bool((allowed == row[:, None, None]).all())
        if row.shape != x.shape[:2] or not same:
            raise ValueError(
                "the mask must be one of real tokens, the same for all heads and queries, got "
                f"shape {tuple(mask.shape)}"
            )
        return row


def exchange_attention(
    model: M, make: Callable[[int, int], nn.Module], *, layers: Layers = "last"
) -> M:
    """Put layers of a method's own in the place of attention layers, in place.

    :func:`~probseq.transformers.adapters.remove_attention` takes them out again. Until then the
    weights of the old layers are not among the model's.

    Args:
        model: of ``nn.MultiheadAttention``, timm's ``Attention``, or ViT, BERT, RoBERTa and
            DistilBERT of transformers.
        make: makes a layer, see :class:`~probseq.transformers.protocol.AttentionModule`, from
            token width and number of heads.
        layers: ``"last"``, ``"all"``, indices (negative ones count from the end) or names.

    Returns:
        The model.

    Raises:
        ValueError: the model has no attention that is known, a layer is not there or is more than
            attention of all tokens to all, or what was made is no attention module. The model is as
            it was.
    """
    found = find_attention(model)
    names = choose_layers(list(found), layers)
    made = {name: _make(name, found[name], make) for name in names}
    places = list(model.named_modules(remove_duplicate=False))
    for name, new in made.items():
        for place, module in places:
            if module is found[name]:  # at several, where layers are shared
                owner, _, attribute = place.rpartition(".")
                parent = model.get_submodule(owner)
                new.undo.append(_PutBack(parent, attribute, module, new))
                setattr(parent, attribute, new)
        new.undo += switch_off_nested_tensors(model)
    return model


@contextmanager
def collect_penalties(model: nn.Module) -> Generator[list[Tensor]]:
    """Collect the penalties of exchanged layers, of each call inside, in the order of the calls.

    Sum them inside: activation checkpointing calls layers again in the backward pass.

    Raises:
        ValueError: the model has no such layer.
    """
    found = [guest for guest in guests(model) if isinstance(guest, ExchangedAttention)]
    if not found:
        raise ValueError("model must have an exchanged layer: use exchange_attention")
    penalties: list[Tensor] = []
    before = [one.penalties for one in found]
    for one in found:
        one.penalties = penalties
    try:
        yield penalties
    finally:
        for one, old in zip(found, before, strict=True):
            one.penalties = old


class _PutBack(NamedTuple):
    """Puts a layer back, where and as its successor is."""

    parent: nn.Module
    name: str
    old: nn.Module
    new: nn.Module

    def __call__(self) -> None:
        first = next(self.new.parameters(), torch.empty(0))
        setattr(self.parent, self.name, self.old.to(first.device).train(self.new.training))


def _make(name: str, module: Any, make: Callable[[int, int], nn.Module]) -> ExchangedAttention:
    kind = type(module).__name__
    causal = getattr(module, "is_decoder", False) or getattr(module, "is_causal", False)
    if kind not in _PLAIN or causal or not name:
        raise ValueError(
            f"{name or 'the model itself'}, a {kind}, cannot be exchanged: it must be a part of "
            f"the model, of {', '.join(_PLAIN)}, and let all tokens attend to all"
        )
    layout = check_layout(name, module)
    width, out = layout.width(module), layout.out(module)
    if out is not None and out.shape[0] != out.shape[1]:
        raise ValueError(
            f"{name}, a {kind}, must return tokens as wide as its heads are together, got "
            f"{out.shape[0]} for {out.shape[1]}"
        )
    first = next(module.parameters())
    made = make(width, count_heads(module))
    if not isinstance(made, AttentionModule):
        raise ValueError(f"make must return an attention module, got {type(made).__name__}")
    dtype = first.dtype if first.dtype == torch.float64 else torch.float32
    return ExchangedAttention(made.to(first.device, dtype), module).train(module.training)
