"""Fog, snow and bright light."""

import torch
from jaxtyping import Float
from torch import Tensor

from probseq_apps.data.filters import length_scale, motion_filter, zoom
from probseq_apps.data.transforms import to_grey


def plasma_fractal(
    count: int, size: int, decay: float, generator: torch.Generator
) -> Float[Tensor, "n s s"]:
    """Draw cloud-like maps in 0..1 by the diamond-square algorithm on a torus.

    Args:
        count: number of maps.
        size: side; maps are made at the next power of two and cut.
        decay: the larger, the smoother; noise shrinks by its square from one scale to the next.
        generator: source of the noise, whose device the maps get.
    """
    side = 1 << (size - 1).bit_length()
    maps = torch.zeros(count, side, side, device=generator.device)

    def moved(neighbours: Tensor) -> Tensor:
        """Mean of four neighbours, given their sum, plus noise."""
        draw = torch.rand(neighbours.shape, generator=generator, device=generator.device)
        return neighbours / 4 + amplitude * (2 * draw - 1)

    step, amplitude = side, 1.0
    while step >= 2:
        half = step // 2
        corners = maps[:, ::step, ::step]
        pairs = corners + corners.roll(-1, 1)
        maps[:, half::step, half::step] = moved(pairs + pairs.roll(-1, 2))
        centres = maps[:, half::step, half::step]
        above_below = centres + centres.roll(1, 1)
        maps[:, ::step, half::step] = moved(above_below + corners + corners.roll(-1, 2))
        left_right = centres + centres.roll(1, 2)
        maps[:, half::step, ::step] = moved(left_right + corners + corners.roll(-1, 1))
        step, amplitude = half, amplitude / decay**2
    maps = maps - maps.amin((1, 2), keepdim=True)
    maps = maps / maps.amax((1, 2), keepdim=True)
    return maps[:, :size, :size]


def fog(
    images: Float[Tensor, "n c h w"], severity: int, generator: torch.Generator
) -> Float[Tensor, "n c h w"]:
    """Lay a cloud over each image and darken the whole to its old maximum."""
    amount, decay = ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))[severity - 1]
    clouds = plasma_fractal(len(images), images.shape[-1], decay, generator).unsqueeze(1)
    brightest = images.amax((1, 2, 3), keepdim=True)
    return (images + amount * clouds) * brightest / (brightest + amount)


def snow(
    images: Float[Tensor, "n c h w"], severity: int, generator: torch.Generator
) -> Float[Tensor, "n c h w"]:
    """Whiten the image and let flakes fall: thresholded noise, enlarged and blurred by motion."""
    mean, spread, enlargement, threshold, radius, sigma, kept = (
        (0.1, 0.2, 1.0, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1.0, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    )[severity - 1]
    scale = length_scale(images)
    size = images.shape[-1]
    # Flakes and their paths need 32 pixels: for smaller images the middle of such a layer is used.
    side = max(size, 32)
    shape = (len(images), 1, side, side)
    layer = mean + spread * torch.randn(shape, generator=generator, device=images.device)
    layer = zoom(layer, enlargement * scale)
    layer = torch.where(layer < threshold, torch.zeros_like(layer), layer).clamp(0, 1)
    draw = torch.rand(len(images), generator=generator, device=images.device)
    layer = motion_filter(layer, radius * scale, sigma * scale, -90 * draw - 45)
    first = (side - size) // 2
    layer = layer[..., first : first + size, first : first + size]
    whitened = torch.maximum(images, to_grey(images) * 1.5 + 0.5)
    snowy = kept * images + (1 - kept) * whitened
    return snowy + layer + layer.rot90(2, (2, 3))


def brightness(
    images: Float[Tensor, "n c h w"], severity: int, generator: torch.Generator
) -> Float[Tensor, "n c h w"]:
    """Add to the value of hue, saturation and value; black becomes grey."""
    del generator
    added = (0.05, 0.1, 0.15, 0.2, 0.3)[severity - 1]
    # With hue and saturation kept, all channels are scaled by the same ratio of values.
    value = images.amax(1, keepdim=True)
    raised = (value + added).clamp(max=1)
    return torch.where(value > 0, images * (raised / value.clamp(min=1e-6)), raised)
