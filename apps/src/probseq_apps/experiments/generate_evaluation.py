"""What is measured of reconstructions and of samples."""

import math
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from probseq.metrics.image import (
    FeatureExtractor,
    FeatureMoments,
    distance_name,
    extract_features,
    frechet_distance,
    inception_score,
    psnr,
)
from probseq_apps.data.images import to_unit
from pseudovideo.corruptions import PseudoVideoConfig, pseudo_videos
from pseudovideo.grid import TokenGrid

# Ten parts as in papers, where a part has so many samples; one part of everything below.
_SPLITS, _LEAST_PART = 10, 100


@runtime_checkable
class ImageCoder(Protocol):
    """A tokenizer, or `PatchKMeans`."""

    @property
    def grid(self) -> TokenGrid:
        """The tokens of a video."""
        ...

    def encode(self, videos: Float[Tensor, "b f c y x"]) -> Int64[Tensor, "b t h w"]:
        """Tokens of videos."""
        ...

    def decode(self, indices: Int64[Tensor, "b t h w"]) -> Float[Tensor, "b f c y x"]:
        """Frames of tokens."""
        ...


def evaluate_reconstruction(
    tokenizer: ImageCoder,
    images: UInt8[Tensor, "n c h w"],
    corruption: PseudoVideoConfig,
    extractor: FeatureExtractor,
    *,
    seed: int = 0,
    batch_size: int = 64,
    device: torch.device | str = "cpu",
) -> dict[str, Any]:
    """Quality of reconstructed images, and how many codes they took.

    Args:
        tokenizer: on `device`, in eval mode.
        images: the test part.
        corruption: of the tokenizer's training.
        extractor: of the features that the distance compares.
        seed: of the corruptions' noise.
        batch_size: images at a time.
        device: where videos are made.

    Returns:
        psnr: mean over images of the last frame's PSNR in dB, the range being -1..1; None where an
            image came back exactly.
        psnr_all_frames: the same over all frames; noisy frames may lie outside the range that
            reconstructions are clamped to.
        fd, fd_name: Fréchet distance between the last frames and the images themselves.
        num_images: how many images.
        usage: share of the codebook that all tokens of all images chose.
        perplexity: exp of the entropy of the choices, 1..K.
    """
    last: list[Tensor] = []
    of_last: list[Tensor] = []
    of_all: list[Tensor] = []
    size = tokenizer.grid.codebook_size
    counts = torch.zeros(size, dtype=torch.int64)
    for index in torch.arange(len(images)).split(batch_size):
        originals = to_unit(images[index].to(device))
        videos = pseudo_videos(originals, corruption, seed=seed, index=index.to(device))
        tokens = tokenizer.encode(videos)
        frames = tokenizer.decode(tokens)
        counts += torch.bincount(tokens.flatten().cpu(), minlength=size)
        last.append(frames[:, -1].cpu())
        of_last.append(psnr(frames[:, -1], videos[:, -1]).cpu())
        of_all.append(psnr(frames.flatten(0, 1), videos.flatten(0, 1)).cpu())
    features = extract_features(extractor, torch.cat(last)).features
    reference = extract_features(extractor, images).features
    shares = counts.double() / counts.sum()
    return {
        "psnr": _defined(torch.cat(of_last).mean()),
        "psnr_all_frames": _defined(torch.cat(of_all).mean()),
        "fd": _defined(frechet_distance(reference, features)),
        "fd_name": distance_name(extractor),
        "num_images": len(images),
        "usage": float((counts > 0).double().mean()),
        "perplexity": float(torch.special.entr(shares).sum().exp()),
    }


def reference_moments(
    extractor: FeatureExtractor, images: UInt8[Tensor, "n c h w"], *, batch_size: int = 1024
) -> FeatureMoments:
    """Moments of the features of a data set, which `evaluate_generation` takes many times.

    Args:
        extractor: of the features.
        images: the training part, that samples are compared with.
        batch_size: images whose features are held at once.
    """
    first, *others = images.split(batch_size)
    moments = FeatureMoments.of(extract_features(extractor, first).features)
    for part in others:
        moments = moments.update(extract_features(extractor, part).features)
    return moments


def evaluate_generation(
    frames: Float[Tensor, "n t c h w"] | UInt8[Tensor, "n t c h w"],
    reference: FeatureMoments,
    extractor: FeatureExtractor,
) -> dict[str, Any]:
    """Quality of samples: of their last frames.

    Args:
        frames: videos as a prior draws them, in -1..1 or as bytes; real images are videos of one
            frame.
        reference: `reference_moments` of the training images under the same extractor.
        extractor: of the features.

    Returns:
        fd, fd_name: Fréchet distance from the reference.
        is, is_std: inception score and its standard deviation over the splits; None without
            classes.
        is_splits: ten, or one where a tenth would be fewer than 100 samples.
        num_samples: how many samples.
    """
    found = extract_features(extractor, frames[:, -1])
    count = len(frames)
    score, spread, splits = None, None, None
    if found.probabilities is not None:
        splits = _SPLITS if count >= _SPLITS * _LEAST_PART else 1
        score, spread, *_ = inception_score(found.probabilities, splits=splits)
    return {
        "fd": _defined(frechet_distance(reference, found.features)),
        "fd_name": distance_name(extractor),
        "is": score,
        "is_std": spread,
        "is_splits": splits,
        "num_samples": count,
    }


def _defined(value: Tensor) -> float | None:
    """A number that JSON can hold; None for infinity."""
    plain = float(value)
    return plain if math.isfinite(plain) else None
