"""VideoGPT's sampler, step by step: slow, for tests and the benchmark."""

import itertools
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pseudovideo.layers import Block
from pseudovideo.priors.autoregressive import AutoregressivePrior

Place = tuple[int, ...]


class VideoGPTSampler:
    """Draws one token after the other as VideoGPT does, by the weights of a prior.

    Written from a description of its code (Yan et al. 2021, `videogpt/attention.py`, `gpt.py`). At
    each token the whole stack is called for a sequence of length one; codes, 256 wide, and
    positions of the whole grid are put together, and one of them used; queries, keys and values
    come from three maps; attention runs over arrays of zeros of the grid's shape with a row of the
    causal mask; LayerNorm is written out; the drawn token's loss is computed. What is left out
    costs VideoGPT more: its GELU in three calls, dropout, and conditioning.
    """

    def __init__(self, prior: AutoregressivePrior) -> None:
        self.prior, dim, start = prior, prior.config.dim, prior.start
        # The projected code of a token is the prior's embedding of it.
        self._codes = F.pad(prior.embedding.weight.detach(), (0, 256 - dim))
        self._fc_in = torch.eye(dim, 256).to(start)
        self._mask = torch.ones(prior.grid.num_tokens, prior.grid.num_tokens).tril().to(start)
        blocks = cast("list[Block]", list(prior.blocks))
        self._blocks = [_StepBlock(block, prior.grid.shape) for block in blocks]

    @torch.no_grad()
    def sample_tokens(self, n: int, steps: int | None = None) -> Tensor:
        """Draw token grids (n, t, h, w); of those after so many steps the rest are zeros."""
        shape = self.prior.grid.shape
        tokens = torch.zeros(n, *shape, dtype=torch.int64, device=self._codes.device)
        places = list(itertools.product(*map(range, shape)))[:steps]
        for step, place in enumerate(places):
            before = places[max(step - 1, 0)]
            probabilities = self.logits(tokens, before, place, step).softmax(dim=-1)
            tokens[:, *place] = torch.multinomial(probabilities, 1)[:, 0]
        return tokens

    def logits(self, tokens: Tensor, before: Place, place: Place, step: int) -> Tensor:
        """Return logits (n, K) of the token at a place; the one before passes through the stack."""
        prior = self.prior
        x = F.linear(F.embedding(tokens, self._codes)[_at(before)], self._fc_in)
        if step == 0:
            x = prior.start.expand_as(x)
        x = x + prior.positions().unflatten(0, prior.grid.shape)[None][_at(place)]
        for block in self._blocks:
            x = block(x, place, step, self._mask)
        logits = prior.head(_written_norm(prior.norm, x))
        F.cross_entropy(logits.movedim(-1, 1), tokens[_at(before)])
        return logits.flatten(1)


class _StepBlock:
    def __init__(self, block: Block, shape: tuple[int, int, int]) -> None:
        self._block, self._shape = block, shape
        self._maps = block.attention.to_qkv.weight.detach().chunk(3)
        self._keys = self._values = self._maps[0].new_empty(0)

    def __call__(self, x: Tensor, place: Place, step: int, mask: Tensor) -> Tensor:
        x = x + self._attention(_written_norm(self._block.norm_attention, x), place, step, mask)
        net = self._block.feedforward
        return x + net.outer(F.gelu(net.inner(_written_norm(self._block.norm_feedforward, x))))

    def _attention(self, x: Tensor, place: Place, step: int, mask: Tensor) -> Tensor:
        # (n, 1, 1, 1, d) → (n, heads, 1, 1, 1, c)
        attention = self._block.attention
        q, k, v = (
            F.linear(x, weight).unflatten(-1, (attention.num_heads, -1)).movedim(-2, 1).contiguous()
            for weight in self._maps
        )
        if step == 0:
            shape = (*q.shape[:2], *self._shape, q.shape[-1])
            self._keys, self._values = q.new_zeros(shape), q.new_zeros(shape)
        slot = (slice(None), *_at(place))
        self._keys[slot], self._values[slot] = k, v
        q, k, v = (part.flatten(2, -2) for part in (q, self._keys, self._values))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(mask[[step]] == 0, -torch.inf)
        out = (scores.softmax(dim=-1) @ v).movedim(1, -2).contiguous()
        return attention.to_out(out.flatten(-2)[:, :, None, None])


def _written_norm(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    mean = x.mean(dim=-1, keepdim=True)
    variance = (x - mean).square().mean(dim=-1, keepdim=True)
    return (x - mean) * (variance + norm.eps).rsqrt() * norm.weight + norm.bias


def _at(place: Place) -> tuple[slice, ...]:
    # The index of one place of grids, with all dimensions kept.
    return (slice(None), *(slice(i, i + 1) for i in place))
