"""Samples of `probseq generate`: draws from a prior or a model, and their files."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from tqdm import tqdm

from probseq_apps.engine.files import load_arrays
from probseq_apps.experiments.generate_prior import Prior
from probseq_apps.experiments.generate_prior_groups import SamplingSettings
from probseq_apps.experiments.stored import save_arrays
from pseudovideo.priors import AutoregressivePrior
from pseudovideo.tokenizers import Tokenizer

# Videos that are kept whole, for pictures; of the others the image is kept.
_KEPT_VIDEOS = 64
# At once: keys and values of as many sequences must fit.
_BATCH = 250


class Samples(NamedTuple):
    """What was drawn.

    Attributes:
        images: last frames of all samples.
        videos: the first samples with all their frames.
        seconds: time that drawing and decoding took.
    """

    images: UInt8[Tensor, "n c h w"]
    videos: UInt8[Tensor, "m t c h w"]
    seconds: float

    def save(self, file: Path) -> None:
        """Write the arrays, all or nothing."""
        seconds = torch.tensor(self.seconds, dtype=torch.float64)
        save_arrays(file, {"images": self.images, "videos": self.videos, "seconds": seconds})

    @classmethod
    def load(cls, file: Path) -> "Samples":
        """Read what `save` wrote.

        Raises:
            FileNotFoundError: the file is not there.
            ValueError: it holds something else.
        """
        if not file.is_file():
            raise FileNotFoundError(f"samples must be a file of samples, and {file} is not there")
        arrays = load_arrays(file)
        try:
            images, videos = (torch.from_numpy(arrays[name]) for name in ("images", "videos"))
            return cls(images, videos, float(arrays["seconds"]))
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"samples must be a file of samples, and {file} holds none") from error


def draw_samples(
    prior: Prior, tokenizer: Tokenizer, num: int, settings: SamplingSettings, *, seed: int
) -> Samples:
    """Draw videos and keep what is needed of them.

    Args:
        prior: draws tokens; on the tokenizer's device.
        tokenizer: decodes them.
        num: how many.
        settings: how to draw.
        seed: of the draws.
    """
    draw = _drawer(prior, settings)

    def frames(count: int, generator: torch.Generator) -> Tensor:
        return draw(count, tokenizer, generator=generator, batch_size=count)

    return collect_samples(frames, num, next(tokenizer.parameters()).device, seed=seed)


def collect_samples(
    draw: Callable[[int, torch.Generator], Float[Tensor, "n f c y x"]],
    num: int,
    device: torch.device,
    *,
    seed: int,
) -> Samples:
    """Draw videos part by part and keep what is needed of them.

    Args:
        draw: gives so many videos, with the noise of a generator.
        num: how many.
        device: of the generator.
        seed: of the draws.
    """
    generator = torch.Generator(device).manual_seed(seed)
    images: list[Tensor] = []
    videos: list[Tensor] = []
    start = time.perf_counter()
    with tqdm(total=num, unit=" images", leave=False, disable=None) as bar:
        bar.set_description_str("samples")
        for first in range(0, num, _BATCH):
            count = min(_BATCH, num - first)
            frames = _bytes(draw(count, generator)).cpu()
            images.append(frames[:, -1])
            videos.append(frames[: max(0, _KEPT_VIDEOS - first)])
            bar.update(count)
    return Samples(torch.cat(images), torch.cat(videos), time.perf_counter() - start)


def _drawer(prior: Prior, settings: SamplingSettings) -> Callable[..., Float[Tensor, "n f c y x"]]:
    if isinstance(prior, AutoregressivePrior):
        return partial(
            prior.sample,
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
        )
    return partial(
        prior.sample,
        temperature=settings.temperature,
        num_steps=settings.num_steps,
        choice_temperature=settings.choice_temperature,
    )


def _bytes(frames: Float[Tensor, "n f c y x"]) -> UInt8[Tensor, "n f c y x"]:
    # The noise of pseudo videos goes beyond.
    return ((frames.clamp(-1, 1) + 1.0) * 127.5).round().to(torch.uint8)
