"""Kronecker-factored last-layer Laplace (Ritter et al. 2018; Kristiadi et al. 2020)."""

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from probseq.transformers.attention import full_precision
from probseq.transformers.protocol import check_num_samples
from probseq_apps.baselines.backbone import (
    Backbone,
    check_backbone,
    check_positive,
    pooled_features,
)

VarianceName = Literal["centred", "plain"]

# Prior precisions that are tried, equally spaced on the logarithm.
_GRID = torch.logspace(-4, 4, 81, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class KroneckerCurvature:
    r"""Curvature :math:`N A \otimes H` of a linear softmax layer's loss, by its eigenvectors.

    Attributes:
        feature_basis: U, eigenvectors of A, the mean of :math:`\phi\phi^\top`, φ the layer's input
            with a one appended for the bias.
        class_basis: V, eigenvectors of H, the mean of :math:`\operatorname{diag} p - p p^\top`.
        eigenvalues: :math:`N a_i h_j`.
    """

    feature_basis: Float[Tensor, "features features"]
    class_basis: Float[Tensor, "classes classes"]
    eigenvalues: Float[Tensor, "features classes"]

    @classmethod
    def of(
        cls,
        phi: Float[Tensor, "features features"],
        hessian: Float[Tensor, "classes classes"],
        num_data: int,
    ) -> "KroneckerCurvature":
        """Decompose the factors A and H."""
        feature_values, feature_basis = torch.linalg.eigh(phi)
        class_values, class_basis = torch.linalg.eigh(hessian)
        # H is singular, A may be: round-off must not make a precision negative.
        eigenvalues = torch.outer(feature_values.clamp(min=0.0), class_values.clamp(min=0.0))
        return cls(feature_basis, class_basis, num_data * eigenvalues)

    def logit_covariance(
        self, phi: Float[Tensor, "n features"], prior_precision: float
    ) -> Float[Tensor, "n classes classes"]:
        r"""Covariance of the logits under the weights' precision :math:`N A \otimes H + \delta I`.

        Args:
            phi: inputs with a one appended.
            prior_precision: δ.
        """
        energy = (phi @ self.feature_basis).square()
        variance = energy @ (self.eigenvalues + prior_precision).reciprocal()
        return (self.class_basis * variance[:, None]) @ self.class_basis.mT

    def log_evidence(
        self, log_likelihood: float, squared_norm: float, prior_precision: Float[Tensor, " grid"]
    ) -> Float[Tensor, " grid"]:
        r"""Laplace approximation of the log evidence, for each prior precision δ.

        .. math:: \log p(y|w) - \tfrac{\delta}{2} |w|^2
            - \tfrac12 \sum_{ij} \log(1 + N a_i h_j / \delta)

        Args:
            log_likelihood: log p(y|w) of the training set.
            squared_norm: |w|² of the layer's weights and biases.
            prior_precision: values of δ.
        """
        occam = torch.log1p(self.eigenvalues / prior_precision[:, None, None]).sum((-2, -1))
        return log_likelihood - 0.5 * prior_precision * squared_norm - 0.5 * occam


class LaplaceLinear(nn.Module):
    r"""Linear layer whose logits are scaled down by their uncertainty.

    The probit approximation class by class, :math:`f_c / \sqrt{1 + \tfrac{\pi}{8} v_c}`.

    Args:
        linear: the layer, with its weights at the mode.
        curvature: of the loss there.
        prior_precision: δ.
        log_evidence: at δ.
        variance: see `laplace_model`.
    """

    def __init__(
        self,
        linear: nn.Linear,
        curvature: KroneckerCurvature,
        *,
        prior_precision: float,
        log_evidence: float,
        variance: VarianceName,
    ) -> None:
        super().__init__()
        self.linear = linear
        self.prior_precision, self.log_evidence = prior_precision, log_evidence
        basis = curvature.class_basis
        classes = len(basis)
        if variance == "centred" and classes > 1:
            basis = (basis - basis.mean(0)) * math.sqrt(classes / (classes - 1))
        # Logit c's variance is Σ_ij (φᵀu_i)² V_cj² / (N a_i h_j + δ).
        per_class = (curvature.eigenvalues + prior_precision).reciprocal() @ basis.square().mT
        self.register_buffer("feature_basis", curvature.feature_basis.to(linear.weight))
        self.register_buffer("per_class", per_class.to(linear.weight))
        self.feature_basis: Tensor
        self.per_class: Tensor

    def forward(self, features: Float[Tensor, "n dim"]) -> Float[Tensor, "n classes"]:
        """Logits, scaled."""
        logits = self.linear(features)
        with torch.autocast(features.device.type, enabled=False):
            variance = self.variance(full_precision(features))
            return full_precision(logits) / (1.0 + math.pi / 8.0 * variance).sqrt()

    def variance(self, features: Float[Tensor, "n dim"]) -> Float[Tensor, "n classes"]:
        """Variances v of the logits."""
        return (append_one(features) @ self.feature_basis).square() @ self.per_class


def laplace_model(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    prior_precision: float | None = None,
    variance: VarianceName = "centred",
    num_samples: int | None = None,
    generator: torch.Generator | None = None,
) -> nn.Module:
    """Give the last layer of a trained model a Laplace posterior.

    The curvature is the generalised Gauss-Newton's, in two Kronecker factors: the mean outer
    product of the features, the bias's one among them, and the mean softmax Hessian.

    A softmax doesn't see what is added to all logits alike, but the curvature is zero there, so
    that the posterior's variance is the prior's: it dominates the plain variances. With
    ``variance="centred"`` (the default) a logit's variance is that of its difference from the mean
    of the logits, times C/(C − 1): the same where logits are independent and alike, and free of
    that part. ``"plain"`` takes the diagonal of the logits' covariance, as the authors' code does.

    Another difference from laplace-torch: there weights and biases have a curvature of their own,
    without what connects them.

    Args:
        model: any trained transformer; a copy of it is changed.
        batches: the training set as pairs of inputs, as the model takes them, and labels.
        prior_precision: δ of the prior N(0, I/δ); ``None`` for the one with the largest evidence
            on a grid from 1e-4 to 1e4, which needs no validation data.
        variance: which variance scales the logits.
        num_samples: features are averaged over this many samples, for models that draw.
        generator: source of these draws.

    Returns:
        A copy of the model in eval mode, of the same kind, whose logits are probit-scaled.

    Raises:
        ValueError: the model has no ordinary last layer, there are no batches, or an argument is
            out of range.
    """
    if prior_precision is not None:
        check_positive("prior_precision", prior_precision)
    if variance not in get_args(VarianceName):
        raise ValueError(f"variance must be one of {get_args(VarianceName)}, got {variance!r}")
    check_num_samples(num_samples)
    backbone = copy.deepcopy(check_backbone(model)).eval().requires_grad_(False)
    curvature, log_likelihood = _fit(backbone, batches, num_samples, generator)
    linear = backbone.head.linear
    squared_norm = sum(float(weights.double().square().sum()) for weights in linear.parameters())
    grid = _GRID if prior_precision is None else torch.tensor([prior_precision]).double()
    evidence = curvature.log_evidence(log_likelihood, squared_norm, grid.to(linear.weight.device))
    best = int(evidence.argmax())
    layer = LaplaceLinear(
        linear,
        curvature,
        prior_precision=float(grid[best]),
        log_evidence=float(evidence[best]),
        variance=variance,
    )
    backbone.head.register_module("linear", layer.eval())
    return backbone


@torch.no_grad()
def _fit(
    model: Backbone,
    batches: Iterable[tuple[Tensor, Tensor]],
    num_samples: int | None,
    generator: torch.Generator | None,
) -> tuple[KroneckerCurvature, float]:
    """Curvature and log likelihood over the training set, in float64, sums over batches."""
    linear, samples = model.head.linear, num_samples or 1
    width, classes = linear.in_features + 1, linear.out_features
    phi_sum = torch.zeros(width, width, dtype=torch.float64, device=linear.weight.device)
    hessian_sum = phi_sum.new_zeros(classes, classes)
    log_likelihood, num_data = phi_sum.new_zeros(()), 0
    for inputs, labels in batches:
        features = pooled_features(model, inputs, generator=generator, num_samples=num_samples)
        log_probs = linear(features).double().log_softmax(-1)
        probs, phi = log_probs.exp(), append_one(features).double()
        phi_sum += phi.mT @ phi
        hessian_sum += torch.diag(probs.sum(0)) - probs.mT @ probs
        log_likelihood -= F.nll_loss(log_probs, labels.repeat(samples), reduction="sum")
        num_data += len(labels)
    if num_data == 0:
        raise ValueError("batches must hold training data, got none")
    rows = samples * num_data
    curvature = KroneckerCurvature.of(phi_sum / rows, hessian_sum / rows, num_data)
    return curvature, float(log_likelihood) / samples


def append_one(features: Float[Tensor, "n dim"]) -> Float[Tensor, "n features"]:
    """Append the bias's input, a one."""
    return F.pad(features, (0, 1), value=1.0)
