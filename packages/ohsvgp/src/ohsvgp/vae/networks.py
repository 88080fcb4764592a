"""Encoder and decoder of thesis section 4.6.3: perceptrons of two layers.

NaN and infinity in a tensor reach the result.
"""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from probseq.checks import check_counts
from probseq.transformers.protocol import check_dtype

# Below it a site would fix its latent to within round-off.
_LEAST_VARIANCE = 1e-4


class MLPEncoder(nn.Module):
    """φ: y_t ↦ mean ỹ_t and variance ṽ_t of a site on every latent."""

    def __init__(self, channels: int, latents: int, *, hidden: int = 64) -> None:
        super().__init__()
        check_counts(channels=channels, latents=latents, hidden=hidden)
        self.layers = nn.Sequential(
            nn.Linear(channels, hidden), nn.SiLU(), nn.Linear(hidden, 2 * latents)
        )

    def forward(self, y: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "n l"], Float[Tensor, "n l"]]:
        """Return ỹ and ṽ."""
        _check("y", y, self.layers[0])
        mean, raw = self.layers(y).chunk(2, dim=-1)
        return mean, F.softplus(raw) + _LEAST_VARIANCE


class MLPDecoder(nn.Module):
    """Mean of y_t given the latents f_t."""

    def __init__(self, latents: int, channels: int, *, hidden: int = 64) -> None:
        super().__init__()
        check_counts(channels=channels, latents=latents, hidden=hidden)
        self.layers = nn.Sequential(
            nn.Linear(latents, hidden), nn.SiLU(), nn.Linear(hidden, channels)
        )

    def forward(self, f: Float[Tensor, "*b l"]) -> Float[Tensor, "*b d"]:
        """Return the mean of y."""
        _check("f", f, self.layers[0])
        return self.layers(f)


def _check(name: str, values: Tensor, layer: nn.Module) -> None:
    """Refuse inputs that the first layer cannot take."""
    assert isinstance(layer, nn.Linear)
    check_dtype(name, values, layer.weight, half=True)
    if values.shape[-1:] != (layer.in_features,):
        raise ValueError(
            f"{name} must have shape (..., {layer.in_features}), got {tuple(values.shape)}"
        )
