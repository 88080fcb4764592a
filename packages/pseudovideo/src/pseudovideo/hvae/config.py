"""The settings of an HVAE, the same for both encoders."""

import math
from dataclasses import dataclass

from pseudovideo.diffusion.unet import UNetConfig
from pseudovideo.hvae.heat import heat_sigmas


@dataclass(frozen=True, kw_only=True)
class HVAEConfig(UNetConfig):
    """An HVAE of T latent frames as large as the image (thesis section 5.2).

    Noise levels are those of Rissanen et al. (2023), who have pixels in 0..1 and σ_h = 0.01: ours
    are in −1..1, twice as wide, so theirs is 0.02 here. `sigma_min` and `sigma_max` are lengths in
    pixels and don't change; 20 pixels are theirs for 28 by 28 images.

    Attributes:
        num_levels: T, latent frames; z_1 is the one next to the image.
        sigma_min: blur of z_1 in pixels; like `sigma_max` of the heat encoder alone.
        sigma_max: blur of z_T in pixels.
        noise_std: σ_h, the standard deviation of every q(z_t|x).
        delta_factor: δ/σ_h, where δ is the standard deviation of every p(z_{t−1}|z_t).
    """

    num_levels: int = 18
    sigma_min: float = 0.5
    sigma_max: float = 20.0
    noise_std: float = 0.02
    delta_factor: float = 1.25

    def __post_init__(self) -> None:
        """Refuse what makes no HVAE.

        Raises:
            ValueError: names the setting.
        """
        super().__post_init__()
        heat_sigmas(self.num_levels, self.sigma_min, self.sigma_max)
        for name in ("noise_std", "delta_factor"):
            value = getattr(self, name)
            if not 0.0 < value < math.inf:
                raise ValueError(f"{name} must be a number above 0, got {value}")

    @property
    def delta(self) -> float:
        """Standard deviation δ of every p(z_{t−1}|z_t)."""
        return self.delta_factor * self.noise_std
