"""Spectral-normalised neural Gaussian process (Liu et al. 2020; Miyato et al. 2018)."""

import math
from collections.abc import Iterable
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize

from probseq.fourier import fourier_features, sample_frequencies
from probseq.kernels import RBF
from probseq.linalg import triangular_inverse
from probseq.precision import full_precision
from probseq.transformers import TransformerOutput
from probseq_apps.baselines.backbone import Backbone, pooled_features

_PRIOR_STD = 3.0  # of each logit


class SpectralBound(nn.Module):
    r"""Scale a matrix down to a spectral norm of at most c: :math:`W \min(1, c / \sigma_{\max})`.

    The largest singular value is :math:`u^\top W v`. The vectors start as W's own, and each
    training pass improves them by a step of power iteration, as W changes slowly; in eval mode
    they stay. They are buffers, so that saved models keep them.
    """

    def __init__(self, weight: Float[Tensor, "out in"], *, bound: float) -> None:
        super().__init__()
        self.bound = bound
        left, _, right = torch.linalg.svd(weight.detach(), full_matrices=False)
        self.register_buffer("left", left[:, 0].clone())
        self.register_buffer("right", right[0].clone())
        self.left: Tensor
        self.right: Tensor

    def forward(self, weight: Float[Tensor, "out in"]) -> Float[Tensor, "out in"]:
        """Return the scaled matrix."""
        with torch.autocast(weight.device.type, enabled=False):
            if self.training:
                self._iterate(weight.detach())
            # Copies: a second pass before the backward pass may change the buffers.
            sigma = self.left.clone() @ (weight @ self.right.clone())
            return weight * (self.bound / sigma.clamp(min=self.bound))

    @torch.no_grad()
    def _iterate(self, weight: Tensor) -> None:
        self.left.copy_(F.normalize(weight @ self.right, dim=0))
        self.right.copy_(F.normalize(weight.mT @ self.left, dim=0))


def bound_spectral_norm(module: nn.Module, *, bound: float) -> None:
    """Bound the spectral norm of every linear layer inside a module."""
    for layer in list(module.modules()):
        if isinstance(layer, nn.Linear):
            scale = SpectralBound(layer.weight, bound=bound)
            parametrize.register_parametrization(layer, "weight", scale)


class GaussianProcessHead(nn.Module):
    r"""Gaussian process classifier on random Fourier features (Liu et al. 2020, Eqs. 7-9).

    .. math:: f_c(h) = \phi(h)^\top w_c + b_c, \quad w_c \sim N(0, s^2 I), \quad
        E[\phi(h)^\top \phi(h')] = \exp(-|h - h'|^2 / 2\ell^2).

    The weights w are learned like those of any layer (their prior is part of the loss). After the
    training `set_precision` gives them a Laplace posterior, and from then on predictions in eval
    mode are mean-field adjusted, :math:`f / \sqrt{1 + \tfrac{\pi}{8} \operatorname{var} f}`. Going
    back to training drops the posterior, which would be that of other weights.

    Differences from the paper: its scale s of the prior is 1, under which a posterior can hardly
    change a prediction: the divisor stays below 1.2 anywhere. The constant b has no prior.

    The lengthscale ℓ is the square root of the width, the size of a vector behind a layer norm, and
    not learned: the features that go in are. Random features are half cosines, half sines; each
    logit has the standard deviation s = 3 under the prior.
    """

    def __init__(self, dim: int, num_classes: int, *, num_features: int) -> None:
        super().__init__()
        self.kernel = RBF(dim, lengthscale=math.sqrt(dim)).requires_grad_(False)
        self.register_buffer("frequencies", sample_frequencies(self.kernel, num_features // 2))
        self.output = nn.Linear(num_features, num_classes)
        # Logits of variance 1: the layers below have a gradient from the first step on.
        nn.init.normal_(self.output.weight)
        nn.init.zeros_(self.output.bias)
        self.register_buffer("covariance_root", _PRIOR_STD * torch.eye(num_features))
        self.register_buffer("fitted", torch.tensor(False))
        self.frequencies: Tensor
        self.covariance_root: Tensor
        self.fitted: Tensor

    def forward(self, h: Float[Tensor, "n dim"]) -> Float[Tensor, "n classes"]:
        """Return logits; mean-field adjusted in eval mode once there is a posterior."""
        with torch.autocast(h.device.type, enabled=False):
            phi = self.features(full_precision(h))
            logits = self.output(phi)
            if self.training:
                return logits
            variance = self.variance(phi) * self.fitted
            return logits / (1.0 + math.pi / 8.0 * variance).sqrt()[:, None]

    def features(self, h: Float[Tensor, "n dim"]) -> Float[Tensor, "n features"]:
        """Return random features φ(h), of norm 1."""
        return fourier_features(self.kernel, h, self.frequencies)

    def variance(self, phi: Float[Tensor, "n features"]) -> Float[Tensor, " n"]:
        """Return the variance φᵀP⁻¹φ of each logit, the same for all classes."""
        return (phi @ self.covariance_root.mT).square().sum(-1)

    def negative_log_prior(self) -> Float[Tensor, ""]:
        """Return |w|²/2s², up to a constant."""
        return 0.5 * self.output.weight.square().sum() / _PRIOR_STD**2

    def train(self, mode: bool = True) -> "GaussianProcessHead":
        """Switch the mode; training drops the posterior."""
        if mode:
            self.fitted.fill_(False)
        return super().train(mode)

    @torch.no_grad()
    def set_precision(self, precision: Float[Tensor, "features features"]) -> None:
        """Set the posterior precision P, in float64; R = L⁻¹ with P = LLᵀ has RᵀR = P⁻¹."""
        root = triangular_inverse(torch.linalg.cholesky(precision))
        self.covariance_root.copy_(root)
        self.fitted.fill_(True)


class SNGPTransformer(nn.Module):
    """A transformer with bounded residual branches and a Gaussian process head: `sngp_model`."""

    def __init__(self, model: Backbone, *, num_data: int) -> None:
        super().__init__()
        self.model, self.num_data = model, num_data

    @property
    def head(self) -> GaussianProcessHead:
        """The Gaussian process."""
        return cast("GaussianProcessHead", self.model.head.linear)

    def forward(
        self,
        inputs: Tensor,
        *,
        generator: torch.Generator | None = None,
        num_samples: int | None = None,
    ) -> TransformerOutput:
        """Classify; nothing is drawn, samples are copies."""
        logits, penalty = self.model(inputs, generator=generator, num_samples=num_samples)
        return TransformerOutput(logits, penalty + self.head.negative_log_prior() / self.num_data)


def sngp_model(
    model: Backbone, *, num_data: int, bound: float = 0.95, num_features: int = 1024
) -> SNGPTransformer:
    """Bound a transformer's residual branches and end it with a Gaussian process.

    The bound holds for the linear layers of the attention modules and of the MLPs, each matrix as
    it is stored (the stacked projections to queries, keys and values are one). It keeps distances
    between inputs from being lost or blown up. Embeddings and pooling have none.

    The thesis draws 10 samples of the logits; here they are integrated over by the mean-field
    formula, as the paper's authors do.

    The transformer has softmax or kernel attention; it is changed and becomes a part of the result.
    A bound of 0.95 is the authors' for BERT; random features are even in number. Call
    `fit_precision` on the result when it is trained.
    """
    linear = model.head.linear
    sizes = (linear.in_features, linear.out_features)
    head = GaussianProcessHead(*sizes, num_features=num_features)
    model.head.register_module("linear", head.to(linear.weight))
    bound_spectral_norm(model.encoder, bound=bound)
    return SNGPTransformer(model, num_data=num_data)


@torch.no_grad()
def fit_precision(model: SNGPTransformer, batches: Iterable[Tensor]) -> None:
    r"""Fit the Laplace posterior of the output weights to the training set, in one pass.

    .. math:: P = I / s^2 + \sum_n \max_c p_{nc} (1 - p_{nc}) \, \phi_n \phi_n^\top

    The paper (Eq. 9) has a matrix for each class c, with the weights p_c (1 − p_c) alone; its
    authors' code has one for all classes, with weight 1, the Gaussian likelihood's. This is one
    matrix with the largest of the paper's weights: no class's variance is above that of the paper,
    a confident classifier's is not as small as the code's, and as the variance is the same for all
    classes, the predicted class never changes.

    The model is left in eval mode; batches are inputs as the transformer takes them.
    """
    model.eval()
    head = model.head
    eye = torch.eye(head.frequencies.shape[0] * 2, dtype=torch.float64, device=head.fitted.device)
    precision = eye / _PRIOR_STD**2
    for inputs in batches:
        h = full_precision(pooled_features(model.model, inputs))
        # As in the head's forward pass.
        with torch.autocast(h.device.type, enabled=False):
            phi = head.features(h)
            probs = head.output(phi).softmax(-1).double()
        weight = (probs * (1.0 - probs)).amax(-1, keepdim=True)
        phi = phi.double()
        precision = precision + phi.mT @ (weight * phi)
    head.set_precision(precision)
