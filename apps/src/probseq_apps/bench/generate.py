"""`probseq bench generate`: what the parts of image generation cost, and what they are beside.

UNets may run on a GPU. That of one frame is improved DDPM's; those of 3 and 5 frames generate
videos of 4 and 8 with contexts of 2 and 4: a context and the frame after it pass together.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.transforms.functional import gaussian_blur

from probseq.metrics.image import FeatureMoments, frechet_distance
from probseq_apps.bench import Case, Row, measure, one_thread, show, timed, training_step
from probseq_apps.bench.ranks import rank_rows
from probseq_apps.settings.bench import BenchGenerateSettings
from pseudovideo.corruptions import PseudoVideoConfig, counter_normal, pseudo_videos
from pseudovideo.diffusion.frame_windows import stage_window
from pseudovideo.diffusion.image import ImageDiffusion
from pseudovideo.diffusion.objective import DiffusionObjective
from pseudovideo.diffusion.video import VideoDiffusion
from pseudovideo.priors import AutoregressiveConfig, AutoregressivePrior, MaskedConfig, MaskedPrior
from pseudovideo.spec import ImageDiffusionConfig, VideoDiffusionConfig, channel_multipliers_for
from pseudovideo.tokenizers import TokenizerConfig, build_tokenizer

CODES = 1024
# Rows and columns of CIFAR-10's tokens, of which 1, 8 and 18 frames have 64, 256 and 576.
SIDES = (8, 8)
# Frames of a video; 1, 3 and 5 of them pass through a UNet together.
LENGTHS = (1, 4, 8)
_FRAMES, _NUM_LENGTHS = 8, 4
# Tokens that slow samplers draw; steps of the masked prior; blocks of tokenizers.
LIMIT, STEPS, DEPTH = 64, 18, 8


class Sizes(NamedTuple):
    """Sizes of the problems."""

    images: int = 128  # of a batch that is corrupted
    samples: tuple[tuple[int, int], ...] = ((1, 64), (64, 64), (64, 256), (1, 576), (16, 576))
    width: int = 512
    batch: int = 2  # images of a tokenizer's training step
    dim: int = 2048
    compared: int = 512  # dimensions at which the distance by scipy is timed too
    few: int = 256  # features where there are fewer than dimensions
    image_size: int = 16  # of UNets, like all that follow
    base_channels: int = 64
    clips: int = 4  # of a batch
    drawn: int = 1  # videos at once
    steps: int = 8  # of a stage


FULL = Sizes()
SHORT = Sizes(32, ((1, 64), (8, 64)), 256, 1, 512, 128, 64, base_channels=32, clips=2, steps=4)
# Thesis Table D.4.
PAPER = FULL._replace(image_size=32, base_channels=128, clips=32, drawn=32, steps=25)


def bench_generate(settings: BenchGenerateSettings) -> None:
    """Measure, print the table, and write the numbers where asked."""
    with one_thread(settings.device) as device:
        gpu = device.type == "cuda"
        sizes = SHORT if settings.quick else PAPER if gpu else FULL
        results = [measure(group, settings.repeats) for group in groups(sizes, device)]
    note = (
        "; noise for images, random weights.\nTimes without a cache are extrapolated from four "
        f"lengths beyond one grid of {LIMIT} tokens."
        + ("\nUNets and videos: on the GPU, wall time." if gpu else "")
    )
    show([row for rows in results for row in rows], settings.repeats, note, settings.json)


def groups(sizes: Sizes, device: torch.device) -> Iterator[list[Row]]:
    """Yield the rows that are timed together; a group's models are freed after it."""
    yield corruptions(sizes.images)
    yield trainings(sizes)
    for batch, tokens in sizes.samples:
        yield samplers(batch, tokens)
    yield masked()
    yield distances(sizes)
    yield unets(sizes, device)
    yield videos(sizes, device)
    yield rank_rows(sizes.base_channels)


def corruptions(n: int) -> list[Row]:
    """Return the rows of blurred and noisy videos, and of the source of their noise."""
    data, index, count = noise(n, 3, 32, 32), torch.arange(n), (_FRAMES - 1) * 3 * 32 * 32
    blur = PseudoVideoConfig(kind="blur", num_frames=_FRAMES)
    noisy = PseudoVideoConfig(kind="high-order-noise", num_frames=_FRAMES)

    def drawn() -> Tensor:
        seeds = map(torch.Generator().manual_seed, range(n))
        return torch.stack([torch.randn(count, generator=seeded) for seeded in seeds])

    matrices = timed(lambda: pseudo_videos(data, blur))
    convolution = timed(lambda: convolved(data, _FRAMES, blur.blur_rate or 0.0))
    counter = timed(lambda: counter_normal(index, count, seed=0, epoch=0))
    generators = timed(drawn)
    rate = partial(Row, unit="/s", amount=n)
    return [
        rate(f"blur, {_FRAMES} frames of 3x32x32, batch {n}", matrices),
        rate("  by recursive convolution, 11x11", convolution),
        # Section 0.3 of the design: 2.5-3 times.
        Row("  matrices against it", convolution, goal=2.5, least=True, over=matrices),
        rate("high-order noise, the same sizes", timed(lambda: pseudo_videos(data, noisy))),
        rate("numbers of its noise, by a counter", counter),
        rate("  by a generator for each image", generators),
        Row("  counter against it", generators, over=counter),
    ]


def noise(*shape: int) -> Tensor:
    """Return colour noise in −1..1."""
    return 2 * torch.rand(shape, generator=torch.Generator().manual_seed(0)) - 1


def convolved(data: Tensor, frames: int, rate: float) -> Tensor:
    """Return videos (b, T, c, h, w) blurred frame after frame, 11×11, behind reflected borders.

    Step i has standard deviation exp(rate·i).
    """
    video = [data]
    for step in range(frames - 1):
        video.append(gaussian_blur(video[-1], [11, 11], [math.exp(rate * step)]))
    return torch.stack(video[::-1], dim=1)


def trainings(sizes: Sizes) -> list[Row]:
    """Return the rows of training steps: tokenizers, and a prior on stored or fresh tokens."""
    n, corruption = sizes.batch, PseudoVideoConfig(num_frames=_FRAMES)
    data = noise(n, 3, 32, 32)
    common: Any = {"dim": sizes.width, "codebook_size": CODES}
    image = TokenizerConfig(
        num_frames=1, temporal_patch=1, spatial_depth=DEPTH, temporal_depth=0, **common
    )
    video = TokenizerConfig(
        num_frames=_FRAMES, spatial_depth=DEPTH // 2, temporal_depth=DEPTH // 2, **common
    )
    # A tokenizer that learns has another one beside it that stays, for the prior.
    encoder, prior = build_tokenizer(video).eval(), autoregressive(256)

    @torch.no_grad()
    def encoded() -> Tensor:
        return encoder.encode(pseudo_videos(data, corruption))

    def tokenizer_step(config: TokenizerConfig) -> Case:
        # On squared error and commitment, pseudo videos included.
        tokenizer = build_tokenizer(config).train()

        def loss() -> Tensor:
            videos = pseudo_videos(data, PseudoVideoConfig(num_frames=config.num_frames))
            output = tokenizer(videos)
            return F.mse_loss(output.reconstruction, videos) + output.commitment

        return training_step(tokenizer, loss)

    tokens, one, eight = encoded(), tokenizer_step(image), tokenizer_step(video)
    stored = training_step(prior, lambda: prior.loss(tokens))
    anew = training_step(prior, lambda: prior.loss(encoded()))
    return [
        Row(f"tokenizer's step, width {sizes.width}, batch {n}: 1 frame", one, "ms"),
        Row(f"  {_FRAMES} frames, four times the tokens", eight, "ms"),
        Row("  against 1 frame", eight, over=one),
        Row(f"prior's step on stored tokens, batch {n}x256", stored, "ms"),
        Row("  with images encoded anew", anew, "ms"),
        # Section 0.3 of the design: 1.5-3.4 times.
        Row("  against stored tokens", anew, goal=1.5, least=True, over=stored),
    ]


def autoregressive(tokens: int) -> AutoregressivePrior:
    """Return a prior of the sizes of thesis Table D.2."""
    grid = (tokens // math.prod(SIDES), *SIDES)
    return AutoregressivePrior(AutoregressiveConfig(codebook_size=CODES, grid=grid))


def samplers(batch: int, tokens: int) -> list[Row]:
    """Return the rows of drawing grids with a cache, and without.

    The time of computing anew is four lengths' mean where there are more than `LIMIT` tokens in
    all.
    """
    prior = autoregressive(tokens)
    length = prior.grid.num_tokens

    def forward_pass(count: int) -> Case:
        # A prior of one row is the same network on a sequence of that length.
        short = AutoregressivePrior(replace(prior.config, grid=(1, 1, count)))
        short.blocks = prior.blocks
        row = torch.zeros(batch, 1, 1, count, dtype=torch.int64)
        return timed(lambda: short(row))

    passes, scale = [timed(lambda: prior.sample_tokens(batch, cache=False))], 1.0
    if batch * length > LIMIT:
        lengths = (round(length * (i + 0.5) / _NUM_LENGTHS) for i in range(_NUM_LENGTHS))
        passes, scale = [forward_pass(count) for count in lengths], length / _NUM_LENGTHS
    cache = timed(lambda: prior.sample_tokens(batch))

    def plain() -> float:
        return sum(run() for run in passes) * scale

    rate = partial(Row, unit="/s", amount=batch * tokens)
    goal = 6.0 if tokens == 64 else None
    return [
        rate(f"autoregressive tokens with a cache, {batch}x{tokens}", cache),
        rate("  without a cache", plain),
        Row("  against no cache", plain, goal=goal, least=True, over=cache),
    ]


def masked() -> list[Row]:
    """Return the rows of the masked prior of thesis Table D.3, its passes, and the other prior."""
    prior = MaskedPrior(MaskedConfig(codebook_size=CODES, grid=(1, *SIDES)))
    other, tokens = autoregressive(64), torch.zeros(1, prior.grid.num_tokens, dtype=torch.int64)
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    draw = timed(lambda: prior.sample_tokens(1, num_steps=STEPS))
    passes = timed(lambda: [prior(tokens, everywhere) for _ in range(STEPS)])
    cache = timed(lambda: other.sample_tokens(1))
    return [
        Row(f"masked tokens, {STEPS} steps, 1x64", draw, "/s", amount=64),
        # One pass a step: more would show here.
        Row(f"  against {STEPS} passes alone", draw, goal=1.2, over=passes),
        Row("autoregressive tokens, 1x64", cache, "/s", amount=64),
        Row("  against the masked prior", draw, over=cache),
    ]


def distances(sizes: Sizes) -> list[Row]:
    """Return the rows of the Fréchet distance: of moments, of few features, and by scipy."""
    both, two = moments(sizes.dim), moments(sizes.compared)
    pair = features(sizes.few, sizes.dim, 2), features(sizes.few, sizes.dim, 3)
    large, few = timed(lambda: frechet_distance(*both)), timed(lambda: frechet_distance(*pair))
    small, root = timed(lambda: frechet_distance(*two)), timed(lambda: distance_by_sqrtm(*two))
    return [
        Row(f"Fréchet distance of moments, {sizes.dim} dimensions", large, "s"),
        Row(f"  of {sizes.few} features on either side", few, "ms"),
        Row("  moments against these", large, over=few),
        Row(f"  of moments, {sizes.compared} dimensions", small, "ms"),
        Row("  there by scipy's sqrtm", root, "ms"),
        Row("  sqrtm against ours", root, over=small),
    ]


def features(count: int, dim: int, seed: int) -> Tensor:
    """Return correlated Gaussian features (n, d)."""
    generator = torch.Generator().manual_seed(seed)
    white = torch.randn(count, dim, generator=generator, dtype=torch.float64)
    return white * torch.linspace(1.0, 0.01, dim, dtype=torch.float64)


def moments(dim: int) -> list[FeatureMoments]:
    """Return the moments of two sets of features, twice as many as dimensions."""
    return [FeatureMoments.of(features(2 * dim, dim, seed)) for seed in (0, 1)]


def distance_by_sqrtm(first: FeatureMoments, second: FeatureMoments) -> float:
    """Return the distance as usual code computes it: with scipy's root of the covariances."""
    from scipy.linalg import sqrtm

    one, other = first.covariance, second.covariance
    root = np.asarray(sqrtm((one @ other).numpy()))
    shift = float((first.mean - second.mean).square().sum())
    return shift + float(one.trace() + other.trace()) - 2.0 * float(np.trace(root).real)


def unets(sizes: Sizes, device: torch.device) -> list[Row]:
    """Return the rows of UNets: passes and training steps, in float32 and in bfloat16."""
    side = sizes.image_size
    # Section 4 of the design; bfloat16 has a goal on a GPU alone.
    goal = 2.0 if device.type == "cuda" else None
    rows: list[Row] = []
    images: dict[str, Case] = {}
    for length in LENGTHS:
        frames, clips = 1 + length // 2, noise(sizes.clips, length, 3, side, side).to(device)
        exact, lean = (unet_model(length, sizes).to(device) for _ in range(2))
        lean.to(memory_format=torch.channels_last)
        of = f"UNet {sizes.base_channels}, {sizes.clips}x{frames} frames of 3x{side}x{side}"
        for work, name in ((forward, "forward pass"), (step, "training step")):
            full, half = work(exact, clips), work(lean, clips, True)
            image = images.setdefault(name, full)
            rows += [
                Row(f"{of}: {name}, float32", full, "ms"),
                Row("  bfloat16 and channels last", half, "ms"),
                Row("  against float32", full, goal=goal, least=True, over=half),
            ]
            if frames > 1:
                rows.append(
                    Row("  a frame against an image alone", full, over=image, amount=frames)
                )
    return rows


def unet_model(length: int, sizes: Sizes, one_way: bool = False) -> ImageDiffusion | VideoDiffusion:
    """Return the model of images, or of videos of so many frames."""
    size = sizes.image_size
    # Attention at 16 and 8 for 32 pixels.
    options: Any = {"image_size": size, "attention_sizes": (size // 2, size // 4)}
    options["base_channels"] = sizes.base_channels
    options["channel_multipliers"] = channel_multipliers_for(size)
    if length == 1:
        return ImageDiffusion(ImageDiffusionConfig(**options))
    options |= {"num_frames": length, "context": length // 2, "one_way": one_way}
    return VideoDiffusion(VideoDiffusionConfig(**options))


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


def videos(sizes: Sizes, device: torch.device) -> list[Row]:
    """Return the rows of drawing videos; one way, context frames don't see later ones."""
    length, n = LENGTHS[-1], sizes.drawn
    models = [unet_model(length, sizes, one_way).to(device) for one_way in (False, True)]
    draws = [partial(model.sample, n, num_steps=sizes.steps, batch_size=n) for model in models]
    both, one = (timed(draw, device) for draw in draws)
    frames = [cast("VideoDiffusion", model).evaluations_per_sample() for model in models]
    name = f"a video of {length} frames, context {length // 2}, {sizes.steps} steps a stage"
    return [
        Row(name, both, "ms", amount=n),
        Row("  one-way conditioning", one, "ms", amount=n),
        Row("  both ways against it", both, over=one),
        Row("  frames through the network, 1,000 steps a stage", frames[0], unit="frames"),
        Row("  one-way conditioning", frames[1], unit="frames"),
        # Section 4 of the design: 2-3 times.
        Row("  both ways against it", frames[0] / frames[1], goal=2.0, least=True),
    ]
