"""Laplace posterior of a last linear layer (Ritter et al. 2018; Kristiadi et al. 2020)."""

import copy
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, NamedTuple, TypeVar, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from probseq.batches import call_model, read_batches, read_logits
from probseq.checks import check_choice, check_labels, check_positive
from probseq.precision import full_precision

Structure = Literal["kronecker", "full"]
VarianceName = Literal["centred", "plain"]
M = TypeVar("M", bound=nn.Module)
Call = Callable[[nn.Module, Any], Any]

# Prior precisions that are tried, equally spaced on the logarithm.
PRECISIONS: tuple[float, ...] = tuple(torch.logspace(-4, 4, 81, dtype=torch.float64).tolist())


class LogitVariance(nn.Module):
    r"""Posterior variances of the logits of a linear layer, from what goes into it.

    :math:`\sum_i (\phi^\top u_i)^2 w_{ic}` with U of shape (features, features), or
    :math:`\sum_p (\phi^\top q_{cp})^2 w_p` with Q of shape (features, classes, weights); with a
    bias a one is appended to φ.
    """

    def __init__(self, basis: Tensor, weights: Tensor, bias: bool) -> None:
        super().__init__()
        self.bias = bias
        self.register_buffer("basis", basis)
        self.register_buffer("weights", weights)
        self.basis: Tensor
        self.weights: Tensor

    def forward(self, features: Float[Tensor, "*n dim"]) -> Float[Tensor, "*n classes"]:
        """Return the variances, in float32 at least."""
        with torch.autocast(features.device.type, enabled=False):
            phi, basis, weights = map(full_precision, (features, self.basis, self.weights))
            phi = F.pad(phi, (0, 1), value=1.0) if self.bias else phi
            dtype = torch.promote_types(phi.dtype, basis.dtype)
            projected = torch.tensordot(phi.to(dtype), basis.to(dtype), 1)
            return projected.square() @ weights.to(dtype)

    def scale(
        self, logits: Float[Tensor, "*n classes"], features: Float[Tensor, "*n dim"]
    ) -> Float[Tensor, "*n classes"]:
        r"""Return probit-scaled logits, :math:`f_c / \sqrt{1 + \tfrac{\pi}{8} v_c}`."""
        variance = self(features)
        return logits.to(variance.dtype) / (1.0 + math.pi / 8.0 * variance).sqrt()


@dataclass(frozen=True, eq=False)
class Curvature:
    r"""Generalised Gauss-Newton curvature of a linear softmax layer's loss, by its eigenvectors.

    ``"full"``: :math:`\sum_n \phi_n \phi_n^\top \otimes H_n` with
    :math:`H_n = \operatorname{diag} p_n - p_n p_n^\top`, φ the layer's input with a one appended
    for the bias, if there is one. ``"kronecker"``: :math:`N A \otimes H` of the means of both.

    The basis has the eigenvectors of A, with those of H in the class basis, or those of the whole.
    """

    basis: Float[Tensor, " *basis"]
    class_basis: Float[Tensor, "classes classes"] | None
    eigenvalues: Float[Tensor, " *weights"]
    bias: bool
    log_likelihood: float
    squared_norm: float

    def log_evidence(self, prior_precision: float) -> float:
        r"""Laplace approximation of the log evidence, λ the eigenvalues.

        .. math:: \log p(y|w) - \tfrac{\delta}{2} |w|^2 - \tfrac12 \sum_i \log(1 + λ_i / \delta)
        """
        occam = float(torch.log1p(self.eigenvalues / prior_precision).sum())
        return self.log_likelihood - 0.5 * prior_precision * self.squared_norm - 0.5 * occam

    def variance(self, prior_precision: float, name: VarianceName = "centred") -> LogitVariance:
        """Return the variances of logits at a prior precision; see :func:`laplace_model`."""
        weights = (self.eigenvalues + prior_precision).reciprocal()
        if self.class_basis is None:
            basis = _centred(self.basis, 1) if name == "centred" else self.basis
            return LogitVariance(basis, weights, self.bias).eval()
        classes = _centred(self.class_basis, 0) if name == "centred" else self.class_basis
        # Logit c's variance is Σ_ij (φᵀu_i)² V_cj² / (N a_i h_j + δ).
        return LogitVariance(self.basis, weights @ classes.square().mT, self.bias).eval()


@torch.no_grad()
def fit_curvature(
    linear: nn.Linear, data: Iterable[tuple[Tensor, Tensor]], structure: Structure = "kronecker"
) -> Curvature:
    """Fit the curvature, in float64, to what goes into the layer and labels.

    Features of S samples of an input are sample-major, and count for one input together.
    """
    check_choice("structure", structure, Structure)
    bias = cast("Tensor | None", linear.bias) is not None
    width, classes = linear.in_features + bias, linear.out_features
    full = structure == "full"
    zeros = torch.zeros(0, dtype=torch.float64, device=linear.weight.device)
    outer = zeros.new_zeros(*(width, classes) * 2 if full else (width, width))
    hessian, log_likelihood, count = zeros.new_zeros(classes, classes), 0.0, 0
    for features, labels in data:
        samples = len(features) // len(labels)
        log_probs = linear(features).double().log_softmax(-1)
        probs, phi = log_probs.exp(), features.double()
        phi = F.pad(phi, (0, 1), value=1.0) if bias else phi
        if full:
            each = torch.diag_embed(probs) - probs[:, :, None] * probs[:, None]  # H_n
            outer += torch.einsum("ni,ncd,nj->icjd", phi, each, phi) / samples
        else:
            outer += phi.mT @ phi / samples  # N A
            hessian += (torch.diag(probs.sum(0)) - probs.mT @ probs) / samples  # N H
        nll = F.nll_loss(log_probs, labels.repeat(samples), reduction="sum")
        log_likelihood -= float(nll) / samples
        count += len(labels)
    norm = sum(float(each.double().square().sum()) for each in linear.parameters())
    # Curvatures may be singular: round-off must not make a precision negative.
    if full:
        values, vectors = torch.linalg.eigh(outer.flatten(2).flatten(0, 1))
        basis = vectors.unflatten(0, (width, classes))
        return Curvature(basis, None, values.clamp(min=0.0), bias, log_likelihood, norm)
    values, basis = torch.linalg.eigh(outer / count)
    class_values, class_basis = torch.linalg.eigh(hessian / count)
    eigenvalues = count * torch.outer(values.clamp(min=0.0), class_values.clamp(min=0.0))
    return Curvature(basis, class_basis, eigenvalues, bias, log_likelihood, norm)


class LaplaceLinear(nn.Module):
    """Linear layer whose logits are scaled down by their uncertainty; see `LogitVariance.scale`."""

    def __init__(
        self,
        linear: nn.Linear,
        variance: LogitVariance,
        prior_precision: float,
        log_evidence: float,
    ) -> None:
        super().__init__()
        self.linear, self.variance = linear, variance.to(full_precision(linear.weight))
        self.prior_precision, self.log_evidence = prior_precision, log_evidence

    def forward(self, features: Float[Tensor, "*n dim"]) -> Float[Tensor, "*n classes"]:
        """Logits, scaled."""
        return self.variance.scale(self.linear(features), features)


def laplace_model(
    model: M,
    batches: Iterable[Any],
    *,
    prior_precision: float | None = None,
    validation: Iterable[Any] | None = None,
    structure: Structure = "kronecker",
    variance: VarianceName = "centred",
    call: Call = call_model,
) -> M:
    """Return a copy of a trained classifier whose last layer has a Laplace posterior.

    It is in eval mode, and its logits are probit-scaled. A softmax doesn't see what is added to all
    logits alike; the curvature is zero there, and the prior's variance dominates the plain
    variances. With ``variance="centred"`` a logit's variance is that of its difference from the
    mean of the logits, times C/(C − 1): the same where logits are independent and alike.
    ``"plain"`` takes the diagonal of the logits' covariance, as the authors' code does.
    laplace-torch has separate Kronecker factors of weights and biases.

    Args:
        model: any classifier whose logits are the outputs of an ``nn.Linear``.
        batches: the training set, see :func:`~probseq.batches.read_batches`; read once.
        prior_precision: δ of the prior N(0, I/δ); ``None`` for the best of `PRECISIONS`, by the
            evidence or by the validation data where there are any.
        validation: batches like the training set's; δ then has the smallest negative log likelihood
            on them. The evidence trusts a model that is too sure of its training data.
        structure: of the curvature; the full one has (features · classes)² entries.
        variance: which variance scales the logits.
        call: calls a model on inputs, for models that need more than inputs; models that draw may
            fold S samples into the batch, sample-major, over which the curvature is a mean.
    """
    if prior_precision is not None:
        check_positive(prior_precision=prior_precision)
    check_choice("variance", variance, VarianceName)
    if prior_precision is not None and validation is not None:
        raise ValueError("prior_precision must be left out when validation data choose it")
    changed = copy.deepcopy(model).eval().requires_grad_(False)
    name, data = _last_linear(changed, batches, call)
    linear, held_out = cast("nn.Linear", changed.get_submodule(name)), None
    if validation is not None:
        held_out = list(_last_linear(changed, validation, call, "validation")[1])
    curvature = fit_curvature(linear, data, structure)

    def layer_at(precision: float) -> LaplaceLinear:
        evidence = curvature.log_evidence(precision)
        return LaplaceLinear(linear, curvature.variance(precision, variance), precision, evidence)

    if held_out is not None:
        layer = max(map(layer_at, PRECISIONS), key=lambda each: _log_likelihood(each, held_out))
    else:
        layer = layer_at(prior_precision or max(PRECISIONS, key=curvature.log_evidence))
    changed.set_submodule(name, layer.eval())
    return changed


class LayerCall(NamedTuple):
    """One call of a linear layer."""

    name: str
    features: Tensor
    output: Tensor


def linear_layers(modules: Mapping[str, nn.Module]) -> dict[str, nn.Linear]:
    """Return by name the linear layers whose weights are plain tensors of floating numbers."""
    return {
        name: module
        for name, module in modules.items()
        if isinstance(module, nn.Linear)
        and type(module.weight.data) is Tensor
        and not module.weight.is_meta
        and module.weight.is_floating_point()
    }


@contextmanager
def watch_layers(layers: dict[str, nn.Linear]) -> Generator[list[LayerCall]]:
    """Record the calls of layers with one row an input: (rows, features)."""
    calls: list[LayerCall] = []

    def hook(name: str) -> Callable[..., None]:
        def record(module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> None:
            if output.ndim == 2:
                calls.append(LayerCall(name, arguments[0], output))

        return record

    with ExitStack() as hooks:
        for name, layer in layers.items():
            hooks.enter_context(layer.register_forward_hook(hook(name)))
        yield calls


def last_call(
    calls: list[LayerCall], logits: Tensor, layers: Mapping[str, nn.Linear]
) -> LayerCall | None:
    """Return the last call whose outputs are the logits, if the layer is linear as it is called."""
    flat = logits.flatten()
    last = next((each for each in calls[::-1] if torch.equal(each.output.flatten(), flat)), None)
    if last is None:
        return None
    layer = layers[last.name]  # maybe of a subclass, which may scale or normalise
    affine = F.linear(last.features.to(layer.weight), layer.weight, layer.bias).to(last.output)
    return last if torch.allclose(affine, last.output, rtol=0.05, atol=0.05) else None


def _last_linear(
    model: nn.Module, data: Iterable[Any], call: Call, source: str = "batches"
) -> tuple[str, Iterator[tuple[Float[Tensor, "rows features"], Tensor]]]:
    """Return the name of the layer that gives the logits, and its inputs and labels by batch."""
    layers = linear_layers({name: each for name, each in model.named_modules() if name})

    @torch.no_grad()
    def read() -> Iterator[tuple[Tensor, Tensor]]:
        for inputs, labels in read_batches(data, model, name=source):
            with watch_layers(layers) as calls:
                logits = read_logits(call(model, inputs))
            last = last_call(calls, logits, layers)
            if last is None:
                called = ", ".join(dict.fromkeys(each.name for each in calls)) or "none"
                raise ValueError(
                    "model must end with an nn.Linear, and its logits do not: "
                    f"{type(model).__name__}, whose linear layers that were called are: {called}"
                )
            for other in layers.keys() - {last.name}:
                del layers[other]
            classes = labels.to(logits.device)
            folded = len(classes) > 0 and logits.ndim == 2 and len(logits) % len(classes) == 0
            check_labels(classes, logits.unflatten(0, (-1, len(classes))) if folded else logits)
            yield last.features, classes

    pairs = read()
    first = next(pairs, None)
    if first is None:
        raise ValueError(f"{source} must hold data, got none")
    return next(iter(layers)), chain([first], pairs)


def _log_likelihood(layer: LaplaceLinear, data: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Of the predictions: means over samples of the softmax."""
    total = 0.0
    for features, labels in data:
        log_probs = layer(features).double().log_softmax(-1).unflatten(0, (-1, len(labels)))
        total -= float(F.nll_loss(log_probs.logsumexp(0), labels, reduction="sum"))
    return total


def _centred(basis: Tensor, axis: int) -> Tensor:
    classes = basis.shape[axis]
    return (
        basis
        if classes == 1
        else (basis - basis.mean(axis, keepdim=True)) * math.sqrt(classes / (classes - 1))
    )
