"""Frames of a video that pass through the network together, and those that are given.

Frames are numbered from 0, the most corrupted, to T−1, the image.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from pseudovideo.spec import check_context


class Stage(NamedTuple):
    """Frames that are generated together, and the observed ones that they are generated from."""

    observed: tuple[int, ...]
    latent: tuple[int, ...]


class FrameWindow(NamedTuple):
    """The frames of b videos that pass through the network, in s slots each.

    A slot that is neither observed nor latent is padding: nothing attends to it.
    """

    frames: Int64[Tensor, "b s"]  # numbers of the frames in their videos
    observed: Bool[Tensor, "b s"]  # slots whose pixels are given
    latent: Bool[Tensor, "b s"]  # slots that are denoised


def stages(num_frames: int, context: int) -> tuple[Stage, ...]:
    """Return the stages of section 5.4.2's window C, p(z_1..z_C) Π_t p(z_t | z_{t−C..t−1}).

    The first C frames are generated together, each further one given the C before it: T−C+1 runs
    of the reverse process (3 for T=4 and C=2, 5 for T=8 and C=4).
    """
    check_context(context, num_frames)
    following = (
        Stage(tuple(range(frame - context, frame)), (frame,))
        for frame in range(context, num_frames)
    )
    return (Stage((), tuple(range(context))), *following)


def stage_window(stage: Stage, batch: int, *, device: torch.device | str = "cpu") -> FrameWindow:
    """Return the same stage for each video of a batch: observed slots, then latent ones."""
    return FrameWindow(*(slots.to(device).expand(batch, -1) for slots in _table([stage])))


def draw_windows(
    batch: int,
    *,
    num_frames: int,
    context: int,
    generator: torch.Generator | None = None,
    device: torch.device | str = "cpu",
) -> FrameWindow:
    """Return what the videos of a training batch are trained on: the sampler's own stages.

    Each of b = `batch` videos has one, each stage as often as it has latent frames: the first with
    probability C/T, any other with 1/T. They have C or C+1 frames; all windows have C+1 slots, and
    the C frames of the first stage leave one to padding, which changes nothing.
    """
    table = _table(stages(num_frames, context))
    origin = "cpu" if generator is None else generator.device
    # A frame of the video, alike, and the stage that generates it.
    frame = torch.randint(num_frames, (batch,), generator=generator, device=origin)
    # The generator's device is the videos' as a rule: then nothing waits for the other side.
    number = (frame - context + 1).clamp(min=0).to(device)
    return FrameWindow(*(slots.to(device)[number] for slots in table))


def _table(plan: Sequence[Stage]) -> FrameWindow:
    """Return one row per stage: observed slots, then latent ones, then padding."""
    width = max(len(stage.observed) + len(stage.latent) for stage in plan)
    frames = torch.zeros(len(plan), width, dtype=torch.int64)
    observed = torch.zeros(len(plan), width, dtype=torch.bool)
    latent = torch.zeros(len(plan), width, dtype=torch.bool)
    for row, stage in enumerate(plan):
        num_observed, used = len(stage.observed), len(stage.observed) + len(stage.latent)
        frames[row, :used] = torch.tensor(stage.observed + stage.latent)
        observed[row, :num_observed] = True
        latent[row, num_observed:used] = True
    return FrameWindow(frames, observed, latent)
