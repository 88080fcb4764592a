"""Measures of models: reconstructions, likelihoods, and errors of frames."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from probseq.metrics.image import (
    FeatureExtractor,
    distance_name,
    extract_features,
    frechet_distance,
    psnr,
)
from pseudovideo.corruptions import (
    PseudoVideoConfig,
    image_spectrum,
    prediction_errors,
    pseudo_videos,
)
from pseudovideo.diffusion.errors import frame_errors
from pseudovideo.diffusion.image import ImageDiffusion
from pseudovideo.diffusion.video import VideoDiffusion
from pseudovideo.hvae import HVAE
from pseudovideo.pixels import to_unit
from pseudovideo.priors import AutoregressivePrior, MaskedPrior
from pseudovideo.tokenizers.tokenizer import Tokenizer

# Enough for the covariance of 32x32 colour images; with more of them its product alone takes long.
_SPECTRUM_IMAGES, _BATCH = 20_000, 250


def reconstruction(
    tokenizer: Tokenizer,
    images: UInt8[Tensor, "n c h w"],
    corruption: PseudoVideoConfig,
    extractor: FeatureExtractor,
    *,
    seed: int = 0,
    batch_size: int = 64,
    device: torch.device | str = "cpu",
) -> dict[str, Any]:
    """Measure reconstructed images, and how many codes they take.

    The tokenizer is in eval mode on the device, where videos are made of images, bytes of the test
    part, by the corruption of its training.

    Returns:
        psnr, psnr_all_frames: mean over images of the last frame's, and of all frames', PSNR in dB,
            the range being -1..1; None where an image came back exactly.
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
    for videos in _videos(images, corruption, seed, batch_size, device):
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
        "psnr": number_or_none(torch.cat(of_last).mean()),
        "psnr_all_frames": number_or_none(torch.cat(of_all).mean()),
        "fd": number_or_none(frechet_distance(reference, features)),
        "fd_name": distance_name(extractor),
        "num_images": len(images),
        "usage": float((counts > 0).double().mean()),
        "perplexity": float(torch.special.entr(shares).sum().exp()),
    }


def mean_bound(
    model: ImageDiffusion | HVAE,
    images: UInt8[Tensor, "n c h w"],
    labels: Int64[Tensor, " n"] | None = None,
    *,
    generator: torch.Generator | None = None,
    **options: Any,
) -> float:
    """Return the mean bound on −log p of images, in bits per dimension; of HVAEs in nats.

    Images are bytes of the test part. Options are those of `ImageDiffusion.bits_per_dim`.
    """
    device = model.device
    bound = model.bound if isinstance(model, HVAE) else model.bits_per_dim
    bounds = [
        bound(to_unit(batch.to(device)), classes, generator=generator, **options).total
        for batch, classes in _labelled(images, labels, device)
    ]
    return float(torch.cat(bounds).double().mean())


def encode_images(
    tokenizer: Tokenizer,
    images: UInt8[Tensor, "n c h w"],
    corruption: PseudoVideoConfig,
    *,
    seed: int = 0,
    batch_size: int = _BATCH,
    device: torch.device | str = "cpu",
) -> Int64[Tensor, "n t rows columns"]:
    """Return the tokens of the videos of images, on `device`; arguments as of `reconstruction`."""
    videos = _videos(images, corruption, seed, batch_size, device)
    return torch.cat([tokenizer.encode(batch) for batch in videos])


def mean_nats(
    prior: AutoregressivePrior | MaskedPrior,
    tokens: Int64[Tensor, "n t h w"],
    labels: Int64[Tensor, " n"] | None = None,
    *,
    seed: int = 0,
) -> float:
    """Return the mean of −log p on held-out tokens: of all, or of those that masks hide.

    The seed is of the masks; the global random generators are left as they were.
    """
    total = 0.0
    devices = [tokens.device] if tokens.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        torch.manual_seed(seed)
        for batch, classes in _labelled(tokens, labels, tokens.device):
            total += len(batch) * float(prior.loss(batch, classes))
    return total / len(tokens)


def frame_prediction(
    model: VideoDiffusion,
    corruption: PseudoVideoConfig,
    images: UInt8[Tensor, "n c h w"],
    train: UInt8[Tensor, "m c h w"],
    *,
    labels: Int64[Tensor, " n"] | None = None,
    num_samples: int,
    seed: int = 0,
    generator: torch.Generator | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Measure how well a model predicts each frame from the true frames before it.

    Images are bytes of both parts; the exact errors have the covariance of the training part. The
    seed is that of the videos' noise, the generator that of the predictions'. Options are those of
    `VideoDiffusion.predict_frames`.

    Returns:
        frames: numbers from 1 of those that are predicted from others, the image last.
        model: squared error of the model's conditional mean, per pixel; see `frame_errors`.
        exact: of noise the least error for Gaussian images with the training images' covariance;
            None of other kinds.
        num_images, num_samples: how many.
    """
    device, context = model.device, model.config.context
    classes = None if labels is None else labels.to(device)
    index = torch.arange(len(images), device=device)
    truth = pseudo_videos(to_unit(images.to(device)), corruption, seed=seed, index=index)
    predicted = range(context, model.config.num_frames)
    errors: list[float] = []
    for frame in predicted:
        samples = model.predict_frames(
            truth,
            frame,
            labels=classes,
            num_samples=num_samples,
            generator=generator,
            batch_size=_BATCH,
            **options,
        )
        errors.append(float(frame_errors(truth[:, frame], samples).mean()))
    exact = None
    if corruption.is_noise:
        spectrum = image_spectrum(to_unit(train[:_SPECTRUM_IMAGES]).to(device))
        least = prediction_errors(spectrum, corruption, context=context).next_frame
        # Entries begin with the second frame.
        exact = least[context - 1 :].tolist()
    return {
        "frames": [frame + 1 for frame in predicted],
        "model": errors,
        "exact": exact,
        "num_images": len(images),
        "num_samples": num_samples,
    }


def _videos(
    images: Tensor,
    corruption: PseudoVideoConfig,
    seed: int,
    batch_size: int,
    device: torch.device | str,
) -> Iterator[Tensor]:
    """Yield the videos of images, batch by batch."""
    for index in torch.arange(len(images)).split(batch_size):
        batch = to_unit(images[index].to(device))
        yield pseudo_videos(batch, corruption, seed=seed, index=index.to(device))


def _labelled(
    values: Tensor, labels: Tensor | None, device: torch.device
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield batches, with their labels on a device where there are any."""
    for index in torch.arange(len(values)).split(_BATCH):
        classes = None if labels is None else labels[index.to(labels.device)].to(device)
        yield values[index.to(values.device)], classes


def number_or_none(value: Tensor) -> float | None:
    """Return a number that JSON can hold; None for infinity."""
    plain = float(value)
    return plain if math.isfinite(plain) else None
