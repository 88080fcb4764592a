"""Frames of a video that pass through the network together, and those that are given.

Frames are numbered from 0, the most corrupted, to T−1, the image.
"""

import math
import random
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from pseudovideo.spec import TrainingMasks, check_context


class Stage(NamedTuple):
    """Frames that are generated together, and those that they are generated from.

    Attributes:
        observed: frames that are given.
        latent: frames that are generated.
    """

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
    masks: TrainingMasks = "stages",
    generator: torch.Generator | None = None,
    device: torch.device | str = "cpu",
) -> FrameWindow:
    """Return what the videos of a training batch are trained on.

    `stages` draws one of the sampler's own stages for each video, each as often as it has latent
    frames: the first with probability C/T, any other with 1/T. They have C or C+1 frames; all
    windows have C+1 slots, and the C frames of the first stage leave one to padding, which changes
    nothing.

    `random` draws as the training loop of flexible video diffusion (Harvey et al. 2022) does with
    C+1 frames at most: evenly spaced sets of frames from the whole video, latent first and then
    latent or observed by a coin, until a set does not fit any more. Deviation: it also ends once
    C+1 frames are taken, without which C+1 = T would never end.

    They are of b = `batch` videos of T frames, with a context of C.
    """
    plan = stages(num_frames, context)
    if masks == "stages":
        table = _table(plan)
        origin = "cpu" if generator is None else generator.device
        # A frame of the video, alike, and the stage that generates it.
        frame = torch.randint(num_frames, (batch,), generator=generator, device=origin)
        # The generator's device is the videos' as a rule: then nothing waits for the other side.
        number = (frame - context + 1).clamp(min=0).to(device)
        return FrameWindow(*(slots.to(device)[number] for slots in table))
    origin = "cpu" if generator is None else generator.device
    seed = int(torch.randint(1 << 62, (), generator=generator, device=origin))
    rng = random.Random(seed)
    plan = tuple(random_stage(num_frames, context + 1, rng) for _ in range(batch))
    return FrameWindow(*(slots.to(device) for slots in _table(plan, slots=context + 1)))


def random_stage(num_frames: int, max_frames: int, rng: random.Random) -> Stage:
    """Return one random division of frames, see `draw_windows`.

    Args:
        num_frames: T.
        max_frames: frames that may be used, 1..T.
        rng: of the draws.
    """
    latent = set(_spaced_frames(num_frames, max_frames, rng))
    observed: set[int] = set()
    while len(latent) + len(observed) < max_frames:
        chosen = observed if rng.random() < 0.5 else latent
        added = set(_spaced_frames(num_frames, max_frames, rng)) - latent - observed
        if len(added) > max_frames - len(latent) - len(observed):
            break
        chosen |= added
    return Stage(tuple(sorted(observed)), tuple(sorted(latent)))


def _spaced_frames(num_frames: int, max_frames: int, rng: random.Random) -> list[int]:
    """Return 1..max_frames frames at a log-uniform distance from 1 to the widest that fits."""
    count = rng.randint(1, max_frames)
    # .999 as in the reference: the last frame stays inside, and one frame alone has no distance.
    distance = math.exp(rng.random() * math.log(num_frames / (count - 0.999)))
    first = rng.random() * (num_frames - distance * (count - 1))
    # Round-off could reach T.
    return [min(int(first + i * distance), num_frames - 1) for i in range(count)]


def _table(plan: Sequence[Stage], *, slots: int | None = None) -> FrameWindow:
    """Return one row per stage: observed slots, then latent ones, then padding."""
    width = slots or max(len(stage.observed) + len(stage.latent) for stage in plan)
    frames = torch.zeros(len(plan), width, dtype=torch.int64)
    observed = torch.zeros(len(plan), width, dtype=torch.bool)
    latent = torch.zeros(len(plan), width, dtype=torch.bool)
    for row, stage in enumerate(plan):
        num_observed, used = len(stage.observed), len(stage.observed) + len(stage.latent)
        frames[row, :used] = torch.tensor(stage.observed + stage.latent)
        observed[row, :num_observed] = True
        latent[row, num_observed:used] = True
    return FrameWindow(frames, observed, latent)
