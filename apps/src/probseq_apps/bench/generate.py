"""`probseq bench generate`: the time of the parts of image generation, and of what replaces them.

UNets may run on a GPU. That of one frame is improved DDPM's; those of 3 and 5 frames generate
videos of 4 and 8 with contexts of 2 and 4: a context and the frame after it pass together.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor

from probseq_apps.bench import Case, Timing, measure, show, single_thread, timed, training_step
from probseq_apps.settings.bench import BenchGenerateSettings
from pseudovideo.diffusion.frame_windows import stage_window
from pseudovideo.diffusion.image import ImageDiffusion
from pseudovideo.diffusion.objective import DiffusionObjective
from pseudovideo.diffusion.video import VideoDiffusion
from pseudovideo.priors import AutoregressiveConfig, AutoregressivePrior, MaskedConfig, MaskedPrior
from pseudovideo.spec import (
    ImageDiffusionConfig,
    UNetSpec,
    VideoDiffusionConfig,
    channel_multipliers_for,
)

# Tokens of an image of CIFAR-10 in the thesis, of 1,024 codes.
_CODES, _GRID = 1024, (1, 8, 8)
# Frames of a video; 1, 3 and 5 of them pass through a UNet together.
LENGTHS = (1, 4, 8)
_STEPS = 18  # of the masked prior


class ModelSizes(NamedTuple):
    """Sizes of the problems."""

    image_size: int = 16  # of UNets, like all that follow
    base_channels: int = 64
    clips: int = 4  # of a batch
    num_videos: int = 1  # drawn at once
    steps: int = 8  # of a stage


FULL, SHORT = ModelSizes(), ModelSizes(base_channels=32, clips=2, steps=4)
# Thesis Table D.4.
PAPER = FULL._replace(image_size=32, base_channels=128, clips=32, num_videos=32, steps=25)


def bench_generate(settings: BenchGenerateSettings) -> None:
    """Measure, and print the table."""
    with single_thread(settings.device) as device:
        gpu = device.type == "cuda"
        sizes = SHORT if settings.quick else PAPER if gpu else FULL
        results = [measure(group, settings.repeats) for group in groups(sizes, device)]
    where = "\nUNets and videos: on the GPU, wall time." if gpu else ""
    rows = [row for rows in results for row in rows]
    show(rows, settings.repeats, f"; noise for images, random weights.{where}")


def groups(sizes: ModelSizes, device: torch.device) -> Iterator[list[Timing]]:
    """Yield the rows that are timed together; a group's models are freed after it."""
    yield samplers()
    yield unets(sizes, device)
    yield videos(sizes, device)


def samplers() -> list[Timing]:
    """Return the rows of drawing tokens by the priors of thesis Tables D.2 and D.3."""
    prior = AutoregressivePrior(AutoregressiveConfig(codebook_size=_CODES, grid=_GRID))
    masked = MaskedPrior(MaskedConfig(codebook_size=_CODES, grid=_GRID))
    tokens = torch.zeros(1, masked.grid.num_tokens, dtype=torch.int64)
    hidden = torch.ones_like(tokens, dtype=torch.bool)
    cache, batch = (timed(partial(prior.sample_tokens, n)) for n in (1, 64))
    plain = timed(lambda: prior.sample_tokens(1, cache=False))
    draw = timed(lambda: masked.sample_tokens(1, num_steps=_STEPS))
    passes = timed(lambda: [masked(tokens, hidden) for _ in range(_STEPS)])
    return [
        Timing("autoregressive tokens with a cache, 1x64", cache, "/s", amount=64),
        Timing("  without a cache", plain, "/s", amount=64),
        Timing("  against no cache", plain, over=cache),
        Timing("  64x64", batch, "/s", amount=64 * 64),
        Timing(f"masked tokens, {_STEPS} steps, 1x64", draw, "/s", amount=64),
        Timing(f"  against {_STEPS} passes alone", draw, over=passes),
    ]


def unets(sizes: ModelSizes, device: torch.device) -> list[Timing]:
    """Return the rows of UNets: passes and training steps, in float32 and in bfloat16."""
    side = sizes.image_size
    rows: list[Timing] = []
    images: dict[str, Case] = {}
    for length in LENGTHS:
        frames = 1 + length // 2
        clips = torch.rand(sizes.clips, length, 3, side, side, device=device)
        exact, lean = (unet_model(length, sizes).to(device) for _ in range(2))
        lean.to(memory_format=torch.channels_last)
        of = f"UNet {sizes.base_channels}, {sizes.clips}x{frames} frames of 3x{side}x{side}"
        for work, name in ((forward, "forward pass"), (step, "training step")):
            full, half = work(exact, clips), work(lean, clips, True)
            image = images.setdefault(name, full)
            rows += [
                Timing(f"{of}: {name}, float32", full, "ms"),
                Timing("  bfloat16 and channels last", half, "ms"),
                Timing("  against float32", full, over=half),
            ]
            if frames > 1:
                rows.append(
                    Timing("  a frame against an image alone", full, over=image, amount=frames)
                )
    return rows


def unet_model(
    length: int, sizes: ModelSizes, causal: bool = False
) -> ImageDiffusion | VideoDiffusion:
    """Return the model of images, or of videos of so many frames; `causal` conditions one way."""
    size = sizes.image_size
    unet = UNetSpec(
        base_channels=sizes.base_channels,
        channel_multipliers=channel_multipliers_for(size),
        attention_sizes=(size // 2, size // 4),  # 16 and 8 for 32 pixels
    ).to_dict()
    if length == 1:
        return ImageDiffusion(ImageDiffusionConfig(**unet, image_size=size))
    return VideoDiffusion(
        VideoDiffusionConfig(
            **unet, image_size=size, num_frames=length, context=length // 2, one_way=causal
        )
    )


def forward(model: ImageDiffusion | VideoDiffusion, clips: Tensor, lean: bool = False) -> Case:
    """Time a forward pass of the UNet."""
    times = torch.full((len(clips),), 500.0).to(clips.device)
    if isinstance(model, ImageDiffusion):
        return timed(lambda: model(clips[:, -1], times), clips.device, lean=lean)
    window = stage_window(model.stages[-1], len(clips), device=clips.device)
    window_clips = clips[:, -model.config.context - 1 :]
    return timed(lambda: model.network(window_clips, times, window), clips.device, lean=lean)


def step(model: ImageDiffusion | VideoDiffusion, clips: Tensor, lean: bool = False) -> Case:
    """Time a training step: L_hybrid at random times, its gradient, and AdamW."""
    objective = DiffusionObjective(model).to(clips.device)
    return training_step(model, lambda: objective(clips)["loss"], clips.device, lean)


def videos(sizes: ModelSizes, device: torch.device) -> list[Timing]:
    """Return the rows of drawing videos; one way, context frames don't see later ones."""
    length, n = LENGTHS[-1], sizes.num_videos
    models = [unet_model(length, sizes, causal).to(device) for causal in (False, True)]
    draws = [partial(model.sample, n, num_steps=sizes.steps, batch_size=n) for model in models]
    both, forwards = (timed(draw, device) for draw in draws)
    frames = [cast("VideoDiffusion", model).evaluations_per_sample() for model in models]
    name = f"a video of {length} frames, context {length // 2}, {sizes.steps} steps a stage"
    return [
        Timing(name, both, "ms", amount=n),
        Timing("  one-way conditioning", forwards, "ms", amount=n),
        Timing("  both ways against it", both, over=forwards),
        Timing("  frames through the network, 1,000 steps a stage", frames[0], unit="frames"),
        Timing("  one-way conditioning", frames[1], unit="frames"),
        Timing("  both ways against it", frames[0] / frames[1]),
    ]
