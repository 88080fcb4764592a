"""What an observation model p(y | f) is asked for."""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probseq.gaussians import DiagonalGaussian


class Expectations(NamedTuple):
    """Expectations under f ~ N(mean, variance), elementwise.

    Attributes:
        log_prob: E[log p(y | f)].
        gradient: g = E[d log p / df].
        curvature: w = −E[d² log p / df²]; below 0 only where log p is not concave.
    """

    log_prob: Tensor
    gradient: Tensor
    curvature: Tensor


class Likelihood(nn.Module, ABC):
    """Observation model, independent across points; parameters are stored unconstrained.

    Attributes:
        continuous: whether y may be any number; otherwise it is a whole one.
    """

    continuous: ClassVar[bool] = True

    @abstractmethod
    def log_prob(self, f: Float[Tensor, "*#n"], y: Float[Tensor, "*#n"]) -> Float[Tensor, "*n"]:
        """Log p(y | f), elementwise."""

    @abstractmethod
    def expectations(
        self, mean: Float[Tensor, "*#n"], variance: Float[Tensor, "*#n"], y: Float[Tensor, "*#n"]
    ) -> Expectations:
        """Expectations under f ~ N(mean, variance)."""

    @abstractmethod
    def predictive_log_prob(
        self, mean: Float[Tensor, "*#n"], variance: Float[Tensor, "*#n"], y: Float[Tensor, "*#n"]
    ) -> Float[Tensor, "*n"]:
        """Log ∫ p(y | f) N(f; mean, variance) df, elementwise."""

    @abstractmethod
    def predictive_moments(
        self, mean: Float[Tensor, "*#n"], variance: Float[Tensor, "*#n"]
    ) -> DiagonalGaussian:
        """Mean and variance of y when f ~ N(mean, variance)."""

    @abstractmethod
    def predictive_cdf(
        self, mean: Float[Tensor, "*#n"], variance: Float[Tensor, "*#n"], y: Float[Tensor, "*#n"]
    ) -> Float[Tensor, "*n"]:
        """P(Y ≤ y) when f ~ N(mean, variance), elementwise."""

    @abstractmethod
    def quantile(
        self, mean: Float[Tensor, "*#n"], variance: Float[Tensor, "*#n"], p: float | Tensor
    ) -> Float[Tensor, "*n"]:
        """The least y with P(Y ≤ y) ≥ p when f ~ N(mean, variance), elementwise; no gradients.

        Args:
            mean: of f.
            variance: of f.
            p: one level, or many that broadcast against the mean.

        Raises:
            ValueError: a level that is not above 0 and below 1.
        """

    @abstractmethod
    def predictive_crps(
        self, mean: Float[Tensor, "*#n"], variance: Float[Tensor, "*#n"], y: Float[Tensor, "*#n"]
    ) -> Float[Tensor, "*n"]:
        """CRPS ∫ (P(Y ≤ x) − 1{y ≤ x})² dx when f ~ N(mean, variance), elementwise; no gradients.

        In the unit of y; lower is better (Gneiting and Raftery 2007, Eq. 20). Not in the papers.
        """

    @abstractmethod
    def sample(
        self, f: Float[Tensor, "*n"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "*n"]:
        """Draws y ~ p(y | f)."""

    def start(self, y: Float[Tensor, "*#n"]) -> Float[Tensor, "*#n"] | None:
        """Latent values where natural-gradient steps should start; None for where f is known to be.

        Args:
            y: targets.
        """
        return None

    def check_targets(self, y: Tensor) -> None:
        """Refuse targets outside the support.

        Raises:
            ValueError: names the first such target.
        """


def log_positive(value: float | Tensor, name: str) -> Float[Tensor, "*b"]:
    """Logarithm of a constructor's argument that must be positive, in floating point.

    Args:
        value: a number, or one per series.
        name: the argument's name for the error.

    Raises:
        ValueError: a value not above 0, or not finite.
    """
    tensor = torch.as_tensor(value)
    if tensor.is_complex():
        raise ValueError(f"{name} must be real, got {tensor.dtype}")
    tensor = tensor if tensor.is_floating_point() else tensor.to(torch.get_default_dtype())
    if not (tensor.isfinite() & (tensor > 0)).all():
        raise ValueError(f"{name} must be above 0 and finite, got {tensor.tolist()}")
    return tensor.detach().log()
