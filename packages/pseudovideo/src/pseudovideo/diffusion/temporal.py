"""Attention between the frames of a video, with relative positions (Harvey et al. 2022)."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from pseudovideo.diffusion.unet import zeroed


class FrameMemory(NamedTuple):
    """Keys and values that an attention site keeps of frames, for later frames to attend to."""

    keys: Float[Tensor, "b k h f d"]  # per head h, with the places d of the image last
    values: Float[Tensor, "b k h f d"]  # likewise


class Positions(NamedTuple):
    """The vectors of `RelativePositions` at one attention site, for slots i and frames j seen."""

    for_queries: Float[Tensor, "b j h i f"]  # R^q_ji
    for_keys: Float[Tensor, "b i h j f"]  # R^k_ij
    for_values: Float[Tensor, "b i h f j"]  # R^v_ij


def distance_features(
    frames: Int64[Tensor, "b i"], others: Int64[Tensor, "b j"], dtype: torch.dtype
) -> Float[Tensor, "b i j 3"]:
    """Return φ(d) = (log(1+max(d,0)), log(1+max(−d,0)), [d=0]) of distances d = i − j of frames."""
    d = (frames[:, :, None] - others[:, None]).to(dtype)
    return torch.stack(
        [d.clamp_min(0).log1p(), (-d).clamp_min(0).log1p(), (d == 0).to(dtype)], dim=-1
    )


class RelativePositions(nn.Module):
    """A vector for each pair of frames: R_ij = W silu(A·temb_i + B·φ(i−j)).

    W is zero at first, so that a new network has no positions.
    """

    def __init__(self, channels: int, num_heads: int, time_channels: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.distance = nn.Linear(3, channels)
        self.time = nn.Linear(time_channels, channels)
        self.out = zeroed(nn.Linear(channels, channels))

    def forward(
        self, features: Float[Tensor, "b i j 3"], temb: Float[Tensor, "b i e"]
    ) -> Float[Tensor, "b i j h f"]:
        """Return vectors of all pairs."""
        return _vectors([self], features, temb)[0]


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
    """

    def __init__(
        self, channels: int, *, num_heads: int, num_groups: int, time_channels: int
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.scale = (channels // num_heads) ** -0.5
        self.norm = nn.GroupNorm(num_groups, channels, eps=1e-5)
        self.to_qkv = nn.Linear(channels, 3 * channels)
        self.to_out = zeroed(nn.Linear(channels, channels))
        self.positions_q, self.positions_k, self.positions_v = (
            RelativePositions(channels, num_heads, time_channels) for _ in range(3)
        )

    def forward(
        self,
        hidden: Float[Tensor, "bs c y x"],
        positions: Positions,
        mask: Float[Tensor, "b s k"],
        memory: FrameMemory | None = None,
    ) -> tuple[Float[Tensor, "bs c y x"], FrameMemory]:
        """Add to each frame what it attends to in the others.

        Args:
            hidden: features of the frames, s slots for each of b videos.
            positions: of slots i and frames j; those of `memory`, further frames, come first.
            mask: 0 where slot i may attend to frame j, else −∞, likewise.
            memory: of earlier calls.

        Returns:
            The features, and what a later call needs to attend to these frames.
        """
        # Places stay last, as they are in images: nothing is laid out anew, and what frames are to
        # each other, a few numbers at each place, is worked out at all places at once.
        qkv = _mapped(self.to_qkv, self.norm(hidden).flatten(2))
        qkv = qkv.view(*mask.shape[:2], 3, self.num_heads, -1, qkv.shape[-1])
        q, k, v = qkv.unbind(2)
        keys, values = memory_of_these = FrameMemory(k, v)
        if memory is not None:
            keys, values = (
                torch.cat(both, dim=1) for both in zip(memory, memory_of_these, strict=True)
            )
        # q_i·k_j + q_i·R^k_ij + k_j·R^q_ji, each (b, i, h, j, d)
        logits = (
            (q[:, :, :, None] * keys.transpose(1, 2)[:, None]).sum(-2)
            + positions.for_keys @ q
            + (positions.for_queries @ keys).transpose(1, 3)
        )
        logits = torch.add(mask[:, :, None, :, None], logits, alpha=self.scale)
        weights = logits.softmax(3).to(v.dtype)
        # Σ_j a_ij v_j + Σ_j a_ij R^v_ij, each (b, i, h, f, d)
        out = (weights[..., None, :] * values.transpose(1, 2)[:, None]).sum(3)
        out = (out + positions.for_values @ weights).flatten(2, 3).flatten(0, 1)
        return hidden + _mapped(self.to_out, out).view_as(hidden), memory_of_these


def relative_positions(
    sites: Sequence[TemporalAttention],
    features: Float[Tensor, "b i j 3"],
    temb: Float[Tensor, "b i e"],
    others: Float[Tensor, "b j e"],
) -> list[Positions]:
    """Return the vectors of all sites: of those of one width at once: each costs so little."""
    positions: dict[TemporalAttention, Positions] = {}
    # φ(−d) has the first two numbers of φ(d) in the other order.
    back = features.transpose(1, 2)[..., [1, 0, 2]]
    for shape in {site.to_out.weight.shape for site in sites}:
        alike = [site for site in sites if site.to_out.weight.shape == shape]
        for_queries = _vectors([site.positions_q for site in alike], back, others)
        nets = [net for site in alike for net in (site.positions_k, site.positions_v)]
        both = _vectors(nets, features, temb).unflatten(0, (-1, 2))
        vectors = (
            for_queries.transpose(3, 4),
            both[:, 0].transpose(3, 4),
            both[:, 1].permute(0, 1, 2, 4, 5, 3),
        )
        for site, *vector in zip(alike, *(vector.unbind(0) for vector in vectors), strict=True):
            positions[site] = Positions(*vector)
    return [positions[site] for site in sites]


def _vectors(nets: Sequence[RelativePositions], features: Tensor, temb: Tensor) -> Tensor:
    """Return what networks of one width give, (n, b, i, j, h, f)."""
    time = F.linear(temb, *_joined(nets, "time"))
    distance = F.linear(features, *_joined(nets, "distance"))
    # (b, i, j, n·c) → (n, b·i·j, c)
    hidden = F.silu(time[:, :, None] + distance)
    hidden = hidden.unflatten(-1, (len(nets), -1)).flatten(0, 2).transpose(0, 1)
    weight, bias = (tensor.unflatten(0, (len(nets), -1)) for tensor in _joined(nets, "out"))
    vectors = torch.baddbmm(bias[:, None], hidden, weight.mT)
    return vectors.view(len(nets), *features.shape[:3], nets[0].num_heads, -1)


def _joined(nets: Sequence[RelativePositions], name: str) -> tuple[Tensor, Tensor]:
    """Return weights and biases of one layer of all networks, one below the other."""
    layers = [net.get_submodule(name) for net in nets]
    weights, biases = zip(*((layer.weight, layer.bias) for layer in layers), strict=True)
    return torch.cat(weights), torch.cat(biases)


def _mapped(linear: nn.Linear, x: Float[Tensor, "n c d"]) -> Float[Tensor, "n o d"]:
    """Return W x + b over the second dimension."""
    weight = linear.weight.expand(len(x), -1, -1)
    return torch.baddbmm(linear.bias[:, None], weight, x)
