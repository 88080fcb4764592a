"""Attention between the frames of a video, with relative positions (Harvey et al. 2022)."""

from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn


class Memory(NamedTuple):
    """What an attention site keeps of frames, for later frames to attend to.

    Attributes:
        keys: per place d of the image and head h.
        values: likewise.
        temb: the embedding of the frames' diffusion times.
        frames: their numbers in the video.
    """

    keys: Float[Tensor, "b d h k f"]
    values: Float[Tensor, "b d h k f"]
    temb: Float[Tensor, "b k e"]
    frames: Int64[Tensor, "b k"]


class RelativePositions(nn.Module):
    """A vector for each pair of frames: R_ij = W silu(A·temb_i + B·φ(i−j)).

    φ(d) = (log(1+max(d,0)), log(1+max(−d,0)), [d=0]): the signed distance of frame i from j. W is
    zero at first, so that a new network has no positions.

    Args:
        channels: of the site.
        num_heads: heads that the vector is split into.
        time_channels: width of the embedding of diffusion time.
    """

    def __init__(self, channels: int, num_heads: int, time_channels: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.distance = nn.Linear(3, channels)
        self.time = nn.Linear(time_channels, channels)
        self.out = _zero(nn.Linear(channels, channels))

    def forward(
        self, distances: Int64[Tensor, "b i j"], temb: Float[Tensor, "b i e"]
    ) -> Float[Tensor, "b i j h f"]:
        """Vectors of all pairs.

        Args:
            distances: number of frame i less that of frame j.
            temb: embedding of frame i's diffusion time.
        """
        d = distances.to(temb.dtype)
        features = torch.stack(
            [d.clamp_min(0).log1p(), (-d).clamp_min(0).log1p(), (d == 0).to(d.dtype)], dim=-1
        )
        hidden = self.time(temb)[:, :, None] + self.distance(features)
        vectors = self.out(nn.functional.silu(hidden))
        return rearrange(vectors, "b i j (h f) -> b i j h f", h=self.num_heads)


class TemporalAttention(nn.Module):
    """Each place of the image attends over frames; x + Attention(GroupNorm(x)).

    Logits are s·(q_i·k_j + q_i·R^k_ij + k_j·R^q_ji) with s = 1/√f, the result is
    Σ_j a_ij (v_j + R^v_ij) (Wu et al. 2021, eq. 16, on q, k and v). The output map is zero at
    first: a new site leaves frames as they are.

    Deviations from the reference implementation of flexible video diffusion: it normalises each
    place over all frames at once, by which padding and noisy frames would reach the frames that
    don't attend to them; here each frame is normalised over its own places, as spatial attention
    does. And it adds the attention to the normalised frames; here to the frames themselves, so that
    a video of one frame is the image model exactly.

    Args:
        channels: of the site.
        num_heads: heads; must divide `channels`.
        num_groups: of the normalisation.
        time_channels: width of the embedding of diffusion time.
    """

    def __init__(
        self, channels: int, *, num_heads: int, num_groups: int, time_channels: int
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.scale = (channels // num_heads) ** -0.5
        self.norm = nn.GroupNorm(num_groups, channels, eps=1e-5)
        self.to_qkv = nn.Linear(channels, 3 * channels)
        self.to_out = _zero(nn.Linear(channels, channels))
        self.positions_q, self.positions_k, self.positions_v = (
            RelativePositions(channels, num_heads, time_channels) for _ in range(3)
        )

    def forward(
        self,
        hidden: Float[Tensor, "bs c y x"],
        temb: Float[Tensor, "bs e"],
        frames: Int64[Tensor, "b s"],
        allowed: Bool[Tensor, "b s k"],
        memory: Memory | None = None,
    ) -> tuple[Float[Tensor, "bs c y x"], Memory]:
        """Attend.

        Args:
            hidden: features of the frames, s slots for each of b videos.
            temb: embedding of each frame's diffusion time.
            frames: numbers of the frames in their videos.
            allowed: whether slot i may attend to frame j; those of `memory` come first.
            memory: further frames to attend to.

        Returns:
            The features, and what a later call needs to attend to these frames.
        """
        height, slots = hidden.shape[2], frames.shape[1]
        tokens = rearrange(self.norm(hidden), "(b s) c y x -> b (y x) s c", s=slots)
        qkv = rearrange(self.to_qkv(tokens), "b d s (n h f) -> n b d h s f", n=3, h=self.num_heads)
        q, k, v = qkv.unbind(0)
        temb = rearrange(temb, "(b s) e -> b s e", s=slots)
        own = Memory(k, v, temb, frames)
        seen = own if memory is None else _joined(memory, own)
        weights = self._weights(q * self.scale, temb, frames, seen, allowed).to(v.dtype)
        distances = frames[:, :, None] - seen.frames[:, None]
        vectors = self.positions_v(distances, temb)
        out = weights @ seen.values + torch.einsum("bdhij,bijhf->bdhif", weights, vectors)
        out = self.to_out(rearrange(out, "b d h s f -> b d s (h f)"))
        return hidden + rearrange(out, "b (y x) s c -> (b s) c y x", y=height), own

    def _weights(
        self, q: Tensor, temb: Tensor, frames: Tensor, seen: Memory, allowed: Tensor
    ) -> Tensor:
        """Attention of slots i to frames j, (b, d, h, i, j); `q` holds the scale."""
        distances = frames[:, :, None] - seen.frames[:, None]
        for_keys = self.positions_k(distances, temb)
        for_queries = self.positions_q(-distances.mT, seen.temb)
        logits = (
            q @ seen.keys.mT
            + torch.einsum("bdhif,bijhf->bdhij", q, for_keys)
            + torch.einsum("bdhjf,bjihf->bdhij", seen.keys * self.scale, for_queries)
        )
        return logits.masked_fill(~allowed[:, None, None], -torch.inf).softmax(-1)


def _joined(memory: Memory, own: Memory) -> Memory:
    return Memory(
        torch.cat([memory.keys, own.keys], dim=3),
        torch.cat([memory.values, own.values], dim=3),
        torch.cat([memory.temb, own.temb], dim=1),
        torch.cat([memory.frames, own.frames], dim=1),
    )


def _zero(linear: nn.Linear) -> nn.Linear:
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear
