"""The heat equation on images, in closed form: each frequency decays at its own rate.

With borders that let no heat out, the equation is diagonal in the DCT of type II: after the time
σ²/2 the frequency (k_y, k_x) of an H×W image is multiplied by exp(−π²σ²(k_y²/H² + k_x²/W²)/2),
which is a Gaussian blur of standard deviation σ pixels with the image mirrored at its borders
(border pixels included). Rissanen, Heinonen & Solin (2023, "Generative modelling with inverse heat
dissipation"), section 3; thesis eq. 5.3. For square images both axes share N = H = W, as there;
rectangular images take each axis' own length.

NaN and infinity in a tensor reach the result.
"""

import math
from functools import lru_cache

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from probseq.checks import check_finite, check_floating, check_sizes
from pseudovideo.hvae.base import HVAE
from pseudovideo.labels import check_labels
from pseudovideo.pixels import check_batch
from pseudovideo.sampling import at_least_float32, draw_noise
from pseudovideo.spec import HVAEConfig


def heat_blur(
    images: Float[Tensor, "b c h w"], sigmas: Float[Tensor, " b"]
) -> Float[Tensor, "b c h w"]:
    """Return F_h: images after the heat equation, of the same mean and dtype.

    ``sigmas`` has the standard deviation of each image's blur in pixels; 0 returns it bit for bit.
    """
    check_sizes("images", images, "b", "c", "h", "w")
    if not images.numel():
        raise ValueError(f"images must not be empty, got shape {tuple(images.shape)}")
    check_sizes("sigmas", sigmas, len(images))
    check_floating(images=images, sigmas=sigmas)
    # Under autocast the products would be made in half precision.
    with torch.autocast(images.device.type, enabled=False):
        exact = images.float() if images.dtype in (torch.float16, torch.bfloat16) else images
        rows, columns = (_basis(size, exact.device, exact.dtype) for size in exact.shape[-2:])
        by_row, by_column = (_decay(sigmas, size).to(exact) for size in exact.shape[-2:])
        # Each axis' decay multiplies its own basis: no spectrum of the whole image is needed.
        blur_rows = torch.einsum("ki,bk,kj->bij", rows, by_row, rows)
        blur_columns = torch.einsum("ki,bk,kj->bij", columns, by_column, columns)
        blurred = torch.einsum("bij,bcjw,bvw->bciv", blur_rows, exact, blur_columns)
    unchanged = (sigmas == 0)[:, None, None, None]
    return torch.where(unchanged, images, blurred.to(images.dtype))


def _decay(sigmas: Tensor, size: int) -> Tensor:
    """Return multipliers exp(−π²k²σ²/(2N²)) of an axis, one row an image."""
    frequencies = torch.arange(size, device=sigmas.device, dtype=sigmas.dtype) * (math.pi / size)
    return (-0.5 * (sigmas[:, None] * frequencies).square()).exp()


@lru_cache(maxsize=16)
def _basis(size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the orthonormal DCT of type II, a row a frequency, kept on the device."""
    # What is made in inference mode could not be used in training later.
    with torch.inference_mode(False):
        indices = torch.arange(size, dtype=torch.float64)
        waves = (indices[:, None] * (indices + 0.5) * (math.pi / size)).cos()
        waves[0] *= 0.5**0.5
        return (waves * (2 / size) ** 0.5).to(device, dtype)


# The place in the random numbers that z_1..z_T leave free: the image has no noise.
_CHOICE = 0


class HeatHVAE(HVAE):
    """Encoder without parameters: q(z_t|x) = N(F_h(t) x, σ_h²I) (thesis eq. 5.3).

    The prior is that of Rissanen et al. (2023): a training image, blurred to level T, with noise of
    standard deviation δ, as the density in their paper has it; their code samples without that
    noise. Its KL at level T is no function of the parameters, and is left out of
    both the loss and the bound: what they hold is the cost of the steps alone. For one of m
    training images of D dimensions the missing term lies between 0 and
    (log m)/D + ½(σ_h²/δ² − 1 − log σ_h²/δ²) nats per dimension; for other images it may be more.
    Keep it in mind beside the bound of `LearnedEncoderHVAE`, which has all terms.
    """

    def encode(
        self, images: Float[Tensor, "b c h w"], t: Int64[Tensor, " b"]
    ) -> Float[Tensor, "b c h w"]:
        """Return F_h(t) x."""
        self._check_levels("images", images, t, 0)
        return heat_blur(images, heat_sigmas(self.config, t.device)[t])

    def prior_kl(self, last: Float[Tensor, "b c h w"]) -> Float[Tensor, " b"]:
        """Return 0: the empirical prior's KL is no function of the parameters and is left out."""
        return last.new_zeros(len(last))

    def draw_prior(
        self,
        numbers: Int64[Tensor, " b"],
        images: Float[Tensor, "n c h w"] | None,
        *,
        seed: int,
        labels: Int64[Tensor, " b"] | None = None,
        image_labels: Int64[Tensor, " n"] | None = None,
    ) -> Float[Tensor, "b c h w"]:
        """Return a training image each, blurred to level T, with noise of standard deviation δ.

        The image of a sample with a label is one of that class.
        """
        if images is None:
            raise ValueError(
                "images must be the training images, whose blurred versions are the prior of "
                "HeatHVAE, got None"
            )
        check_batch("images", images, self.config.image_shape)
        normal = draw_noise(numbers, (), seed=seed, step=_CHOICE)
        # Evenly spread, as Φ of a normal number is; in float64, for sets of any size.
        share = torch.special.ndtr(normal.double())
        if labels is None:
            indices = share.mul(len(images)).long().clamp(max=len(images) - 1)
        else:
            indices = self._indices_of_classes(share, labels, image_labels, len(images))
        chosen = images[indices.to(images.device)]
        chosen = chosen.to(self._weight.device, at_least_float32(self._weight))
        check_finite(images=chosen)
        levels = torch.full_like(numbers, self.config.num_levels)
        noise = self._noise(numbers, seed, level=self.config.num_levels)
        return self.encode(chosen, levels) + self.config.delta * noise

    def _indices_of_classes(
        self, share: Tensor, labels: Tensor, image_labels: Tensor | None, count: int
    ) -> Int64[Tensor, " b"]:
        """Return numbers of images of the samples' classes, at `share` in 0..1 among them."""
        if image_labels is None:
            raise ValueError(
                f"image_labels must be the classes of the {count} images, as the prior of a class "
                "is the blurred images of that class, got None"
            )
        check_labels(image_labels, self.config, count)
        image_classes = image_labels.to(labels.device)
        numbers = image_classes.bincount(minlength=self.config.num_classes or 0)
        counts = numbers[labels]
        if not counts.all():
            missing = int(labels[counts == 0].min())
            raise ValueError(
                "images must have some of every class that is drawn, as they are its prior, got "
                f"none of class {missing}"
            )
        first = (numbers.cumsum(0) - numbers)[labels]
        return image_classes.argsort(stable=True)[
            first + (share * counts).long().minimum(counts - 1)
        ]


@lru_cache(maxsize=16)
def heat_sigmas(config: HVAEConfig, device: torch.device) -> Float64[Tensor, " levels_and_image"]:
    """Blur of each level: σ_0 = 0, the image, then σ_1..σ_T evenly spaced in their logarithm.

    In pixels, kept on the device, in float64 whatever the model's precision is.
    """
    # What is made in inference mode could not be used in training later.
    with torch.inference_mode(False):
        steps = torch.linspace(0, 1, config.num_levels, dtype=torch.float64)
        rising = config.sigma_min * (config.sigma_max / config.sigma_min) ** steps
        return torch.cat([rising.new_zeros(1), rising]).to(device)
