"""The HVAE whose encoder is the heat equation.

NaN and infinity in a tensor reach the result.
"""

from functools import lru_cache

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from pseudovideo.diffusion.sampling import at_least_float32, draw_noise
from pseudovideo.hvae.base import HVAE
from pseudovideo.hvae.config import HVAEConfig
from pseudovideo.hvae.heat import heat_blur, heat_sigmas

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

    Args:
        config: sizes and settings.
    """

    def encode(
        self, images: Float[Tensor, "b c h w"], t: Int64[Tensor, " b"]
    ) -> Float[Tensor, "b c h w"]:
        """F_h(t) x; the image itself, bit for bit, where t = 0.

        Args:
            images: in −1..1.
            t: 0..T.

        Raises:
            ValueError: images of another kind than the model's, or levels that are not theirs.
        """
        self._check_levels("images", images, t, 0)
        return heat_blur(images, _sigmas(self.config, t.device)[t])

    def prior_kl(self, last: Float[Tensor, "b c h w"]) -> Float[Tensor, " b"]:
        """0: the empirical prior's KL is no function of the parameters and is left out.

        Args:
            last: F_h(T) x.
        """
        return last.new_zeros(len(last))

    def draw_prior(
        self, numbers: Int64[Tensor, " b"], images: Float[Tensor, "n c h w"] | None, *, seed: int
    ) -> Float[Tensor, "b c h w"]:
        """A training image each, blurred to level T, with noise of standard deviation δ.

        Args:
            numbers: of the samples.
            images: the training images, in −1..1.
            seed: of the choice and of the noise.

        Raises:
            ValueError: the images are missing, not the model's, or not finite.
        """
        if images is None:
            raise ValueError(
                "images must be the training images, whose blurred versions are the prior of "
                "HeatHVAE, got None"
            )
        self._check_images(images)
        normal = draw_noise(numbers, (), seed=seed, step=_CHOICE)
        # Evenly spread, as Φ of a normal number is; in float64, for sets of any size.
        places = torch.special.ndtr(normal.double()).mul(len(images)).long()
        chosen = images[places.clamp(max=len(images) - 1).to(images.device)]
        chosen = chosen.to(self._weight.device, at_least_float32(self._weight))
        if not chosen.isfinite().all():
            raise ValueError("images must be finite, got NaN or infinity")
        levels = torch.full_like(numbers, self.config.num_levels)
        noise = self._noise(numbers, seed, level=self.config.num_levels)
        return self.encode(chosen, levels) + self.config.delta * noise


@lru_cache(maxsize=16)
def _sigmas(config: HVAEConfig, device: torch.device) -> Tensor:
    """Blur of the levels 0..T, kept on the device, in float64 whatever the model's precision is."""
    # What is made in inference mode could not be used in training later.
    with torch.inference_mode(False):
        return heat_sigmas(config.num_levels, config.sigma_min, config.sigma_max).to(device)
