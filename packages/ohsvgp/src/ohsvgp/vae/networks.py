"""Encoder and decoder of thesis section 4.6.3: perceptrons of two layers."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["MLPDecoder", "MLPEncoder"]

# Below it a site would fix its latent to within round-off.
_LEAST_VARIANCE = 1e-4


class MLPEncoder(nn.Module):
    """φ: y_t ↦ mean ỹ_t and variance ṽ_t of a site on every latent.

    Args:
        channels: d_y.
        latents: L.
        hidden: width of the layer between.
    """

    def __init__(self, channels: int, latents: int, *, hidden: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(channels, hidden), nn.SiLU(), nn.Linear(hidden, 2 * latents)
        )

    def forward(self, y: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "n l"], Float[Tensor, "n l"]]:
        """ỹ and ṽ.

        Args:
            y: data.
        """
        mean, raw = self.layers(y).chunk(2, dim=-1)
        return mean, F.softplus(raw) + _LEAST_VARIANCE


class MLPDecoder(nn.Module):
    """Mean of y_t given the latents f_t.

    Args:
        latents: L.
        channels: d_y.
        hidden: width of the layer between.
    """

    def __init__(self, latents: int, channels: int, *, hidden: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(latents, hidden), nn.SiLU(), nn.Linear(hidden, channels)
        )

    def forward(self, f: Float[Tensor, "*b l"]) -> Float[Tensor, "*b d"]:
        """Mean of y.

        Args:
            f: latents.
        """
        return self.layers(f)
