"""The seam of all observation models p(y | f)."""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probseq.gaussians import DiagonalGaussian
from probseq.kernels.base import DataUnits, Limits

Values = Float[Tensor, "*#n"]
"""One a point; dimensions broadcast."""


class Expectations(NamedTuple):
    """Expectations under f ~ N(mean, variance), elementwise."""

    log_prob: Tensor  # E[log p(y | f)]
    gradient: Tensor  # g = E[d log p / df]
    curvature: Tensor  # w = −E[d² log p / df²]; below 0 only where log p is not concave


class Likelihood(nn.Module, ABC):
    """Observation model, independent across points; parameters are stored unconstrained.

    Methods are elementwise; those with ``mean`` and ``variance`` are of f ~ N(mean, variance).
    """

    continuous: ClassVar[bool] = True  # whether y may be any number; otherwise it is a whole one

    @abstractmethod
    def log_prob(self, f: Values, y: Values) -> Float[Tensor, "*n"]:
        """Return log p(y | f)."""

    @abstractmethod
    def expectations(self, mean: Values, variance: Values, y: Values) -> Expectations:
        """Return E[log p(y | f)] and its derivatives in f."""

    @abstractmethod
    def predictive_log_prob(self, mean: Values, variance: Values, y: Values) -> Float[Tensor, "*n"]:
        """Return log ∫ p(y | f) N(f; mean, variance) df."""

    @abstractmethod
    def predictive_moments(self, mean: Values, variance: Values) -> DiagonalGaussian:
        """Return mean and variance of y."""

    @abstractmethod
    def predictive_cdf(self, mean: Values, variance: Values, y: Values) -> Float[Tensor, "*n"]:
        """Return P(Y ≤ y)."""

    @abstractmethod
    def quantile(self, mean: Values, variance: Values, p: float | Tensor) -> Float[Tensor, "*n"]:
        """Return the least y with P(Y ≤ y) ≥ p, for one level or many; no gradients."""

    @abstractmethod
    def predictive_crps(self, mean: Values, variance: Values, y: Values) -> Float[Tensor, "*n"]:
        """Return the CRPS ∫ (P(Y ≤ x) − 1{y ≤ x})² dx; no gradients.

        In the unit of y; lower is better (Gneiting and Raftery 2007, Eq. 20). Not in the papers.
        """

    @abstractmethod
    def sample(
        self, f: Float[Tensor, "*n"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "*n"]:
        """Draw y ~ p(y | f)."""

    def start(self, y: Values) -> Values | None:
        """Return latent values to start natural-gradient steps from; None: from the posterior."""
        return None

    def limits(self, units: DataUnits) -> dict[str, Limits]:
        """Return the intervals in which a fit looks for parameters, by name."""
        return {}

    def check_targets(self, y: Tensor) -> None:
        """Refuse targets outside the support."""
