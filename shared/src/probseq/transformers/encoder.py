"""The stack of blocks: attention, residual, norm, MLP, with the penalty summed on the way.

NaN and infinity in a tensor reach the result.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from probseq.transformers.outputs import AttentionOutput
from probseq.transformers.protocol import TokenMap, check_num_samples, check_tokens
from probseq.transformers.sampling import repeat_samples
from probseq.transformers.spec import AttentionConfig, BlockContext, TransformerConfig

AttentionFactory = Callable[[int], nn.Module]


class ConfiguredAttention(NamedTuple):
    """Attention of settings: called with a block's index, it builds the module of that block."""

    config: AttentionConfig
    context: BlockContext

    def __call__(self, index: int) -> nn.Module:
        """Build the attention module of a block."""
        return self.config.build(self.context._replace(block=index))

    def to_dict(self) -> dict[str, Any]:
        """Return all but the backbone, ready for JSON, with the dotted name of the settings."""
        kind, context = type(self.config), self.context._asdict()
        name = f"{kind.__module__}.{kind.__qualname__}"
        context = {key: context[key] for key in context if key not in ("backbone", "block")}
        return {"class": name, "settings": self.config.to_dict(), "context": context}


class FeedForward(nn.Sequential):
    """Linear, GELU, Linear, with dropout after each."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(
            nn.Linear(config.dim, config.hidden_dim),
            nn.GELU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.hidden_dim, config.dim),
            nn.Dropout(config.dropout),
        )


class Encoder(nn.Module):
    """Transformer encoder around any attention module of the common protocol.

    ``attention`` is called with each block's index and returns its attention module.
    """

    def __init__(self, config: TransformerConfig, attention: AttentionFactory) -> None:
        super().__init__()
        self.config = config
        # On the embeddings; here, because each sample needs its own mask.
        self.dropout = nn.Dropout(config.dropout)
        self.attention = nn.ModuleList(attention(index) for index in range(config.depth))
        self.feedforward = nn.ModuleList(FeedForward(config) for _ in range(config.depth))
        num_norms = 1 if config.shared_norm else 2 * config.depth
        self.norms = nn.ModuleList(nn.LayerNorm(config.dim) for _ in range(num_norms))

    def forward(
        self,
        x: Float[Tensor, "batch tokens dim"],
        mask: Bool[Tensor, "batch tokens"] | None = None,
        *,
        generator: torch.Generator | None = None,
        num_samples: int | None = None,
    ) -> tuple[Float[Tensor, "folded tokens dim"], Float[Tensor, ""]]:
        """Run all blocks.

        With ``num_samples`` the batch is folded out where the first random draw happens: what
        comes before is computed once. Without it there is a single unfolded pass.

        Returns:
            Token values, ``(S * batch, tokens, dim)`` if samples were asked for, and the sum of the
            layers' penalties.
        """
        check_tokens(x, mask, self.config.dim, getattr(self.norms[0], "weight", x), half=True)
        check_num_samples(num_samples)
        if num_samples is not None and self._dropout_is_active():
            # Dropout draws too: each sample needs its own masks from the first layer on.
            x = repeat_samples(x, num_samples)
            mask = None if mask is None else repeat_samples(mask, num_samples)
            num_samples = None

        x, penalty = self.dropout(x), torch.zeros((), device=x.device)
        for index, attention in enumerate(self.attention):
            draws = num_samples if attention.stochastic else None
            attended: AttentionOutput = attention(
                self._attention_input(index, x),
                mask,
                token_map=self._token_map(index),
                generator=generator,
                num_samples=draws,
            )
            if draws is not None:  # from here on the samples are rows of the batch
                x = repeat_samples(x, draws)
                mask = None if mask is None else repeat_samples(mask, draws)
                num_samples = None
            x = x + attended.values
            if self.config.norm == "post":
                x = self._norm(2 * index)(x)
            x = self._feedforward(index, x)
            penalty = penalty + attended.penalty
        if num_samples is not None:  # nothing random on the way: the samples are equal
            x = repeat_samples(x, num_samples)
        return x, penalty

    def _norm(self, index: int) -> nn.Module:
        return self.norms[index % len(self.norms)]

    def _attention_input(self, index: int, x: Tensor) -> Tensor:
        return self._norm(2 * index)(x) if self.config.norm == "pre" else x

    def _feedforward(self, index: int, x: Tensor) -> Tensor:
        norm, mlp = self._norm(2 * index + 1), self.feedforward[index]
        return x + mlp(norm(x)) if self.config.norm == "pre" else norm(x + mlp(x))

    def _token_map(self, index: int) -> TokenMap | None:
        """Map from block ``index - 1``'s attention output to block ``index``'s attention input."""
        if index == 0:
            return None
        modules = self._norm(2 * index - 1), self.feedforward[index - 1], self._norm(2 * index)

        def between_attentions(x: Tensor) -> Tensor:
            return self._attention_input(index, self._feedforward(index - 1, x))

        return TokenMap(between_attentions, modules)

    def _dropout_is_active(self) -> bool:
        return any(
            isinstance(module, nn.Dropout) and module.training and module.p > 0
            for module in self.modules()
        )


@contextmanager
def without_attention(model: nn.Module) -> Generator[None]:
    """Make all attention layers of a transformer give zeros, and what they give again at the end.

    Tokens no longer see each other: what the model still predicts owes nothing to attention. The
    penalties stay as they are.
    """
    layers = [
        a for module in model.modules() if isinstance(module, Encoder) for a in module.attention
    ]
    handles = [layer.register_forward_hook(_silence) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _silence(layer: nn.Module, args: object, output: AttentionOutput) -> AttentionOutput:
    return AttentionOutput(torch.zeros_like(output[0]), output[1])
