"""`probseq bench generate`: what the parts of image generation cost, and what they are beside.

UNets may run on a GPU. That of one frame is improved DDPM's; those of 3 and 5 frames generate
videos of 4 and 8 with contexts of 2 and 4: a context and the frame after it pass together.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from probseq.metrics.image import FeatureMoments, frechet_distance
from probseq_apps.bench import (
    Case,
    Line,
    Row,
    measure,
    one_thread,
    show,
    timed,
    training_step,
)
from probseq_apps.bench.videogpt import VideoGPTSampler
from probseq_apps.settings.bench import BenchGenerateSettings
from pseudovideo.corruptions import PseudoVideoConfig, counter_normal, pseudo_videos
from pseudovideo.diffusion.image import ImageDiffusion
from pseudovideo.diffusion.objective import DiffusionObjective
from pseudovideo.diffusion.stages import stage_window
from pseudovideo.diffusion.video import VideoDiffusion
from pseudovideo.priors import (
    AutoregressiveConfig,
    AutoregressivePrior,
    MaskedConfig,
    MaskedPrior,
)
from pseudovideo.spec import ImageDiffusionConfig, VideoDiffusionConfig, channel_multipliers_for
from pseudovideo.tokenizers import TokenizerConfig, build_tokenizer

CODES = 1024
# Tokens of 1, 8 and 18 frames of CIFAR-10.
GRIDS: dict[int, tuple[int, int, int]] = {64: (1, 8, 8), 256: (4, 8, 8), 576: (9, 8, 8)}
# Frames that pass through a UNet together, and those of the video that they are of.
WINDOWS: dict[int, int] = {1: 1, 3: 4, 5: 8}
_FRAMES, _PARTS = 8, 4

Group = tuple[dict[str, Case], Sequence[Line | Row]]


class UNetSizes(NamedTuple):
    """How much of diffusion is run: of a batch, and videos drawn at once in so many steps."""

    image_size: int
    base_channels: int
    batch: int
    drawn: int
    steps: int


class Sizes(NamedTuple):
    """How much is run."""

    images: int = 128  # of a batch that is corrupted
    samples: tuple[tuple[int, int], ...] = ((1, 64), (64, 64), (64, 256), (1, 576), (16, 576))
    limit: int = 64  # tokens that slow samplers draw
    masked: int = 1  # grids that the masked prior draws at once
    steps: int = 18  # of the masked prior
    width: int = 512
    depth: int = 8  # blocks of tokenizers' encoders and decoders
    batch: int = 2  # images of a training step
    dim: int = 2048
    compared: int = 512  # dimensions at which the distance by scipy is timed too
    few: int = 256  # features where there are fewer than dimensions
    unets: UNetSizes = UNetSizes(image_size=16, base_channels=64, batch=4, drawn=1, steps=8)


FULL = Sizes()
SHORT = Sizes(
    *(32, ((1, 64), (8, 64))),
    width=256,
    batch=1,
    dim=512,
    compared=128,
    few=64,
    unets=FULL.unets._replace(base_channels=32, batch=2, steps=4),
)
# Thesis Table D.4.
PAPER = UNetSizes(image_size=32, base_channels=128, batch=32, drawn=32, steps=25)


def bench_generate(settings: BenchGenerateSettings) -> None:
    """Measure, print the table, and write the numbers where asked."""
    sizes = SHORT if settings.quick else FULL
    with one_thread(settings.device) as device:
        if device.type == "cuda" and not settings.quick:
            sizes = sizes._replace(unets=PAPER)
        found = [measure(*group, settings.repeats) for group in groups(sizes, device)]
    note = (
        f"cpu, one thread, process time, medians of {settings.repeats} runs in turns; noise for "
        "images, random weights. VideoGPT's sampler is written from a description of its code.\n"
        f"Two times are extrapolated: VideoGPT's beyond {sizes.limit} tokens, each of which costs "
        f"the same, and that without a cache, beyond one grid of {sizes.limit}, from four lengths."
        + ("\nUNets and videos: on the GPU, wall time." if device.type == "cuda" else "")
    )
    show([row for rows in found for row in rows], note, settings.json)


def groups(sizes: Sizes, device: torch.device) -> Iterator[Group]:
    """Give what is timed together, one after the other: a group's models go with it."""
    yield corruptions(sizes)
    yield trainings(sizes)
    for batch, tokens in sizes.samples:
        yield samplers(batch, tokens, sizes.limit)
    yield masked(sizes)
    yield distances(sizes)
    yield unets(sizes.unets, device)
    yield videos(sizes.unets, device)


def corruptions(sizes: Sizes) -> Group:
    """Blurred and noisy videos, and where their noise comes from."""
    n = sizes.images
    data, index = noise(n), torch.arange(n)
    count = (_FRAMES - 1) * 3 * 32 * 32
    blur = PseudoVideoConfig(kind="blur", num_frames=_FRAMES)
    noisy = PseudoVideoConfig(kind="high-order-noise", num_frames=_FRAMES)

    def generators() -> Tensor:
        seeds = map(torch.Generator().manual_seed, range(n))
        return torch.stack([torch.randn(count, generator=seeded) for seeded in seeds])

    cases = {
        "matrices": timed(lambda: pseudo_videos(data, blur)),
        "convolution": timed(lambda: convolved(data, _FRAMES, blur.blur_rate or 0.0)),
        "noisy": timed(lambda: pseudo_videos(data, noisy)),
        "counter": timed(lambda: counter_normal(index, count, seed=0, epoch=0)),
        "generators": timed(generators),
    }
    rate = partial(Line, unit="/s", amount=1 / n)
    return cases, [
        rate(f"blur, {_FRAMES} frames of 3x32x32, batch {n}", "matrices"),
        rate("  by recursive convolution, 11x11", "convolution"),
        # Section 0.3 of the design: 2.5-3 times.
        Line("  matrices against it", "convolution / matrices", goal=2.5, least=True),
        rate("high-order noise, the same sizes", "noisy"),
        rate("numbers of its noise, by a counter", "counter"),
        rate("  by a generator for each image", "generators"),
        Line("  counter against it", "generators / counter"),
    ]


def noise(*shape: int) -> Tensor:
    """Return colour noise in −1..1, 32 by 32 pixels unless told."""
    size = (*shape, 3, 32, 32) if len(shape) == 1 else shape
    return 2 * torch.rand(size, generator=torch.Generator().manual_seed(0)) - 1


def convolved(data: Tensor, frames: int, rate: float) -> Tensor:
    """Return videos (b, T, c, h, w) blurred frame after frame, 11×11, behind reflected borders.

    Step i has standard deviation exp(rate·i).
    """
    video, offsets = [data], torch.arange(-5.0, 6.0, dtype=data.dtype)
    for step in range(frames - 1):
        taps = torch.exp(-0.5 * (offsets / math.exp(rate * step)).square())
        taps = taps / taps.sum()
        kernel = (taps[:, None] * taps).expand(data.shape[1], 1, -1, -1)
        bordered = F.pad(video[-1], (5, 5, 5, 5), mode="reflect")
        video.append(F.conv2d(bordered, kernel, groups=data.shape[1]))
    return torch.stack(video[::-1], dim=1)


def trainings(sizes: Sizes) -> Group:
    """Steps of tokenizers, and of a prior on stored tokens or on images encoded anew."""
    common: Any = {"dim": sizes.width, "codebook_size": CODES}
    half = sizes.depth // 2
    deep: Any = {"spatial_depth": sizes.depth, "temporal_depth": 0}
    plain = TokenizerConfig(num_frames=1, temporal_patch=1, **deep, **common)
    video = TokenizerConfig(num_frames=_FRAMES, spatial_depth=half, temporal_depth=half, **common)
    # A tokenizer that learns has another one beside it that stays, for the prior.
    encoder, prior = build_tokenizer(video).eval(), autoregressive(256)
    data, corruption = noise(sizes.batch), PseudoVideoConfig(num_frames=_FRAMES)

    def encoded() -> Tensor:
        with torch.no_grad():
            return encoder.encode(pseudo_videos(data, corruption))

    tokens = encoded()
    name = f"tokenizer's step, width {sizes.width}, batch {sizes.batch}"
    return {
        "one": tokenizer_step(plain, sizes.batch),
        "eight": tokenizer_step(video, sizes.batch),
        "stored": training_step(prior, lambda: prior.loss(tokens)),
        "encoded": training_step(prior, lambda: prior.loss(encoded())),
    }, [
        Line(f"{name}: 1 frame", "one", "ms"),
        Line(f"  {_FRAMES} frames, four times the tokens", "eight", "ms"),
        Line("  against 1 frame", "eight / one"),
        Line(f"prior's step on stored tokens, batch {sizes.batch}x256", "stored", "ms"),
        Line("  with images encoded anew", "encoded", "ms"),
        # Section 0.3 of the design: 1.5-3.4 times.
        Line("  against stored tokens", "encoded / stored", goal=1.5, least=True),
    ]


def tokenizer_step(config: TokenizerConfig, batch: int) -> Case:
    """Time a step on squared error and commitment, pseudo videos included."""
    tokenizer, data = build_tokenizer(config), noise(batch)
    corruption = PseudoVideoConfig(num_frames=config.num_frames)

    def loss() -> Tensor:
        videos = pseudo_videos(data, corruption)
        output = tokenizer(videos)
        return F.mse_loss(output.reconstruction, videos) + output.commitment

    return training_step(tokenizer.train(), loss)


def autoregressive(tokens: int) -> AutoregressivePrior:
    """Return a prior of the sizes of thesis Table D.2."""
    return AutoregressivePrior(AutoregressiveConfig(codebook_size=CODES, grid=GRIDS[tokens]))


def samplers(batch: int, tokens: int, limit: int) -> Group:
    """Drawing a batch of grids with the cache, VideoGPT's way, or computing all anew.

    Of `limit` tokens VideoGPT's time is scaled, each of which costs the same; that of computing
    anew is four lengths' mean where there are more tokens in all.
    """
    prior = autoregressive(tokens)
    length, steps = prior.grid.num_tokens, min(limit, prior.grid.num_tokens)
    videogpt = VideoGPTSampler(prior)
    drawn = timed(lambda: videogpt.sample_tokens(batch, steps))
    lengths = [round(length * (part + 0.5) / _PARTS) for part in range(_PARTS)]
    parts = [_pass(prior, batch, count) for count in lengths if batch * length > limit]
    plain = timed(lambda: prior.sample_tokens(batch, cache=False))
    cases: dict[str, Case] = {
        "cache": timed(lambda: prior.sample_tokens(batch, cache=True)),
        "videogpt": lambda: drawn() * length / steps,
        "plain": lambda: sum(part() for part in parts) * length / _PARTS if parts else plain(),
    }
    rate = partial(Line, unit="/s", amount=1 / (batch * tokens))
    few, some = 6.0 if tokens == 64 else None, 3.0 if batch == 1 else 2.0
    return cases, [
        rate(f"autoregressive tokens with a cache, {batch}x{tokens}", "cache"),
        rate("  VideoGPT's sampler", "videogpt"),
        Line("  against VideoGPT's", "videogpt / cache", goal=some, least=True),
        rate("  without a cache", "plain"),
        Line("  against no cache", "plain / cache", goal=few, least=True),
    ]


def _pass(prior: AutoregressivePrior, batch: int, count: int) -> Case:
    # A prior of one row is the same network on a sequence of that length.
    short = AutoregressivePrior(replace(prior.config, grid=(1, 1, count)))
    short.blocks = prior.blocks
    tokens = torch.zeros(batch, 1, 1, count, dtype=torch.int64)
    return timed(lambda: short(tokens))


def masked(sizes: Sizes) -> Group:
    """A masked prior of the sizes of thesis Table D.3 beside its passes, and beside the other."""
    prior = MaskedPrior(MaskedConfig(codebook_size=CODES, grid=GRIDS[64]))
    other, count, steps = autoregressive(64), sizes.masked, sizes.steps
    tokens = torch.zeros(count, prior.grid.num_tokens, dtype=torch.int64)
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    rate = partial(Line, unit="/s", amount=1 / (count * 64))
    return {
        "masked": timed(lambda: prior.sample_tokens(count, num_steps=steps)),
        "passes": timed(lambda: [prior(tokens, everywhere) for _ in range(steps)]),
        "other": timed(lambda: other.sample_tokens(count, cache=True)),
    }, [
        rate(f"masked tokens, {steps} steps, {count}x64", "masked"),
        # One pass a step: more would show here.
        Line(f"  against {steps} passes alone", "masked / passes", goal=1.2),
        rate(f"autoregressive tokens, {count}x64", "other"),
        Line("  against the masked prior", "masked / other"),
    ]


def distances(sizes: Sizes) -> Group:
    """The Fréchet distance of moments and of few features, and by scipy."""
    large, small = moments(sizes.dim), moments(sizes.compared)
    few = features(sizes.few, sizes.dim, 2), features(sizes.few, sizes.dim, 3)
    return {
        "large": timed(lambda: frechet_distance(*large)),
        "small": timed(lambda: frechet_distance(*small)),
        "sqrtm": timed(lambda: distance_by_sqrtm(*small)),
        "few": timed(lambda: frechet_distance(*few)),
    }, [
        Line(f"Fréchet distance of moments, {sizes.dim} dimensions", "large", "s"),
        Line(f"  of {sizes.few} features on either side", "few", "ms"),
        Line("  moments against these", "large / few"),
        Line(f"  of moments, {sizes.compared} dimensions", "small", "ms"),
        Line("  there by scipy's sqrtm", "sqrtm", "ms"),
        Line("  sqrtm against ours", "sqrtm / small"),
    ]


def features(count: int, dim: int, seed: int) -> Tensor:
    """Return correlated Gaussian features (n, d)."""
    generator = torch.Generator().manual_seed(seed)
    white = torch.randn(count, dim, generator=generator, dtype=torch.float64)
    return white * torch.linspace(1.0, 0.01, dim, dtype=torch.float64)


def moments(dim: int) -> tuple[FeatureMoments, FeatureMoments]:
    """Return those of two sets of features, twice as many as dimensions."""
    first, second = (FeatureMoments.of(features(2 * dim, dim, seed)) for seed in (0, 1))
    return first, second


def distance_by_sqrtm(first: FeatureMoments, second: FeatureMoments) -> float:
    """Return the usual code's: by the trace of scipy's root of the product of both covariances."""
    from scipy.linalg import sqrtm

    one, other = first.covariance, second.covariance
    root = np.asarray(sqrtm((one @ other).numpy()))
    shift = float((first.mean - second.mean).square().sum())
    return shift + float(one.trace() + other.trace()) - 2.0 * float(np.trace(root).real)


def unets(sizes: UNetSizes, device: torch.device) -> Group:
    """Passes and training steps of UNets, in float32 and under autocast with channels last."""
    side = sizes.image_size
    # Section 4 of the design; bfloat16 has a goal on a GPU alone.
    goal = 2.0 if device.type == "cuda" else None
    cases: dict[str, Case] = {}
    lines: list[Line] = []
    for frames, length in WINDOWS.items():
        clips = noise(sizes.batch, length, 3, side, side).to(device)
        for lean in (False, True):
            layout = torch.channels_last if lean else torch.contiguous_format
            model = unet_model(length, sizes).to(device).to(memory_format=layout)
            for part, work in (("forward", forward), ("step", step)):
                case = f"{part}-{frames}-{'lean' if lean else 'exact'}"
                cases[case] = work(model, clips, lean=lean)
        of = f"UNet {sizes.base_channels}, {sizes.batch}x{frames} frames of 3x{side}x{side}"
        for part, name in (("forward", "forward pass"), ("step", "training step")):
            case = f"{part}-{frames}"
            lines += [
                Line(f"{of}: {name}, float32", f"{case}-exact", "ms"),
                Line("  bfloat16 and channels last", f"{case}-lean", "ms"),
                Line("  against float32", f"{case}-exact / {case}-lean", goal=goal, least=True),
            ]
            if frames > 1:
                both = f"{case}-exact / {part}-1-exact"
                lines.append(Line("  a frame against an image alone", both, amount=frames))
    return cases, lines


def unet_model(length: int, sizes: UNetSizes, **given: Any) -> ImageDiffusion | VideoDiffusion:
    """Return the model of images, or of videos of so many frames."""
    size = sizes.image_size
    # Attention at 16 and 8 for 32 pixels.
    given |= {"image_size": size, "attention_sizes": (size // 2, size // 4)}
    given |= {"base_channels": sizes.base_channels}
    given |= {"channel_multipliers": channel_multipliers_for(size)}
    if length == 1:
        return ImageDiffusion(ImageDiffusionConfig(**given))
    return VideoDiffusion(VideoDiffusionConfig(num_frames=length, context=length // 2, **given))


def forward(model: ImageDiffusion | VideoDiffusion, clips: Tensor, *, lean: bool) -> Case:
    """Time a forward pass of the UNet."""
    times = torch.full((len(clips),), 500.0).to(clips.device)
    if isinstance(model, ImageDiffusion):
        return timed(lambda: model(clips[:, -1], times), clips.device, lean=lean)
    window = stage_window(model.stages[-1], len(clips), device=clips.device)
    seen = clips[:, -model.config.context - 1 :]
    return timed(lambda: model.network(seen, times, window), clips.device, lean=lean)


def step(model: ImageDiffusion | VideoDiffusion, clips: Tensor, *, lean: bool) -> Case:
    """Time a training step: L_hybrid at random times, its gradient, and AdamW."""
    objective = DiffusionObjective(model).to(clips.device)
    return training_step(model, lambda: objective(clips)["loss"], clips.device, lean=lean)


def videos(sizes: UNetSizes, device: torch.device) -> Group:
    """Drawing videos, stage by stage; one way, context frames don't see later ones."""
    length = WINDOWS[5]
    cases: dict[str, Case] = {}
    frames: list[int] = []
    for name in ("both", "one"):
        model = cast("VideoDiffusion", unet_model(length, sizes, one_way=name == "one")).to(device)
        draw = partial(model.sample, num_steps=sizes.steps, batch_size=sizes.drawn)
        cases[name] = timed(partial(draw, sizes.drawn), device)
        frames.append(model.evaluations_per_sample())
    name = f"a video of {length} frames, context {length // 2}, {sizes.steps} steps a stage"
    return cases, [
        Line(name, "both", "ms", amount=sizes.drawn),
        Line("  one-way conditioning", "one", "ms", amount=sizes.drawn),
        Line("  both ways against it", "both / one"),
        Row("  frames through the network, 1,000 steps a stage", frames[0], "frames"),
        Row("  one-way conditioning", frames[1], "frames"),
        # Section 4 of the design: 2-3 times.
        Row("  both ways against it", frames[0] / frames[1], "x", 2.0, least=True),
    ]
