"""The UNet of video diffusion: the image model's on each frame, and attention between frames."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from pseudovideo.diffusion.frame_windows import FrameWindow
from pseudovideo.diffusion.temporal import (
    FrameMemory,
    Positions,
    TemporalAttention,
    distance_features,
    relative_positions,
)
from pseudovideo.diffusion.unet import apply_unet, attentions, build_unet
from pseudovideo.spec import UNetConfig


class FrameMemories(NamedTuple):
    """Numbers, times and memories that a network keeps of observed frames."""

    frames: Int64[Tensor, "b k"]  # their numbers
    temb: Float[Tensor, "b k e"]  # embedding of their diffusion times
    # What each of its temporal attentions keeps of them, in the order of use
    sites: tuple[FrameMemory, ...]


class _Pass(NamedTuple):
    """Frames on their way through a network, as its temporal attentions need to know them."""

    # Of the distances of slots from the frames that they may attend to
    features: Float[Tensor, "b s k 3"]
    mask: Float[Tensor, "b s k"]  # 0 where they may, −∞ elsewhere
    memories: FrameMemories | None  # of frames that don't pass
    made: list[FrameMemory]  # what each attention keeps of those that do


class _Sites:
    """Lookup of the current pass for temporal attentions, which diffusers calls with features.

    Attributes:
        current: the pass; None between passes.
        temb: embedding of its slots' diffusion times (b, s, e); of use once it is made.
        positions: what follows for each attention; none before it is made.
    """

    def __init__(self, temporal: Sequence[TemporalAttention]) -> None:
        self.temporal = temporal
        self.current: _Pass | None = None
        self.temb: Tensor = torch.empty(0)
        self.positions: Sequence[Positions] = ()

    def keep_time(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        """Note the embedding of time: a forward hook of the module that makes it."""
        now = self.current
        if now is not None:
            self.temb = others = output.unflatten(0, now.mask.shape[:2])
            if now.memories is not None:
                others = torch.cat([now.memories.temb, others], dim=1)
            self.positions = relative_positions(self.temporal, now.features, self.temb, others)


class _BetweenFrames:
    """A processor of diffusers' attention: frames attend to each other, then each within itself."""

    def __init__(
        self,
        number: int,
        temporal: TemporalAttention,
        spatial: Callable[..., Tensor],
        sites: _Sites,
    ) -> None:
        self.number, self.temporal, self.spatial, self.sites = number, temporal, spatial, sites

    # Diffusers reads off these names what a processor takes.
    def __call__(
        self,
        attn: nn.Module,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        temb: Tensor | None = None,
    ) -> Tensor:
        now = self.sites.current
        if now is not None and self.sites.positions:
            memory = None if now.memories is None else now.memories.sites[self.number]
            positions = self.sites.positions[self.number]
            hidden_states, remembered = self.temporal(hidden_states, positions, now.mask, memory)
            now.made.append(remembered)
        return self.spatial(attn, hidden_states, encoder_hidden_states, attention_mask, temb)


class VideoUNet(nn.Module):
    """Improved DDPM's UNet on b·s frames; at each attention, frames attend to each other first.

    The input has one channel more than the images: 1 where a frame's pixels are given, else 0. As
    the maps that end temporal attention are zero at first, a new network treats frames one by one.

    Args:
        config: sizes of the UNet; its heads and groups are the temporal attention's too.
        one_way: observed frames are at diffusion time 0 and attend to observed frames alone, so
            that what they are to the others does not change while those are denoised.
    """

    def __init__(self, config: UNetConfig, *, one_way: bool = False) -> None:
        super().__init__()
        self.one_way = one_way
        self.unet = build_unet(
            config, in_channels=config.channels + 1, out_channels=2 * config.channels
        )
        self.temporal = nn.ModuleList(
            TemporalAttention(
                attention.query_dim,
                num_heads=config.num_heads,
                num_groups=config.num_groups,
                time_channels=config.time_width,
            )
            for attention in attentions(self.unet)
        )
        # The way to diffusers' attentions that needs no knowledge of what is around them.
        self._sites = _Sites(cast("list[TemporalAttention]", list(self.temporal)))
        self.unet.get_submodule("time_embedding").register_forward_hook(self._sites.keep_time)
        for number, attention in enumerate(attentions(self.unet)):
            temporal = cast(TemporalAttention, self.temporal[number])
            attention.set_processor(
                _BetweenFrames(number, temporal, attention.get_processor(), self._sites)
            )

    def forward(
        self,
        pixels: Float[Tensor, "b s c h w"],
        times: Float[Tensor, " b"],
        window: FrameWindow,
        memories: FrameMemories | None = None,
        labels: Int64[Tensor, " b"] | None = None,
    ) -> Float[Tensor, "b s o h w"]:
        """Predict the noise and the variances of frames, of use in the latent slots.

        Args:
            pixels: given ones in the observed slots, noisy ones in the latent slots.
            times: diffusion time of each video, on the scale of 1,000.
            window: which frames these are.
            memories: of `remember`: all that is observed, which need not pass through the network
                again; `one_way` only.
            labels: token of each video's class, where the network has them.
        """
        return self._run(pixels, times, window, memories, labels)[0]

    def remember(
        self,
        pixels: Float[Tensor, "b k c h w"],
        frames: Int64[Tensor, "b k"],
        labels: Int64[Tensor, " b"] | None = None,
    ) -> FrameMemories:
        """Pass observed frames through the network once."""
        if not self.one_way:
            raise ValueError("one_way must be True for observed frames to be kept, got False")
        observed = torch.ones_like(frames, dtype=torch.bool)
        window = FrameWindow(frames, observed, ~observed)
        return self._run(pixels, pixels.new_zeros(len(pixels)), window, None, labels)[1]

    def _run(
        self,
        pixels: Tensor,
        times: Tensor,
        window: FrameWindow,
        memories: FrameMemories | None,
        labels: Tensor | None,
    ) -> tuple[Tensor, FrameMemories]:
        slots = pixels.shape[1]
        frame_times = repeat(times, "b -> b s", s=slots)
        if self.one_way:
            frame_times = frame_times.masked_fill(window.observed, 0.0)
        visible = (
            window.frames if memories is None else torch.cat([memories.frames, window.frames], 1)
        )
        allowed = _allowed(window, one_way=self.one_way, remembered=visible.shape[1] - slots)
        # In the precision of the weights, whatever the pixels have.
        weight = next(self.temporal.parameters())
        features = distance_features(window.frames, visible, weight.dtype)
        mask = features.new_zeros(allowed.shape).masked_fill(~allowed, -torch.inf)
        indicator = window.observed.to(pixels.dtype)[:, :, None, None, None]
        inputs = torch.cat([pixels, indicator.expand_as(pixels[:, :, :1])], dim=2)
        tokens = None if labels is None else repeat(labels, "b -> (b s)", s=slots)
        self._sites.current = now = _Pass(features, mask, memories, [])
        try:
            output = apply_unet(self.unet, inputs.flatten(0, 1), frame_times.flatten(), tokens)
            temb = self._sites.temb
        finally:
            self._sites.current, self._sites.temb, self._sites.positions = None, torch.empty(0), ()
        output = rearrange(output, "(b s) o h w -> b s o h w", s=slots)
        return output, FrameMemories(window.frames, temb, tuple(now.made))


def _allowed(window: FrameWindow, *, one_way: bool, remembered: int) -> Bool[Tensor, "b s k"]:
    """Return where slot i may attend to frame j, remembered frames first.

    Padding attends to itself too, lest its softmax be 0/0 where nothing else is there.
    """
    visible = (window.observed | window.latent)[:, None]
    if one_way:
        visible = visible & (window.observed[:, None] | ~window.observed[:, :, None])
    attended = visible | torch.eye(visible.shape[-1], dtype=torch.bool, device=visible.device)
    everyone = attended.new_ones((*attended.shape[:2], remembered))
    return torch.cat([everyone, attended], dim=-1)
