"""VideoGPT's sampler, the peer of ours in `probseq bench generate`."""

import itertools
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pseudovideo.layers import Block
from pseudovideo.priors import AutoregressivePrior

Place = tuple[int, ...]


class VideoGPTSampler(nn.Module):
    """Draws one token after the other as VideoGPT does, by the weights of a prior.

    Written from a description of its code (Yan et al. 2021, `videogpt/attention.py`, `gpt.py`). At
    each token the whole stack is called for a sequence of length one; codes, 256 wide, and
    positions of the whole grid are put together, and one of them used; queries, keys and values
    come from three maps; attention runs over arrays of zeros of the grid's shape with a row of the
    causal mask; LayerNorm is written out; the drawn token's loss is computed. What is left out
    costs VideoGPT more: its GELU in three calls, dropout, and conditioning.
    """

    mask: Tensor

    def __init__(self, prior: AutoregressivePrior) -> None:
        super().__init__()
        self.grid, dim = prior.grid, prior.config.dim
        # The projected code of a token is the prior's embedding of it.
        self.codes = nn.Parameter(F.pad(prior.embedding.weight.detach(), (0, 256 - dim)))
        self.fc_in = _linear(torch.eye(dim, 256).to(prior.start))
        self.start, self.positions = prior.start, prior.positions
        blocks = cast("list[Block]", list(prior.blocks))
        self.blocks = nn.ModuleList(_StepBlock(block, prior.grid.shape) for block in blocks)
        self.norm, self.fc_out = _WrittenNorm(prior.norm), prior.head
        length = prior.grid.num_tokens
        self.register_buffer("mask", torch.ones(length, length).tril())

    @torch.no_grad()
    def sample_tokens(self, n: int, steps: int | None = None) -> Tensor:
        """Draw token grids (n, t, h, w); of those after so many steps the rest are zeros."""
        shape = self.grid.shape
        tokens = torch.zeros(n, *shape, dtype=torch.int64, device=self.start.device)
        places = list(itertools.product(*map(range, shape)))[:steps]
        for step, place in enumerate(places):
            before = places[max(step - 1, 0)]
            probabilities = self.logits(tokens, before, place, step).softmax(dim=-1)
            tokens[:, *place] = torch.multinomial(probabilities, 1)[:, 0]
        return tokens

    def logits(self, tokens: Tensor, before: Place, place: Place, step: int) -> Tensor:
        """Return logits (n, K) of the token at a place; the one before passes through the stack."""
        x = self.fc_in(F.embedding(tokens, self.codes)[_at(before)])
        if step == 0:
            x = self.start.expand_as(x)
        places = self.positions
        positions = places.time[:, None, None] + places.rows[:, None] + places.columns
        x = x + positions[None][_at(place)]
        for block in self.blocks:
            x = block(x, place, step, self.mask)
        logits = self.fc_out(self.norm(x))
        F.cross_entropy(logits.movedim(-1, 1), tokens[_at(before)])
        return logits.flatten(1)


class _WrittenNorm(nn.Module):
    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(dim=-1, keepdim=True)
        variance = (x - mean).square().mean(dim=-1, keepdim=True)
        return (x - mean) * (variance + self.eps).rsqrt() * self.weight + self.bias


class _StepBlock(nn.Module):
    def __init__(self, block: Block, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.shape, self.num_heads = shape, block.attention.num_heads
        self.norms = nn.ModuleList(
            map(_WrittenNorm, (block.norm_attention, block.norm_feedforward))
        )
        weights = block.attention.to_qkv.weight.detach().chunk(3)
        self.to_qkv = nn.ModuleList(map(_linear, weights))
        self.to_out, net = block.attention.to_out, block.feedforward
        self.feedforward = nn.Sequential(net.inner, nn.GELU(), net.outer)
        self._keys = self._values = weights[0].new_empty(0)

    def forward(self, x: Tensor, place: Place, step: int, mask: Tensor) -> Tensor:
        x = x + self._attention(self.norms[0](x), place, step, mask)
        return x + self.feedforward(self.norms[1](x))

    def _attention(self, x: Tensor, place: Place, step: int, mask: Tensor) -> Tensor:
        # (n, 1, 1, 1, d) → (n, heads, 1, 1, 1, c)
        q, k, v = (
            to(x).unflatten(-1, (self.num_heads, -1)).movedim(-2, 1).contiguous()
            for to in self.to_qkv
        )
        if step == 0:
            shape = (*q.shape[:2], *self.shape, q.shape[-1])
            self._keys, self._values = q.new_zeros(shape), q.new_zeros(shape)
        slot = (slice(None), *_at(place))
        self._keys[slot], self._values[slot] = k, v
        q, k, v = (part.flatten(2, -2) for part in (q, self._keys, self._values))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(mask[[step]] == 0, -torch.inf)
        out = (scores.softmax(dim=-1) @ v).movedim(1, -2).contiguous()
        return self.to_out(out.flatten(-2)[:, :, None, None])


def _linear(weight: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight = nn.Parameter(weight)
    return layer


def _at(place: Place) -> tuple[slice, ...]:
    # The index of one place of grids, with all dimensions kept.
    return (slice(None), *(slice(i, i + 1) for i in place))
