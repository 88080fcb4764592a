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
    as_tokens,
    choose_layers,
    guests,
    like,
    switch_off_nested_tensors,
    tokens_of,
)
from probseq.transformers.calls import State, acting, argument_names, with_state
from probseq.transformers.layouts import check_layout, find_attention, layout_of
from probseq.transformers.protocol import AttentionModule

M = TypeVar("M", bound=nn.Module)
# Layers in which each token attends to all real ones, by nothing but queries and keys.
_PLAIN = (
    *("MultiheadAttention", "Attention", "ViTAttention", "ViTSelfAttention", "DeiTAttention"),
    *("Dinov2Attention", "Dinov2SelfAttention", "DistilBertSelfAttention", "BertSelfAttention"),
    *("RobertaSelfAttention", "XLMRobertaSelfAttention", "ElectraSelfAttention"),
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
        self.num_heads = layout_of(old).count(old)
        self._qkv_same_embed_dim = True
        self.names = argument_names(type(old))
        self.library = type(old).__module__.partition(".")[0]

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Attend.

        Raises:
            ValueError: the call is of attention to another sequence, or has a mask that is more
                than one of real tokens.
        """
        named = dict(zip(self.names, inputs, strict=False)) | named
        first: Tensor = named.pop(self.names[0])
        # In full precision where the model is halved.
        x = tokens_of(self, first.to(next(self.attention.parameters(), first).dtype))
        values: Tensor = self._attend(x, self._real(x, first, named)).to(first.dtype)
        values = as_tokens(self, values, first)
        # Of all others the second value is weights.
        return values if self.library == "timm" else (values, None)

    @with_state
    def _attend(self, state: State, x: Tensor, real: Tensor | None) -> Tensor:
        state.reached(len(x))
        values, penalty = self.attention(x, real, generator=state.generator)
        if state.penalties is not None:
            state.penalties.append(penalty)
        return values

    def _real(self, x: Tensor, first: Tensor, named: Mapping[str, Any]) -> Tensor | None:
        """Return where tokens are real, ``(batch, tokens)``."""
        if named.get("is_causal") or named.get("past_key_values") is not None:
            raise ValueError("attention must be to all tokens, got a causal call")
        rows = list[Tensor]()
        for name, value in named.items():
            if name == "key_padding_mask" and value is not None:
                rows.append(~_hidden(value, True).reshape(x.shape[:2]))
            elif name in ("attn_mask", "attention_mask") and value is not None:
                rows.append(self._shown(x, value))
            elif isinstance(value, Tensor) and not (value is first and name in ("key", "value")):
                raise ValueError(
                    "query, key and value must be one tensor, with no more than a mask: "
                    f"cross-attention and positions are not known, got {name}"
                )
        return torch.stack(rows).all(0) if rows else None

    def _shown(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the tokens that a mask of attention shows to all, ``(batch, tokens)``."""
        shown = ~_hidden(mask, self.library == "torch")
        if self.library == "transformers" and shown.ndim == 2:  # that of its fused kernels
            return shown
        row, same = shown.new_ones(x.shape[:2]), bool(shown.all())
        if shown.ndim == 4:  # batch, heads, queries, keys
            shown = shown.expand(len(x), *shown.shape[1:])
            row = shown[:, 0, 0]
            same = bool((shown == row[:, None, None]).all())
        if row.shape != x.shape[:2] or not same:
            raise ValueError(
                "the mask must be one of real tokens, the same for all heads and queries, got "
                f"shape {tuple(mask.shape)}"
            )
        return row


def _hidden(mask: Tensor, hides: bool) -> Tensor:
    """Return what a mask hides: a boolean or whole number one hides or shows."""
    if not mask.is_floating_point():
        return (mask != 0) == hides
    if bool(((mask != 0) & (mask > -1e4)).any()):
        raise ValueError("the mask must be one of real tokens, got one with a bias")
    return mask != 0


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

    Raises:
        ValueError: the model has no attention that is known, a layer is not there or is more than
            attention of all tokens to all, or what was made is no attention module. The model is as
            it was.
    """
    layers_by_name = find_attention(model)
    names = choose_layers(list(layers_by_name), layers)
    made = {name: _make(name, layers_by_name[name], make) for name in names}
    places = list(model.named_modules(remove_duplicate=False))
    for name, new in made.items():
        for place, module in places:
            if module is layers_by_name[name]:  # at several, where layers are shared
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
    exchanged = [guest for guest in guests(model) if isinstance(guest, ExchangedAttention)]
    if not exchanged:
        raise ValueError("model must have an exchanged layer: use exchange_attention")
    penalties: list[Tensor] = []
    with acting(exchanged, penalties=penalties):
        yield penalties


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
    more = ("is_decoder", "is_causal", "window_size")  # the last with a bias of positions
    if kind not in _PLAIN or not name or any(getattr(module, each, False) for each in more):
        raise ValueError(
            f"{name or 'the model itself'}, a {kind}, cannot be exchanged: it must be a part of "
            f"the model, of {', '.join(_PLAIN)}, and let all tokens attend to all"
        )
    width = (layout := check_layout(name, module)).widths(module)[0]
    if {width} != (ends := layout.token_widths(module)):
        raise ValueError(
            f"{name}, a {kind}, must take and return tokens as wide as its heads are together, got "
            f"{sorted(ends)} for {width}"
        )
    made = make(width, layout.count(module))
    if not isinstance(made, AttentionModule):
        raise ValueError(f"make must return an attention module, got {type(made).__name__}")
    return ExchangedAttention(like(module, made), module).train(module.training)
