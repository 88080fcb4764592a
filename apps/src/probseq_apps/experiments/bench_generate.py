"""`probseq bench generate`: what the parts of image generation cost, and what they are beside.

All cases of a part run in turns, on one thread, and the medians of the process' own time are
shown, so that ratios mean something on a busy machine too. UNets may run on a GPU.
"""

import json
from collections.abc import Mapping
from typing import NamedTuple

import torch

from probseq_apps.experiments import bench_generate_cases as cases
from probseq_apps.experiments.bench_generate_cases import SampleSize
from probseq_apps.experiments.bench_generate_diffusion import (
    PAPER,
    QUICK,
    SMALL,
    UNetSizes,
    diffusion_rows,
)
from probseq_apps.experiments.bench_generate_settings import BenchGenerateSettings
from probseq_apps.experiments.bench_online import Row, table
from probseq_apps.experiments.bench_online_cases import Case, interleaved
from pseudovideo.tokenizers import TokenizerConfig, build_tokenizer

_FRAMES = 8


class Sizes(NamedTuple):
    """How much is run.

    Attributes:
        images: of a batch that is corrupted.
        samples: batches and tokens of the autoregressive samplers.
        limit: tokens that slow samplers draw; their time for more is extrapolated, see `sampling`.
        masked: grids that the masked prior draws at once.
        steps: of the masked prior.
        width: of the tokenizers.
        depth: blocks of their encoders and decoders.
        batch: images of a training step.
        dim: of the features.
        compared: dimensions at which the distance by scipy is timed too.
        few: features where there are fewer than dimensions.
        unets: of diffusion.
    """

    images: int
    samples: tuple[SampleSize, ...]
    limit: int
    masked: int
    steps: int
    width: int
    depth: int
    batch: int
    dim: int
    compared: int
    few: int
    unets: UNetSizes


_FULL = Sizes(
    images=128,
    samples=tuple(
        SampleSize(*size) for size in ((1, 64), (64, 64), (64, 256), (1, 576), (16, 576))
    ),
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
_QUICK = _FULL._replace(
    images=32,
    samples=(SampleSize(1, 64), SampleSize(8, 64)),
    width=256,
    batch=1,
    dim=512,
    compared=128,
    few=64,
    unets=QUICK,
)


def bench_generate(settings: BenchGenerateSettings) -> list[Row]:
    """Measure, print the table, and write the numbers where asked.

    Args:
        settings: how often, and at which sizes.

    Returns:
        The table's rows.

    Raises:
        ValueError: the device is not there.
        OSError: the file cannot be written.
    """
    device = torch.device(settings.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device must be cpu on a machine without CUDA, got 'cuda'")
    sizes = _QUICK if settings.quick else _FULL
    if device.type == "cuda" and not settings.quick:
        sizes = sizes._replace(unets=PAPER)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = measure(sizes, settings.repeats, device)
    finally:
        torch.set_num_threads(threads)
    print(table(rows))
    print(
        f"\ntorch {torch.__version__}, cpu, one thread, process time, medians of "
        f"{settings.repeats} runs in turns; noise for images, random weights. VideoGPT's sampler "
        "is this program's, written from a description of its code, on the same weights.\n"
        f"Two times are extrapolated: VideoGPT's beyond {sizes.limit} tokens, each of which costs "
        f"the same there, and that without a cache, beyond one grid of {sizes.limit}, from passes "
        "over four lengths."
        + ("\nUNets and videos: on the GPU, wall time." if device.type == "cuda" else "")
    )
    if settings.json is not None:
        numbers = [row._asdict() | {"met": row.met} for row in rows]
        settings.json.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
    return rows


def measure(sizes: Sizes, repeats: int, device: torch.device) -> list[Row]:
    """Run everything.

    Args:
        sizes: how much.
        repeats: timed runs of each case.
        device: where UNets run; all else runs on the CPU.
    """
    return [
        *_corruption_rows(sizes, interleaved(_corruptions(sizes), repeats)),
        *_training_rows(sizes, interleaved(_training(sizes), repeats)),
        *(row for size in sizes.samples for row in _sampling(size, sizes.limit, repeats)),
        *_masked_rows(sizes, interleaved(_masked(sizes), repeats)),
        *_distance_rows(sizes, interleaved(_distances(sizes), repeats)),
        *diffusion_rows(sizes.unets, repeats, device),
    ]


def _corruptions(sizes: Sizes) -> dict[str, Case]:
    count = (_FRAMES - 1) * 3 * 32 * 32
    return {
        "matrices": cases.videos("blur", _FRAMES, sizes.images),
        "convolution": cases.blur_by_convolution(_FRAMES, sizes.images),
        "noisy": cases.videos("high-order-noise", _FRAMES, sizes.images),
        "counter": cases.counter_noise(sizes.images, count),
        "generators": cases.generator_noise(sizes.images, count),
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


def _training(sizes: Sizes) -> dict[str, Case]:
    half = sizes.depth // 2
    image = TokenizerConfig(
        num_frames=1,
        temporal_patch=1,
        spatial_depth=sizes.depth,
        temporal_depth=0,
        dim=sizes.width,
        codebook_size=cases.CODES,
    )
    video = TokenizerConfig(
        num_frames=_FRAMES,
        spatial_depth=half,
        temporal_depth=half,
        dim=sizes.width,
        codebook_size=cases.CODES,
    )
    # A tokenizer that learns has another one beside it that stays, for the prior.
    encoder = build_tokenizer(video)
    prior = cases.autoregressive(256)
    return {
        "one": cases.tokenizer_step(build_tokenizer(image), sizes.batch),
        "eight": cases.tokenizer_step(build_tokenizer(video), sizes.batch),
        "stored": cases.prior_step(prior, encoder, sizes.batch, stored=True),
        "encoded": cases.prior_step(prior, encoder, sizes.batch, stored=False),
    }


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


def _sampling(size: SampleSize, limit: int, repeats: int) -> list[Row]:
    prior = cases.autoregressive(size.tokens)
    samplers: tuple[cases.Sampler, ...] = ("cache", "videogpt", "plain")
    found = interleaved(
        {name: cases.sampling(name, prior, size.batch, limit) for name in samplers}, repeats
    )
    rate = {name: size.batch * size.tokens / seconds for name, seconds in found.items()}
    plain, videogpt = rate["cache"] / rate["plain"], rate["cache"] / rate["videogpt"]
    return [
        Row(f"autoregressive tokens with a cache, {size.batch}x{size.tokens}", rate["cache"], "/s"),
        Row("  VideoGPT's sampler", rate["videogpt"], "/s"),
        Row("  against VideoGPT's", videogpt, "x", 3.0 if size.batch == 1 else 2.0, least=True),
        Row("  without a cache", rate["plain"], "/s"),
        Row("  against no cache", plain, "x", 6.0 if size.tokens == 64 else None, least=True),
    ]


def _masked(sizes: Sizes) -> dict[str, Case]:
    prior = cases.masked(64)
    return {
        "masked": cases.masked_sampling(prior, sizes.masked, sizes.steps),
        "passes": cases.masked_passes(prior, sizes.masked, sizes.steps),
        "autoregressive": cases.sampling("cache", cases.autoregressive(64), sizes.masked, 64),
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
    large, small = cases.moments(sizes.dim), cases.moments(sizes.compared)
    few = cases.features(sizes.few, sizes.dim, 2), cases.features(sizes.few, sizes.dim, 3)
    return {
        "large": cases.timed(cases.distance(*large)),
        "small": cases.timed(cases.distance(*small)),
        "sqrtm": cases.timed(lambda: cases.distance_by_sqrtm(*small)),
        "few": cases.timed(cases.distance(*few)),
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
