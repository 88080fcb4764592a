"""What happens to images in computers: contrast, warping, coarse pixels, compression."""

import io

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from probseq_apps.data.filters import gaussian_filter
from probseq_apps.data.transforms import pixel_grid, sample_at, to_bytes


def contrast(
    images: Float[Tensor, "n c h w"], severity: int, generator: torch.Generator
) -> Float[Tensor, "n c h w"]:
    """Shrink the distance of each channel from its mean over the image."""
    del generator
    kept = (0.75, 0.5, 0.4, 0.3, 0.15)[severity - 1]
    means = images.mean((2, 3), keepdim=True)
    return (images - means) * kept + means


def elastic_transform(
    images: Float[Tensor, "n c h w"], severity: int, generator: torch.Generator
) -> Float[Tensor, "n c h w"]:
    """Warp by a random affine map and a smooth field of displacements.

    Deviation from CIFAR-10-C: there, the affine part shrinks from 0.08 to 0.03 of the side as the
    displacements grow, and since it outweighs them, the mildest severity changes the pixels most.
    Here both grow. The two warps are done in one reading of the image, not one after the other.
    """
    size = images.shape[-1]
    height, smoothness, shift = (
        (0.0, 0.0, 0.03),
        (0.05, 0.2, 0.05),
        (0.08, 0.06, 0.06),
        (0.1, 0.04, 0.07),
        (0.1, 0.03, 0.08),
    )[severity - 1]
    rows, columns = pixel_grid(images)
    field_shape = (len(images), 2, size, size)
    field = 2 * torch.rand(field_shape, generator=generator, device=images.device) - 1
    if smoothness:
        sigma = field.new_tensor([smoothness * size])
        field = gaussian_filter(field, sigma, truncate=3.0, padding="reflect")
    field = field * (height * size)
    # An affine map is fixed by what it does to three points, a third of the side off the centre.
    third = float(size // 3)
    corners = images.new_tensor([[third, third, 1.0], [third, -third, 1.0], [-third, -third, 1.0]])
    draw = torch.rand((len(images), 3, 2), generator=generator, device=images.device)
    moved = corners[:, :2] + shift * size * (2 * draw - 1)
    affine = torch.linalg.solve(corners, moved)  # (n, 3, 2): [row, column, 1] @ affine
    points = torch.stack((rows + field[:, 0], columns + field[:, 1]), dim=-1)
    moved_points = points @ affine[:, None, :2] + affine[:, None, None, 2]
    centre = (size - 1) / 2
    return sample_at(
        images, moved_points[..., 0] + centre, moved_points[..., 1] + centre, "reflection"
    )


def pixelate(
    images: Float[Tensor, "n c h w"], severity: int, generator: torch.Generator
) -> Float[Tensor, "n c h w"]:
    """Average over blocks a little larger than a pixel.

    Each pixel shows the mean of the block that its centre lies in. The original always starts the
    first block at the corner; here the start is random, another one for each image, since at a
    fixed start the damage on small images jumps up and down with the block's size.
    """
    size = images.shape[-1]
    block = 1 / (0.95, 0.9, 0.85, 0.75, 0.65)[severity - 1]
    draw = torch.rand((len(images), 2, 1), generator=generator, device=images.device)
    start = block * draw
    pixels = torch.arange(size, dtype=images.dtype, device=images.device)
    low = torch.floor((pixels + 0.5 - start) / block) * block + start
    high = (low + block).clamp(max=size)[..., None]
    low = low.clamp(min=0)[..., None]
    # average[i, j]: share of pixel j in the block that pixel i lies in.
    overlap = torch.minimum(high, pixels + 1) - torch.maximum(low, pixels)
    average = overlap.clamp(min=0) / (high - low)
    by_row, by_column = average.unsqueeze(1).unbind(2)
    return by_row @ images @ by_column.mT


def jpeg_compression(
    images: Float[Tensor, "n c h w"], severity: int, generator: torch.Generator
) -> Float[Tensor, "n c h w"]:
    """Store as JPEG and read back; Pillow does it, one image after the other on the CPU."""
    del generator
    quality = (80, 65, 58, 50, 40)[severity - 1]
    pixels = to_bytes(images).permute(0, 2, 3, 1).cpu().numpy()
    stored = [_through_jpeg(image, quality) for image in pixels]
    return torch.from_numpy(np.stack(stored)).to(images).permute(0, 3, 1, 2) / 255


def _through_jpeg(image: np.ndarray, quality: int) -> np.ndarray:
    buffer = io.BytesIO()
    grey = image.shape[-1] == 1
    Image.fromarray(image[..., 0] if grey else image).save(buffer, "JPEG", quality=quality)
    with Image.open(buffer) as stored:
        return np.asarray(stored).reshape(image.shape)
