"""What `probseq bench generate` times: corruptions, tokenizers, samplers, and distances.

A case makes what it needs outside the clock and gives the seconds of what is timed, in the
process' own time. Networks have random weights and images are noise: no time depends on values.
"""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probseq.metrics.image import FeatureMoments, frechet_distance
from probseq_apps.experiments.bench_generate_videogpt import VideoGPTSampler
from probseq_apps.experiments.bench_online_cases import Case
from pseudovideo.corruptions import CorruptionKind, PseudoVideoConfig, counter_normal, pseudo_videos
from pseudovideo.priors import (
    AutoregressiveConfig,
    AutoregressivePrior,
    MaskedConfig,
    MaskedPrior,
)
from pseudovideo.tokenizers import Tokenizer

CODES = 1024
# Tokens of 1, 8 and 18 frames of CIFAR-10.
GRIDS: dict[int, tuple[int, int, int]] = {64: (1, 8, 8), 256: (4, 8, 8), 576: (9, 8, 8)}
_PARTS = 4

Sampler = Literal["cache", "plain", "videogpt"]


class SampleSize(NamedTuple):
    """How much a sampler draws.

    Attributes:
        batch: grids at once.
        tokens: of each grid; a key of `GRIDS`.
    """

    batch: int
    tokens: int


def images(batch: int, size: int = 32) -> Tensor:
    """Colour noise in −1..1."""
    return 2 * torch.rand(batch, 3, size, size, generator=torch.Generator().manual_seed(0)) - 1


def timed(work: Callable[[], object]) -> Case:
    """Seconds of one call, without gradients."""

    def run() -> float:
        with torch.inference_mode():
            start = time.process_time()
            work()
            return time.process_time() - start

    return run


def videos(kind: CorruptionKind, frames: int, batch: int) -> Case:
    """Pseudo videos of a batch, as the package makes them."""
    data, config = images(batch), PseudoVideoConfig(kind=kind, num_frames=frames)
    return timed(lambda: pseudo_videos(data, config))


def blur_by_convolution(frames: int, batch: int) -> Case:
    """The same blur, frame after frame with an 11×11 kernel behind reflected borders."""
    data, rate = images(batch), cast(float, PseudoVideoConfig(num_frames=frames).blur_rate)
    return timed(lambda: convolved(data, frames, rate))


def convolved(data: Tensor, frames: int, rate: float) -> Tensor:
    """Blur videos (b, T, c, h, w) by recursive convolution.

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


def counter_noise(batch: int, count: int) -> Case:
    """Noise of a batch from the numbers of its images, in tensor operations."""
    index = torch.arange(batch)
    return timed(lambda: counter_normal(index, count, seed=0, epoch=0))


def generator_noise(batch: int, count: int) -> Case:
    """Noise that depends on the images' numbers too: a generator for each image."""

    def draw() -> Tensor:
        rows = [
            torch.randn(count, generator=torch.Generator().manual_seed(number))
            for number in range(batch)
        ]
        return torch.stack(rows)

    return timed(draw)


def tokenizer_step(tokenizer: Tokenizer, batch: int) -> Case:
    """A step of AdamW on squared error and commitment, pseudo videos included."""
    config = tokenizer.config
    data = images(batch, config.image_size)
    corruption = PseudoVideoConfig(num_frames=config.num_frames)

    def loss() -> Tensor:
        batch_of_videos = pseudo_videos(data, corruption)
        output = tokenizer(batch_of_videos)
        return F.mse_loss(output.reconstruction, batch_of_videos) + output.commitment

    return training_step(tokenizer.train(), loss)


def prior_step(prior: AutoregressivePrior, tokenizer: Tokenizer, batch: int, stored: bool) -> Case:
    """A step of AdamW of a prior on tokens that are stored, or made anew from images."""
    data = images(batch, tokenizer.config.image_size)
    corruption = PseudoVideoConfig(num_frames=tokenizer.config.num_frames)
    tokenizer.eval()

    def encoded() -> Tensor:
        with torch.no_grad():
            return tokenizer.encode(pseudo_videos(data, corruption))

    tokens = encoded()
    return training_step(prior, lambda: prior.loss(tokens if stored else encoded()))


def training_step(model: nn.Module, loss: Callable[[], Tensor]) -> Case:
    """Seconds of a forward pass, a backward pass, and AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def run() -> float:
        start = time.process_time()
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        return time.process_time() - start

    return run


def autoregressive(tokens: int) -> AutoregressivePrior:
    """A prior of the sizes of thesis Table D.2."""
    return AutoregressivePrior(AutoregressiveConfig(codebook_size=CODES, grid=GRIDS[tokens]))


def sampling(sampler: Sampler, prior: AutoregressivePrior, batch: int, limit: int) -> Case:
    """Seconds of drawing a batch of grids.

    Args:
        sampler: with the cache, plain re-computation of all tokens before, or VideoGPT's way.
        prior: the network.
        batch: grids at once.
        limit: tokens that are drawn where a sampler is too slow to draw more: VideoGPT's time is
            scaled from so many tokens of a grid, each of which costs the same; that of
            re-computation is four lengths' mean where there are more tokens in all.
    """
    length = prior.grid.num_tokens
    if sampler == "cache":
        return timed(lambda: prior.sample_tokens(batch))
    if sampler == "videogpt":
        steps = min(limit, length)
        model = VideoGPTSampler(prior)
        case = timed(lambda: model.sample_tokens(batch, steps))
        return lambda: case() * length / steps
    if batch * length <= limit:
        return timed(lambda: prior.sample_tokens(batch, cache=False))
    lengths = [round(length * (part + 0.5) / _PARTS) for part in range(_PARTS)]
    parts = [timed(_recomputation(prior, batch, count)) for count in lengths]
    return lambda: sum(part() for part in parts) * length / _PARTS


def _recomputation(prior: AutoregressivePrior, batch: int, count: int) -> Callable[[], object]:
    # A prior of one row is the same network on a sequence of that length.
    short = AutoregressivePrior(replace(prior.config, grid=(1, 1, count)))
    short.blocks = prior.blocks
    tokens = torch.zeros(batch, 1, 1, count, dtype=torch.int64)
    return lambda: short(tokens)


def masked(tokens: int) -> MaskedPrior:
    """A prior of the sizes of thesis Table D.3."""
    return MaskedPrior(MaskedConfig(codebook_size=CODES, grid=GRIDS[tokens]))


def masked_sampling(prior: MaskedPrior, batch: int, steps: int) -> Case:
    """Seconds of drawing a batch of grids in so many steps."""
    return timed(lambda: prior.sample_tokens(batch, num_steps=steps))


def masked_passes(prior: MaskedPrior, batch: int, steps: int) -> Case:
    """Seconds of so many passes of the network over all tokens, and of nothing else."""
    tokens = torch.zeros(batch, prior.grid.num_tokens, dtype=torch.int64)
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    return timed(lambda: [prior(tokens, everywhere) for _ in range(steps)])


def features(count: int, dim: int, seed: int) -> Tensor:
    """Correlated Gaussian features (n, d)."""
    generator = torch.Generator().manual_seed(seed)
    white = torch.randn(count, dim, generator=generator, dtype=torch.float64)
    return white * torch.linspace(1.0, 0.01, dim, dtype=torch.float64)


def moments(dim: int) -> tuple[FeatureMoments, FeatureMoments]:
    """Of two sets of features, as many again as dimensions."""
    return (
        FeatureMoments.of(features(2 * dim, dim, 0)),
        FeatureMoments.of(features(2 * dim, dim, 1)),
    )


def distance(
    first: Tensor | FeatureMoments, second: Tensor | FeatureMoments
) -> Callable[[], object]:
    """The package's Fréchet distance."""
    return lambda: frechet_distance(first, second)


def distance_by_sqrtm(first: FeatureMoments, second: FeatureMoments) -> float:
    """The usual code's: the trace of scipy's root of the product of both covariances."""
    from scipy.linalg import sqrtm

    one, other = first.covariance, second.covariance
    root = np.asarray(sqrtm((one @ other).numpy()))
    shift = float((first.mean - second.mean).square().sum())
    return shift + float(one.trace() + other.trace()) - 2.0 * float(np.trace(root).real)
