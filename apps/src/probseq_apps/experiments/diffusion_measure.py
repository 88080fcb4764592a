"""What is measured of diffusion models beside their samples: likelihoods, and errors of frames."""

from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor
from tqdm import tqdm

from probseq_apps.data.images import GenerationData, to_unit
from probseq_apps.engine.schedule import derive_seed
from probseq_apps.experiments.diffusion_groups import (
    DiffusionEvaluationSettings,
    DiffusionSampling,
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

_BATCH = 250
# Enough for the covariance of 32x32 colour images; with more of them its product alone takes long.
_SPECTRUM_IMAGES = 20_000


def mean_bits_per_dim(
    model: ImageDiffusion, images: UInt8[Tensor, "n c h w"], *, seed: int, device: torch.device
) -> float:
    """The bound on −log₂ p of images, in bits per dimension.

    Args:
        model: on the device.
        images: the test part.
        seed: of the noise.
        device: where.
    """
    generator = torch.Generator(device).manual_seed(seed)
    parts = images.split(_BATCH)
    with tqdm(
        total=len(parts) * model.diffusion.num_steps, unit=" steps", leave=False, disable=None
    ) as bar:
        bar.set_description_str("likelihood")
        found = [
            model.bits_per_dim(
                to_unit(part.to(device)), generator=generator, progress=bar.update
            ).total
            for part in parts
        ]
    return float(torch.cat(found).double().mean())


def measure_frames(
    model: VideoDiffusion,
    videos: PseudoVideoConfig,
    data: GenerationData,
    settings: DiffusionEvaluationSettings,
    sampling: DiffusionSampling,
    *,
    seed: int,
    device: torch.device,
) -> dict[str, Any]:
    """How well a model predicts each frame from the true frames before it.

    Args:
        model: on the device.
        videos: the kind that it was trained on.
        data: the images.
        settings: how many test images, and how many samples of each frame.
        sampling: how samples are drawn.
        seed: of videos and samples.
        device: where.

    Returns:
        frames: numbers from 1 of those that are predicted from others, the image last.
        model: squared error of the model's conditional mean, per pixel; see `frame_errors`.
        exact: of noise the least error that is possible for Gaussian images with the training
            images' covariance, which is that of the best linear prediction for the images
            themselves; None of blur.
        num_images, num_samples: how many.
    """
    config = model.config
    images = data.test[: settings.frame_error_images]
    index = torch.arange(len(images), device=device)
    truth = pseudo_videos(
        to_unit(images.to(device)), videos, seed=derive_seed(seed, "test videos"), index=index
    )
    generator = torch.Generator(device).manual_seed(derive_seed(seed, "frame errors"))
    predicted = range(config.context, config.num_frames)
    errors: list[float] = []
    with tqdm(
        total=len(predicted) * len(images) * settings.frame_error_samples,
        unit=" frames",
        leave=False,
        disable=None,
    ) as bar:
        bar.set_description_str("frame errors")
        for frame in predicted:
            samples = model.predict_frames(
                truth,
                frame,
                num_samples=settings.frame_error_samples,
                num_steps=sampling.sampling_steps,
                eta=sampling.noise,
                generator=generator,
                batch_size=_BATCH,
                progress=bar.update,
            )
            errors.append(float(frame_errors(truth[:, frame], samples).mean()))
    return {
        "frames": [frame + 1 for frame in predicted],
        "model": errors,
        "exact": _exact(videos, data, config.context, device) if videos.random else None,
        "num_images": len(images),
        "num_samples": settings.frame_error_samples,
    }


def _exact(
    videos: PseudoVideoConfig, data: GenerationData, context: int, device: torch.device
) -> list[float]:
    images = to_unit(data.train[:_SPECTRUM_IMAGES]).to(device)
    found = prediction_errors(image_spectrum(images), videos, context=context)
    # Entries begin with the second frame.
    return found.next_frame[context - 1 :].tolist()
