"""ImageGPT and VideoGPT: each token given all before it (thesis section 5.3, Table D.2).

Differences from VideoGPT's code: tokens have embeddings of the prior's own instead of the
tokenizer's codes, so that a prior is trained on stored tokens alone; positions of the axes are
summed, not concatenated; the first input is learned, not zero; no dropout.
"""

from collections.abc import Iterator
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, Integer
from torch import Tensor, nn

from probseq.checks import check_counts
from pseudovideo.labels import NO_CLASSES, Classes, check_labels, dropped_labels, sample_classes
from pseudovideo.layers import Block, StackDecoder
from pseudovideo.pretrained import check_weights
from pseudovideo.priors.base import AxisPositions, TokenPrior
from pseudovideo.priors.sampling import check_options, draw
from pseudovideo.spec import AutoregressiveConfig


class AutoregressivePrior(TokenPrior):
    """p(tokens) = Π p(token i | tokens before i) by a causal transformer.

    Tokens are ordered slot by slot, the blurriest first, each slot row by row. What predicts token
    i sees token i − 1 (a learned start for the first) plus the position of token i, which is a sum
    of one learned vector per axis. Of a prior with classes each has a start of its own.
    """

    config_class = AutoregressiveConfig
    config: AutoregressiveConfig

    def __init__(self, config: AutoregressiveConfig) -> None:
        super().__init__(config)
        rows = () if config.num_tokens is None else (config.num_tokens,)
        self.start = nn.Parameter(0.02 * torch.randn(*rows, config.dim))
        self.embedding = nn.Embedding(config.codebook_size, config.dim)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.positions = AxisPositions(config.grid, config.dim)
        self.blocks = nn.ModuleList(
            Block(config.dim, config.num_heads, gated=False) for _ in range(config.depth)
        )
        self.norm = nn.LayerNorm(config.dim)
        self.head = nn.Linear(config.dim, config.codebook_size, bias=False)
        # Every token is as likely as any other before training, as in VideoGPT.
        nn.init.zeros_(self.head.weight)

    def forward(
        self, tokens: Integer[Tensor, "b t h w"], labels: Int64[Tensor, " b"] | None = None
    ) -> Float[Tensor, "b n K"]:
        """Return logits of each token given those before it.

        Where the prior has classes, ``labels`` has that of each; `num_classes` itself says nothing
        of the class, where the prior was trained with `label_dropout`.
        """
        check_labels(labels, self.config, len(tokens), none=True)
        return self._logits(self._sequences(tokens)[:, :-1], labels)

    def loss(
        self,
        tokens: Integer[Tensor, "b t h w"],
        labels: Int64[Tensor, " b"] | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, ""]:
        """Return the mean of −log p(token | tokens before it); see `TokenPrior.loss`."""
        sequences = self._sequences(tokens)
        tokens_of_classes = dropped_labels(labels, self, len(tokens), generator)
        logits = self._logits(sequences[:, :-1], tokens_of_classes)
        return F.cross_entropy(logits.flatten(0, 1), sequences.flatten())

    def sample_tokens(
        self,
        n: int,
        *,
        labels: Int64[Tensor, " n"] | None = None,
        guidance: float = 1.0,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        generator: torch.Generator | None = None,
        cache: bool = True,
    ) -> Int64[Tensor, "n t h w"]:
        """Draw token grids, one token after the other, all grids at once.

        With the options of `TokenPrior.sample_tokens`: `top_k` draws from so many of the most
        likely tokens only, `top_p` from the smallest set of likely tokens that has this mass. With
        `cache` the keys and values of earlier tokens are kept; without it everything is computed
        anew at each token: slower, and the same up to rounding.
        """
        check_counts(n=n)
        check_options(temperature=temperature, top_k=top_k, top_p=top_p)
        check_weights(self)
        device = self.start.device
        classes = sample_classes(
            self.config, n, labels, guidance, generator=generator, device=device
        )
        # The cached steps are plain products of the weights, which autocast would mix with others.
        with torch.inference_mode(), torch.autocast(device.type, enabled=False):
            tokens = torch.empty(n, self.grid.num_tokens, dtype=torch.int64, device=device)
            step = self._cached if cache else self._recomputed
            for i, logits in enumerate(step(tokens, classes)):
                tokens[:, i] = draw(
                    classes.apply_guidance(logits),
                    temperature=temperature,
                    top_k=top_k,
                    top_p=top_p,
                    generator=generator,
                )
        # A copy from outside of inference mode may enter a loss.
        return tokens.clone().view(n, *self.grid.shape)

    def _stack(self) -> list[Block]:
        return cast("list[Block]", list(self.blocks))

    def _starts(self, batch: int, labels: Tensor | None) -> Float[Tensor, "b d"]:
        return self.start.expand(batch, -1) if labels is None else F.embedding(labels, self.start)

    def _logits(
        self, before: Int64[Tensor, "b m"], labels: Int64[Tensor, " b"] | None = None
    ) -> Float[Tensor, "b m+1 K"]:
        """Return logits of the first m + 1 tokens, given the first m."""
        start = self._starts(len(before), labels)[:, None]
        x = torch.cat([start, self.embedding(before)], dim=1)
        x = x + self.positions()[: x.shape[1]]
        for block in self._stack():
            x = block(x, causal=True)
        return self.head(self.norm(x))

    def _recomputed(
        self, tokens: Int64[Tensor, "b n"], classes: Classes = NO_CLASSES
    ) -> Iterator[Float[Tensor, "m K"]]:
        """Yield logits of one token after the other, while the caller fills them in."""
        for i in range(tokens.shape[1]):
            yield self._logits(classes.duplicate_for_guidance(tokens[:, :i]), classes.tokens)[:, -1]

    def _cached(
        self, tokens: Int64[Tensor, "b n"], classes: Classes = NO_CLASSES
    ) -> Iterator[Float[Tensor, "m K"]]:
        """Yield the same through the keys and values of earlier tokens."""
        batch, length = len(classes.duplicate_for_guidance(tokens)), tokens.shape[1]
        decoder = StackDecoder(self._stack(), batch, length)
        embedding, head = self.embedding.weight, self.head.weight.t().contiguous()
        width, scale, shift = self.start.shape[-1:], self.norm.weight, self.norm.bias
        x = self._starts(batch, classes.tokens)
        for i, position in enumerate(self.positions()):
            if i:
                x = F.embedding(classes.duplicate_for_guidance(tokens[:, i - 1]), embedding)
            x = decoder.step(x + position)
            yield torch.mm(torch.layer_norm(x, width, scale, shift), head)
