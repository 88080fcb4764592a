"""Samples as bytes, drawn batch by batch, and films of how they come into being."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from pseudovideo.diffusion.image import ImageDiffusion
from pseudovideo.diffusion.sampling import conditioned
from pseudovideo.diffusion.video import VideoDiffusion
from pseudovideo.hvae import HVAE
from pseudovideo.labels import NO_CLASSES, sample_classes
from pseudovideo.pixels import to_bytes
from pseudovideo.priors.base import TokenPrior
from pseudovideo.ranks import shared_rows


class Film(NamedTuple):
    """Snapshots of how a few samples came into being.

    An image model has predictions of the image, T = 1; a video model all its frames, those that
    have not begun being grey; an HVAE the image of each level, T = 1.
    """

    frames: UInt8[Tensor, "n k t c h w"]  # of n samples at k snapshots
    # Denoising steps, over all stages, or levels that were done; rising to their total
    done: Int64[Tensor, " k"]
    stages: Int64[Tensor, ""]  # how many there are, of as many steps each


def draw_samples(
    model: ImageDiffusion | VideoDiffusion | HVAE | TokenPrior,
    num: int,
    *,
    labels: Int64[Tensor, " n"] | None = None,
    keep: int = 64,
    batch_size: int = 250,
    progress: Callable[[int], object] | None = None,
    **options: Any,
) -> tuple[UInt8[Tensor, "n c h w"], UInt8[Tensor, "m t c h w"]]:
    """Return the last frames of all samples, and the first samples with all their frames.

    So many as `keep` says are kept whole, fewer where there are fewer. Other arguments are those of
    the model's `sample`; from a `RowGenerator` all ranks draw together.
    """
    images: list[Tensor] = []
    videos: list[Tensor] = []
    for first in range(0, num, batch_size):
        count = min(batch_size, num - first)
        classes = None if labels is None else labels[first : first + count]

        def drawn(rows: slice, classes: Tensor | None = classes) -> Tensor:
            if classes is not None:
                options["labels"] = classes[rows]
            size = rows.stop - rows.start
            samples = model.sample(size, batch_size=size, **options)
            return to_bytes(samples if samples.ndim == 5 else samples[:, None])

        frames = shared_rows(drawn, count, options.get("generator"))
        images.append(frames[:, -1])
        videos.append(frames[: max(0, keep - first)])
        if progress is not None:
            progress(len(frames))
    return torch.cat(images), torch.cat(videos)


def film(
    model: ImageDiffusion | VideoDiffusion | HVAE,
    n: int,
    *,
    snapshots: int = 24,
    generator: torch.Generator | None = None,
    **options: Any,
) -> Film:
    """Draw samples and watch: what an image model takes images to be, frames, or levels.

    They are drawn at once, with about so many snapshots of a diffusion model's steps; other
    arguments are those of the model's `sample`.
    """
    frames: list[Tensor] = []
    done: list[int] = []
    if isinstance(model, HVAE):
        options["watch"] = lambda level, z: frames.append(z[:, None])
        model.sample(n, generator=generator, batch_size=n, **options)
        one = torch.tensor(1)
        return Film(to_bytes(torch.stack(frames, 1)), torch.arange(len(frames)), one)
    steps = options.get("num_steps")
    diffusion = model.diffusion if steps is None else model.diffusion.respaced(steps)
    total = len(model.stages) * diffusion.num_steps
    every = max(1, total // snapshots)
    classes = NO_CLASSES
    if isinstance(model, ImageDiffusion):  # whose predictions are shown, of the same classes
        classes_of = options.get("labels"), options.get("guidance", 1.0)
        source: Any = {"generator": generator, "device": model.device}
        classes = sample_classes(model.config, n, *classes_of, **source)
        options["labels"] = classes.labels

    def watch(left: int, state: Tensor) -> None:
        if left and (total - left) % every:
            return
        done.append(total - left)
        if isinstance(model, VideoDiffusion):
            shown = state.clone()
            for number, stage in enumerate(model.stages):
                if total - left <= number * diffusion.num_steps:  # not begun: grey
                    shown[:, list(stage.latent)] = 0.0
        elif left == 0:
            shown = state[:, None]
        else:
            # What follows is step left − 1, and this is what it will head for.
            times = torch.full((len(state),), left - 1, device=state.device)
            output = conditioned(model, classes)(state, diffusion.model_times(times))
            shown = diffusion.reverse(output, state, left - 1).x0[:, None]
        frames.append(shown)

    model.sample(n, generator=generator, batch_size=n, watch=watch, **options)
    num_stages = torch.tensor(len(model.stages))
    return Film(to_bytes(torch.stack(frames, 1)), torch.tensor(done), num_stages)
