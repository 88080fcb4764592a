"""Base of the backbones: learned positions, class token, padding, encoder and head."""

import torch
from torch import Tensor, nn

from probseq.checks import check_counts
from probseq.transformers.encoder import AttentionFactory, Encoder
from probseq.transformers.outputs import TransformerOutput
from probseq.transformers.pooling import Pooling
from probseq.transformers.sampling import repeat_samples
from probseq.transformers.spec import TransformerConfig


class PooledTransformer(nn.Module):
    """Base class of the backbones that read their outputs off pooled tokens.

    A subclass builds its embedding, checks its inputs and calls ``_classified``. Positions and
    class token start from N(0, 1), as in the code of SGPA and KEP-SVGP: at the scale of embedded
    tokens, so that pooling by the mean sees from the first step on where a token stands.

    With ``pooling="cls"`` a learned token comes in front. ``attention`` is called with each block's
    index and returns its attention module. Outputs are ``logits``, ``(batch, outputs)`` or
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
