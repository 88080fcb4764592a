"""Natural-gradient site updates for likelihoods that are not Gaussian."""

from jaxtyping import Float
from torch import Tensor

from ohsvgp.core import Bound, Site
from ohsvgp.likelihoods import Likelihood

__all__ = ["natural_update"]


def natural_update(
    likelihood: Likelihood,
    old: Site,
    T: Float[Tensor, "*#b m k"] | None,
    Psi: Float[Tensor, "*#b k n"],
    K_ff: Float[Tensor, "*#b n"],
    y: Float[Tensor, "*#b n"],
    *,
    mask: Tensor | None = None,
    prior_a: Float[Tensor, "*#b m m"] | None = None,
    iterations: int = 8,
) -> tuple[Site, Bound]:
    """Placeholder."""
    raise NotImplementedError
