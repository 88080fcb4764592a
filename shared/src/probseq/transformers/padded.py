"""Base of the backbones: learned positions, class token, padding, encoder and head."""

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from probseq.checks import check_counts
from probseq.pretrained import Model, Pretrained, restored
from probseq.transformers.encoder import AttentionFactory, ConfiguredAttention, Encoder
from probseq.transformers.outputs import TransformerOutput
from probseq.transformers.pooling import Pooling
from probseq.transformers.sampling import repeat_samples
from probseq.transformers.spec import AttentionConfig, BlockContext, TransformerConfig


class PooledTransformer(Pretrained):
    """Base class of the backbones that read their outputs off pooled tokens.

    A subclass builds its embedding, checks its inputs and calls ``_classified``. Positions and
    class token start from N(0, 1), as in the code of SGPA and KEP-SVGP: at the scale of embedded
    tokens, so that pooling by the mean sees from the first step on where a token stands.

    With ``pooling="cls"`` a learned token comes in front. ``attention`` is called with each block's
    index and returns its attention module; with a ``ConfiguredAttention``, as the builders of
    transformers pass, the model can be stored. ``sizes`` are the other arguments of the subclass.
    Outputs are ``logits``, ``(batch, outputs)`` or
    ``(S, batch, outputs)``.
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        embed: nn.Module,
        max_length: int,
        positions: bool,
        num_outputs: int,
        attention: AttentionFactory,
        sizes: Mapping[str, int],
    ) -> None:
        super().__init__()
        self.max_length = max_length
        self.embed = embed
        self.class_token = self.positions = None
        if config.pooling == "cls":
            self.class_token = nn.Parameter(torch.randn(1, 1, config.dim))
        if positions:
            self.positions = nn.Parameter(torch.randn(1, max_length, config.dim))
        self.encoder = Encoder(config, attention)
        self.head = PooledHead(config, num_outputs, max_length)
        self._settings: dict[str, Any] | None = None
        if isinstance(attention, ConfiguredAttention):
            self._settings = {
                "backbone": config.to_dict(),
                "attention": attention.to_dict(),
                "sizes": dict(sizes),
            }

    def to_settings(self) -> dict[str, Any]:
        """Return settings of backbone and attention, and sizes, ready for JSON."""
        if self._settings is None:
            raise ValueError(
                "model must be built of settings of its attention to be stored, as "
                "vision_transformer builds it, got one of a function"
            )
        return self._settings

    @classmethod
    def from_settings(cls: type[Model], settings: Mapping[str, Any]) -> Model:
        """Build a transformer; the package of its attention must have been imported."""
        backbone = restored(TransformerConfig, settings["backbone"])
        stored = settings["attention"]
        attention = restored(_attention_settings(stored["class"]), stored["settings"])
        context = BlockContext(backbone, 0, **stored["context"])
        return cls(backbone, attention=ConfiguredAttention(attention, context), **settings["sizes"])

    def _classified(
        self,
        x: Tensor,
        mask: Tensor | None,
        generator: torch.Generator | None,
        num_samples: int | None,
    ) -> TransformerOutput:
        """Run embedded tokens (B, T, dim), with their mask (B, T), through encoder and head."""
        if self.positions is not None:
            x = x + self.positions[:, : x.shape[1]]
        if self.class_token is not None:
            x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], 1)
            if mask is not None:
                mask = torch.cat([mask.new_ones(x.shape[0], 1), mask], 1)
        x, penalty = self.encoder(x, mask, generator=generator, num_samples=num_samples)
        return TransformerOutput(self.head(x, mask, num_samples), penalty)


def _attention_settings(name: str) -> type[AttentionConfig]:
    """Return a class of settings by its dotted name, of a package that the caller has imported."""
    module, _, class_name = name.rpartition(".")
    package = module.partition(".")[0]
    if package not in sys.modules:  # nothing that a stranger's folder names is imported
        raise ValueError(f"the attention is {name}: import {package} first")
    settings = getattr(import_module(module), class_name, None)
    if not isinstance(settings, type) or not issubclass(settings, AttentionConfig):
        raise ValueError(f"attention must have settings of attention, got {name}")
    return settings


class PooledHead(nn.Module):
    """Norm, pooling and linear layer that read the outputs off the encoded tokens."""

    def __init__(self, config: TransformerConfig, num_outputs: int, max_tokens: int) -> None:
        super().__init__()
        check_counts(num_outputs=num_outputs)
        self.norm = nn.LayerNorm(config.dim) if config.final_norm else nn.Identity()
        self.pooling = Pooling(config.pooling, config.dim, max_tokens)
        self.linear = nn.Linear(self.pooling.output_dim, num_outputs)

    def forward(self, x: Tensor, mask: Tensor | None, num_samples: int | None) -> Tensor:
        """Pool and project tokens (S * B, T, dim) with their mask (B, T); unfold the samples."""
        if mask is not None and num_samples is not None:
            mask = repeat_samples(mask, num_samples)
        outputs = self.linear(self.pooling(self.norm(x), mask))
        return outputs if num_samples is None else outputs.unflatten(0, (num_samples, -1))


def real_tokens(mask: Tensor | None, default: Tensor) -> Tensor:
    """Return the mask (B, T), or ``default`` if there is none; refuse hidden sequences.

    These are looked for in eager mode alone, as that reads values.
    """
    mask = default if mask is None else mask
    if mask.shape != default.shape or mask.dtype != torch.bool:
        raise ValueError(
            f"mask must be boolean of shape {tuple(default.shape)}, got {mask.dtype} of shape "
            f"{tuple(mask.shape)}"
        )
    if not torch.compiler.is_compiling() and not (visible := mask.any(-1)).all():
        hidden = (~visible).nonzero().flatten().tolist()
        raise ValueError(f"mask hides every token of sequences {hidden[:5]}: drop these")
    return mask
