"""`probseq bench generate`: what the parts of image generation cost, and what they are beside.

UNets may run on a GPU.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from probseq.metrics.image import FeatureMoments, frechet_distance
from probseq_apps.bench.diffusion import PAPER, QUICK, SMALL, UNetSizes, diffusion_rows
from probseq_apps.bench.timing import Case, Row, interleaved, one_thread, show, timed, training_step
from probseq_apps.bench.videogpt import VideoGPTSampler
from probseq_apps.settings.bench import BenchGenerateSettings
from pseudovideo.corruptions import PseudoVideoConfig, counter_normal, pseudo_videos
from pseudovideo.priors import (
    AutoregressiveConfig,
    AutoregressivePrior,
    MaskedConfig,
    MaskedPrior,
)
from pseudovideo.tokenizers import Tokenizer, TokenizerConfig, build_tokenizer

CODES = 1024
# Tokens of 1, 8 and 18 frames of CIFAR-10.
GRIDS: dict[int, tuple[int, int, int]] = {64: (1, 8, 8), 256: (4, 8, 8), 576: (9, 8, 8)}
_FRAMES, _PARTS = 8, 4

Sampler = Literal["cache", "videogpt", "plain"]
_SAMPLERS: tuple[Sampler, ...] = ("cache", "videogpt", "plain")


class Sizes(NamedTuple):
    """How much is run."""

    images: int  # of a batch that is corrupted
    samples: tuple[tuple[int, int], ...]
    limit: int  # tokens that slow samplers draw
    masked: int  # grids that the masked prior draws at once
    steps: int  # of the masked prior
    width: int
    depth: int  # blocks of their encoders and decoders
    batch: int  # images of a training step
    dim: int
    compared: int  # dimensions at which the distance by scipy is timed too
    few: int  # features where there are fewer than dimensions
    unets: UNetSizes


FULL = Sizes(
    *(128, ((1, 64), (64, 64), (64, 256), (1, 576), (16, 576))),
    limit=64,
    masked=1,
    steps=18,
    width=512,
    depth=8,
    batch=2,
    dim=2048,
    compared=512,
    few=256,
    unets=SMALL,
)
SHORT = FULL._replace(
    images=32,
    samples=((1, 64), (8, 64)),
    width=256,
    batch=1,
    dim=512,
    compared=128,
    few=64,
    unets=QUICK,
)


def bench_generate(settings: BenchGenerateSettings) -> list[Row]:
    """Measure, print the table, write the numbers where asked, and return the table's rows."""
    sizes = SHORT if settings.quick else FULL
    with one_thread(settings.device) as device:
        if device.type == "cuda" and not settings.quick:
            sizes = sizes._replace(unets=PAPER)
        rows = measure(sizes, settings.repeats, device)
    note = (
        f"cpu, one thread, process time, medians of {settings.repeats} runs in turns; "
        "noise for images, random weights. VideoGPT's sampler "
        "is this program's, written from a description of its code, on the same weights.\n"
        f"Two times are extrapolated: VideoGPT's beyond {sizes.limit} tokens, each of which costs "
        f"the same there, and that without a cache, beyond one grid of {sizes.limit}, from passes "
        "over four lengths."
        + ("\nUNets and videos: on the GPU, wall time." if device.type == "cuda" else "")
    )
    show(rows, note, settings.json)
    return rows


def measure(sizes: Sizes, repeats: int, device: torch.device) -> list[Row]:
    """Return the rows of everything; UNets run on the device, all else on the CPU."""
    return [
        *_corruption_rows(sizes, interleaved(_corruptions(sizes), repeats)),
        *_training_rows(sizes, interleaved(_training(sizes), repeats)),
        *(row for size in sizes.samples for row in sampling_rows(*size, sizes.limit, repeats)),
        *_masked_rows(sizes, interleaved(_masked(sizes), repeats)),
        *_distance_rows(sizes, interleaved(_distances(sizes), repeats)),
        *diffusion_rows(sizes.unets, repeats, device),
    ]


def _corruptions(sizes: Sizes) -> dict[str, Case]:
    data, index = images(sizes.images), torch.arange(sizes.images)
    count = (_FRAMES - 1) * 3 * 32 * 32
    blur = PseudoVideoConfig(kind="blur", num_frames=_FRAMES)
    noise = PseudoVideoConfig(kind="high-order-noise", num_frames=_FRAMES)
    rate = cast(float, PseudoVideoConfig(num_frames=_FRAMES).blur_rate)

    def generators() -> Tensor:
        rows = [
            torch.randn(count, generator=torch.Generator().manual_seed(number))
            for number in range(sizes.images)
        ]
        return torch.stack(rows)

    return {
        "matrices": timed(lambda: pseudo_videos(data, blur)),
        "convolution": timed(lambda: convolved(data, _FRAMES, rate)),
        "noisy": timed(lambda: pseudo_videos(data, noise)),
        "counter": timed(lambda: counter_normal(index, count, seed=0, epoch=0)),
        "generators": timed(generators),
    }


def _corruption_rows(sizes: Sizes, found: Mapping[str, float]) -> list[Row]:
    rate = {name: sizes.images / seconds for name, seconds in found.items()}
    return [
        Row(f"blur, {_FRAMES} frames of 3x32x32, batch {sizes.images}", rate["matrices"], "/s"),
        Row("  by recursive convolution, 11x11", rate["convolution"], "/s"),
        # Section 0.3 of the design: 2.5-3 times.
        Row("  matrices against it", rate["matrices"] / rate["convolution"], "x", 2.5, least=True),
        Row("high-order noise, the same sizes", rate["noisy"], "/s"),
        Row("numbers of its noise, by a counter", rate["counter"], "/s"),
        Row("  by a generator for each image", rate["generators"], "/s"),
        Row("  counter against it", rate["counter"] / rate["generators"], "x"),
    ]


def images(batch: int, size: int = 32) -> Tensor:
    """Return colour noise in −1..1."""
    return 2 * torch.rand(batch, 3, size, size, generator=torch.Generator().manual_seed(0)) - 1


def convolved(data: Tensor, frames: int, rate: float) -> Tensor:
    """Return videos (b, T, c, h, w) blurred frame after frame, 11×11, behind reflected borders.

    Args:
        data: images (b, c, h, w).
        frames: T.
        rate: step i has standard deviation exp(rate·i).
    """
    video, offsets = [data], torch.arange(-5.0, 6.0, dtype=data.dtype)
    for step in range(frames - 1):
        taps = torch.exp(-0.5 * (offsets / math.exp(rate * step)).square())
        taps = taps / taps.sum()
        kernel = (taps[:, None] * taps).expand(data.shape[1], 1, -1, -1)
        bordered = F.pad(video[-1], (5, 5, 5, 5), mode="reflect")
        video.append(F.conv2d(bordered, kernel, groups=data.shape[1]))
    return torch.stack(video[::-1], dim=1)


def _training(sizes: Sizes) -> dict[str, Case]:
    half = sizes.depth // 2
    plain = TokenizerConfig(
        num_frames=1,
        temporal_patch=1,
        spatial_depth=sizes.depth,
        temporal_depth=0,
        dim=sizes.width,
        codebook_size=CODES,
    )
    video = TokenizerConfig(
        num_frames=_FRAMES,
        spatial_depth=half,
        temporal_depth=half,
        dim=sizes.width,
        codebook_size=CODES,
    )
    # A tokenizer that learns has another one beside it that stays, for the prior.
    encoder, prior = build_tokenizer(video).eval(), autoregressive(256)
    data = images(sizes.batch, video.image_size)
    corruption = PseudoVideoConfig(num_frames=_FRAMES)

    def encoded() -> Tensor:
        with torch.no_grad():
            return encoder.encode(pseudo_videos(data, corruption))

    tokens = encoded()
    return {
        "one": tokenizer_step(build_tokenizer(plain), sizes.batch),
        "eight": tokenizer_step(build_tokenizer(video), sizes.batch),
        "stored": training_step(prior, lambda: prior.loss(tokens)),
        "encoded": training_step(prior, lambda: prior.loss(encoded())),
    }


def tokenizer_step(tokenizer: Tokenizer, batch: int) -> Case:
    """Time a step on squared error and commitment, pseudo videos included."""
    config = tokenizer.config
    data, corruption = (
        images(batch, config.image_size),
        PseudoVideoConfig(num_frames=config.num_frames),
    )

    def loss() -> Tensor:
        videos = pseudo_videos(data, corruption)
        output = tokenizer(videos)
        return F.mse_loss(output.reconstruction, videos) + output.commitment

    return training_step(tokenizer.train(), loss)


def _training_rows(sizes: Sizes, found: Mapping[str, float]) -> list[Row]:
    name = f"tokenizer's step, width {sizes.width}, batch {sizes.batch}"
    return [
        Row(f"{name}: 1 frame", 1e3 * found["one"], "ms"),
        Row(f"  {_FRAMES} frames, four times the tokens", 1e3 * found["eight"], "ms"),
        Row("  against 1 frame", found["eight"] / found["one"], "x"),
        Row(f"prior's step on stored tokens, batch {sizes.batch}x256", 1e3 * found["stored"], "ms"),
        Row("  with images encoded anew", 1e3 * found["encoded"], "ms"),
        # Section 0.3 of the design: 1.5-3.4 times.
        Row("  against stored tokens", found["encoded"] / found["stored"], "x", 1.5, least=True),
    ]


def sampling_rows(batch: int, tokens: int, limit: int, repeats: int) -> list[Row]:
    """Return the rows of the autoregressive samplers at one size."""
    prior = autoregressive(tokens)
    found = interleaved({name: sampling(name, prior, batch, limit) for name in _SAMPLERS}, repeats)
    rate = {name: batch * tokens / seconds for name, seconds in found.items()}
    plain, videogpt = rate["cache"] / rate["plain"], rate["cache"] / rate["videogpt"]
    return [
        Row(f"autoregressive tokens with a cache, {batch}x{tokens}", rate["cache"], "/s"),
        Row("  VideoGPT's sampler", rate["videogpt"], "/s"),
        Row("  against VideoGPT's", videogpt, "x", 3.0 if batch == 1 else 2.0, least=True),
        Row("  without a cache", rate["plain"], "/s"),
        Row("  against no cache", plain, "x", 6.0 if tokens == 64 else None, least=True),
    ]


def autoregressive(tokens: int) -> AutoregressivePrior:
    """Return a prior of the sizes of thesis Table D.2."""
    return AutoregressivePrior(AutoregressiveConfig(codebook_size=CODES, grid=GRIDS[tokens]))


def sampling(sampler: Sampler, prior: AutoregressivePrior, batch: int, limit: int) -> Case:
    """Time drawing a batch of grids with the cache, VideoGPT's way, or computing all anew.

    Of `limit` tokens VideoGPT's time is scaled, each of which costs the same; that of computing
    anew is four lengths' mean where there are more tokens in all.
    """
    length = prior.grid.num_tokens
    if sampler == "videogpt":
        steps, model = min(limit, length), VideoGPTSampler(prior)
        case = timed(lambda: model.sample_tokens(batch, steps))
        return lambda: case() * length / steps
    if sampler == "cache" or batch * length <= limit:
        return timed(lambda: prior.sample_tokens(batch, cache=sampler == "cache"))
    parts = [
        _recomputation(prior, batch, round(length * (part + 0.5) / _PARTS))
        for part in range(_PARTS)
    ]
    return lambda: sum(part() for part in parts) * length / _PARTS


def _recomputation(prior: AutoregressivePrior, batch: int, count: int) -> Case:
    # A prior of one row is the same network on a sequence of that length.
    short = AutoregressivePrior(replace(prior.config, grid=(1, 1, count)))
    short.blocks = prior.blocks
    tokens = torch.zeros(batch, 1, 1, count, dtype=torch.int64)
    return timed(lambda: short(tokens))


def masked(tokens: int) -> MaskedPrior:
    """Return a prior of the sizes of thesis Table D.3."""
    return MaskedPrior(MaskedConfig(codebook_size=CODES, grid=GRIDS[tokens]))


def _masked(sizes: Sizes) -> dict[str, Case]:
    prior, count = masked(64), sizes.masked
    tokens = torch.zeros(count, prior.grid.num_tokens, dtype=torch.int64)
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    return {
        "masked": timed(lambda: prior.sample_tokens(count, num_steps=sizes.steps)),
        "passes": timed(lambda: [prior(tokens, everywhere) for _ in range(sizes.steps)]),
        "autoregressive": sampling("cache", autoregressive(64), count, 64),
    }


def _masked_rows(sizes: Sizes, found: Mapping[str, float]) -> list[Row]:
    rate = {name: sizes.masked * 64 / seconds for name, seconds in found.items()}
    return [
        Row(f"masked tokens, {sizes.steps} steps, {sizes.masked}x64", rate["masked"], "/s"),
        # One pass a step: more would show here.
        Row(f"  against {sizes.steps} passes alone", found["masked"] / found["passes"], "x", 1.2),
        Row(f"autoregressive tokens, {sizes.masked}x64", rate["autoregressive"], "/s"),
        Row("  against the masked prior", rate["autoregressive"] / rate["masked"], "x"),
    ]


def _distances(sizes: Sizes) -> dict[str, Case]:
    large, small = moments(sizes.dim), moments(sizes.compared)
    few = features(sizes.few, sizes.dim, 2), features(sizes.few, sizes.dim, 3)
    return {
        "large": timed(lambda: frechet_distance(*large)),
        "small": timed(lambda: frechet_distance(*small)),
        "sqrtm": timed(lambda: distance_by_sqrtm(*small)),
        "few": timed(lambda: frechet_distance(*few)),
    }


def _distance_rows(sizes: Sizes, found: Mapping[str, float]) -> list[Row]:
    return [
        Row(f"Fréchet distance of moments, {sizes.dim} dimensions", found["large"], "s"),
        Row(f"  of {sizes.few} features on either side", 1e3 * found["few"], "ms"),
        Row("  moments against these", found["large"] / found["few"], "x"),
        Row(f"  of moments, {sizes.compared} dimensions", 1e3 * found["small"], "ms"),
        Row("  there by scipy's sqrtm", 1e3 * found["sqrtm"], "ms"),
        Row("  sqrtm against ours", found["sqrtm"] / found["small"], "x"),
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
