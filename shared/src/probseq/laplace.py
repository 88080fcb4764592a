"""Kronecker-factored last-layer Laplace (Ritter et al. 2018; Kristiadi et al. 2020)."""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Literal, TypeVar, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from probseq.batches import call_model, on_device, read_batches
from probseq.checks import check_choice, check_labels, check_positive
from probseq.transformers.attention import full_precision

VarianceName = Literal["centred", "plain"]
M = TypeVar("M", bound=nn.Module)
Call = Callable[[nn.Module, Any], Any]

# Prior precisions that are tried, equally spaced on the logarithm.
_GRID = torch.logspace(-4, 4, 81, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class KroneckerCurvature:
    r"""Curvature :math:`N A \otimes H` of a linear softmax layer's loss, by its eigenvectors.

    Attributes:
        feature_basis: U, eigenvectors of A, the mean of :math:`\phi\phi^\top`, φ the layer's input
            with a one appended for the bias, if there is one.
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

    def log_evidence(
        self, log_likelihood: float, squared_norm: float, prior_precision: float
    ) -> float:
        r"""Laplace approximation of the log evidence.

        .. math:: \log p(y|w) - \tfrac{\delta}{2} |w|^2
            - \tfrac12 \sum_{ij} \log(1 + N a_i h_j / \delta)
        """
        occam = float(torch.log1p(self.eigenvalues / prior_precision).sum())
        return log_likelihood - 0.5 * prior_precision * squared_norm - 0.5 * occam


class LaplaceLinear(nn.Module):
    r"""Linear layer whose logits are scaled down by their uncertainty.

    The probit approximation class by class, :math:`f_c / \sqrt{1 + \tfrac{\pi}{8} v_c}`.

    Args:
        linear: the layer, with its weights at the mode.
        curvature: of the loss there.
        prior_precision: δ.
        log_likelihood: of the training set, for the `log_evidence` at δ.
        variance: see `laplace_model`.
    """

    def __init__(
        self,
        linear: nn.Linear,
        curvature: KroneckerCurvature,
        *,
        prior_precision: float,
        log_likelihood: float,
        variance: VarianceName,
    ) -> None:
        super().__init__()
        self.linear = linear
        self.prior_precision = prior_precision
        norm = _squared_norm(linear)
        self.log_evidence = curvature.log_evidence(log_likelihood, norm, prior_precision)
        basis = curvature.class_basis
        classes = len(basis)
        if variance == "centred" and classes > 1:
            basis = (basis - basis.mean(0)) * math.sqrt(classes / (classes - 1))
        # Logit c's variance is Σ_ij (φᵀu_i)² V_cj² / (N a_i h_j + δ).
        per_class = (curvature.eigenvalues + prior_precision).reciprocal() @ basis.square().mT
        like = full_precision(linear.weight)
        self.register_buffer("feature_basis", curvature.feature_basis.to(like))
        self.register_buffer("per_class", per_class.to(like))
        self.feature_basis: Tensor
        self.per_class: Tensor

    def forward(self, features: Float[Tensor, "*n dim"]) -> Float[Tensor, "*n classes"]:
        """Logits, scaled."""
        logits = self.linear(features)
        with torch.autocast(features.device.type, enabled=False):
            variance = self.variance(full_precision(features))
            return full_precision(logits) / (1.0 + math.pi / 8.0 * variance).sqrt()

    def variance(self, features: Float[Tensor, "*n dim"]) -> Float[Tensor, "*n classes"]:
        """Variances v of the logits."""
        basis, per_class = full_precision(self.feature_basis), full_precision(self.per_class)
        return (_phi(self.linear, features) @ basis).square() @ per_class


def laplace_model(
    model: M,
    batches: Iterable[Any],
    *,
    prior_precision: float | None = None,
    validation: Iterable[Any] | None = None,
    variance: VarianceName = "centred",
    call: Call | None = None,
) -> M:
    """Give the last layer of a trained classifier a Laplace posterior.

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
        model: any classifier whose logits come from an ``nn.Linear``; a copy of it is changed.
        batches: the training set, see :func:`~probseq.batches.read_batches`; read once. Where a
            model gives logits of several tokens for a label, the curvature is a mean over them.
        prior_precision: δ of the prior N(0, I/δ); ``None`` for the best on a grid from 1e-4 to
            1e4: by the evidence, or by the validation data where they are given.
        validation: batches like the training set's; δ then has the smallest negative log likelihood
            on them. The evidence needs none, but trusts a model that is surer of its training
            data than of any others.
        variance: which variance scales the logits.
        call: calls a model on inputs, for models that need more than inputs; what draws may fold S
            samples into the batch, sample-major, over which the curvature is a mean. ``None``:
            ``model(inputs)``, by keywords where inputs are a mapping.

    Returns:
        A copy of the model in eval mode, of the same kind, whose logits are probit-scaled.

    Raises:
        ValueError: the logits don't come from an ``nn.Linear``, there are no batches, labels are
            not those of the inputs, an argument is out of range, or both ``prior_precision`` and
            ``validation`` are given.
    """
    if prior_precision is not None:
        check_positive(prior_precision=prior_precision)
    check_choice("variance", variance, VarianceName)
    if prior_precision is not None and validation is not None:
        raise ValueError("prior_precision must be left out when validation data choose it")
    changed = copy.deepcopy(model).eval().requires_grad_(False)
    call = call or call_model
    name, features = last_linear(changed, batches, call=call)
    linear, held = cast("nn.Linear", changed.get_submodule(name)), None
    if validation is not None:
        known = read_batches(validation, changed, name="validation")
        held = list(last_linear(changed, known, call=call)[1])
    fit = _fit(linear, features)
    if held is not None:
        layers = _layers(linear, *fit, _GRID.tolist(), variance)
        layer = max(layers, key=lambda each: _log_likelihood(each, held))
    else:
        evidence = partial(fit[0].log_evidence, fit[1], _squared_norm(linear))
        chosen = prior_precision or float(max(_GRID.tolist(), key=evidence))
        (layer,) = _layers(linear, *fit, [chosen], variance)
    changed.set_submodule(name, layer)
    return changed


def laplace_layers(
    linear: nn.Linear,
    data: Iterable[tuple[Float[Tensor, "*n features"], Tensor]],
    *,
    variance: VarianceName = "centred",
) -> Iterator[LaplaceLinear]:
    """Yield a last layer with its Laplace posterior for each prior precision from 1e-4 to 1e4.

    Args:
        linear: the layer, with its weights at the mode.
        data: of the training set what goes into the layer, and labels; see :func:`last_linear`.
        variance: see :func:`laplace_model`.
    """
    yield from _layers(linear, *_fit(linear, data), _GRID.tolist(), variance)


def _layers(
    linear: nn.Linear,
    curvature: KroneckerCurvature,
    log_likelihood: float,
    precisions: Iterable[float],
    variance: VarianceName,
) -> Iterator[LaplaceLinear]:
    options: Any = {"log_likelihood": log_likelihood, "variance": variance}
    for precision in precisions:
        yield LaplaceLinear(linear, curvature, prior_precision=precision, **options).eval()


def _squared_norm(linear: nn.Linear) -> float:
    return sum(float(each.detach().double().square().sum()) for each in linear.parameters())


def _linear_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """Return linear layers by name, without those of a Laplace posterior."""
    return {
        name: module
        for name, module in model.named_modules()
        if name
        and type(module) is nn.Linear
        and not isinstance(model.get_submodule(name.rpartition(".")[0]), LaplaceLinear)
    }


def _logits(outputs: Any) -> Tensor | None:
    if isinstance(outputs, Mapping):
        logits = outputs.get("logits")
    else:
        logits = outputs if isinstance(outputs, Tensor) else getattr(outputs, "logits", None)
    return logits if isinstance(logits, Tensor) else None


def _equal(output: Tensor, logits: Tensor | None) -> bool:
    """Whether the logits are a layer's outputs: of all its rows, or of one token of each."""
    if logits is None or output.shape[-1] != logits.shape[-1]:
        return False
    if output.ndim == logits.ndim + 1 and output.shape[:-2] == logits.shape[:-1]:
        return bool((output == logits[..., None, :]).all(-1).any(-1).all())
    return torch.equal(output.flatten(), logits.flatten())


def last_linear(
    model: nn.Module, batches: Iterable[Any], *, call: Call | None = None
) -> tuple[str, Iterator[tuple[Float[Tensor, "rows features"], Tensor]]]:
    """Return the linear layer that a classifier's logits come from, and what goes into it.

    Args:
        model: any classifier, in evaluation mode. Of a layer that is called on all tokens, where
            the logits are those of one, only that token counts.
        batches: see :func:`~probseq.batches.read_batches`.
        call: see :func:`laplace_model`.

    Returns:
        The layer's name, that of the last such layer if there are several, and an iterator over
        features and labels of the batches, samples folded.

    Raises:
        ValueError: the logits don't come from an ``nn.Linear``, there are no batches, labels are
            not those of the inputs, or as many tokens as labels could be samples.
    """
    layers = _linear_layers(model)
    data = _last_layer_data(model, layers, batches, call or call_model)
    first = next(data)
    (name,) = layers
    return name, chain([first], data)


def linear_inputs(model: nn.Module, name: str, inputs: Any) -> Float[Tensor, "rows features"]:
    """Return what goes into a linear layer of which a classifier's outputs are the logits.

    Args:
        model: the classifier, in evaluation mode.
        name: of the layer, see :func:`last_linear`.
        inputs: of the model; a mapping is given by keywords.
    """
    seen, logits = _watched(model, {name: cast("nn.Linear", model.get_submodule(name))}, inputs)
    _, features, output = seen[-1]
    return _rows_of(features, output, cast("Tensor", logits))[0]


@torch.no_grad()
def _watched(
    model: nn.Module, layers: Mapping[str, nn.Linear], inputs: Any, call: Call = call_model
) -> tuple[list[tuple[str, Tensor, Tensor]], Tensor | None]:
    """Call a model; return inputs and outputs of layers at each of their calls, and the logits."""
    seen: list[tuple[str, Tensor, Tensor]] = []
    with ExitStack() as hooks:
        for name, layer in layers.items():

            def look(module: Any, arguments: Any, output: Tensor, *, name: str = name) -> None:
                seen.append((name, arguments[0], output))

            hooks.enter_context(layer.register_forward_hook(look))
        return seen, _logits(call(model, on_device(inputs, model)))


def _rows_of(
    features: Tensor, output: Tensor, logits: Tensor, num_labels: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return a layer's inputs and outputs of the logits' rows: all, or one token's of each row.

    Several rows of a label are sample-major: in one axis, or in an axis before that of the labels.
    """
    if output.shape != logits.shape and output.ndim == logits.ndim + 1:
        token = (output == logits[..., None, :]).all(-1).int().argmax(-1)[..., None, None]
        features, output = (each.take_along_dim(token, -2) for each in (features, output))
    several = output.ndim > 2 and output[..., 0].numel() != num_labels
    if several and len(output) == num_labels:
        if output.shape[-2] == num_labels:
            raise ValueError(
                f"batches must have another size than {num_labels}, where logits are of shape "
                f"{tuple(output.shape)}: labels could be those of either axis"
            )
        features, output = (each.flatten(1, -2).transpose(0, 1) for each in (features, output))
    return features.flatten(0, -2), output.flatten(0, -2)


def _last_layer_data(
    model: nn.Module,
    layers: dict[str, nn.Linear],
    batches: Iterable[Any],
    call: Call,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield what goes into the last layer, samples folded, with one label an input.

    Args:
        model: the classifier.
        layers: where the logits may come from, by name; at the first batch all are taken out but
            that of which the output is the logits, the one called last if there are several.
        batches: inputs and labels.
        call: calls the model.
    """
    labels = None
    for inputs, labels in read_batches(batches, model):
        seen, logits = _watched(model, layers, inputs, call)
        last = next((each for each in seen[::-1] if _equal(each[2], logits)), None)
        if last is None or logits is None:
            called = ", ".join(dict.fromkeys(name for name, _, _ in seen)) or "none"
            raise ValueError(
                "model must end with an nn.Linear, and its logits do not: "
                f"{type(model).__name__}, whose linear layers that were called are: {called}"
            )
        name, features, output = last
        for other in layers.keys() - {name}:
            del layers[other]
        features, rows = _rows_of(features, output, logits, len(labels))
        labels = labels.to(rows.device)
        whole = len(labels) > 0 and len(rows) % len(labels) == 0
        check_labels(labels, rows.unflatten(0, (-1, len(labels))) if whole else rows)
        yield features, labels
    if labels is None:
        raise ValueError("batches and validation must hold data, got none")


@torch.no_grad()
def _fit(
    linear: nn.Linear, data: Iterable[tuple[Tensor, Tensor]]
) -> tuple[KroneckerCurvature, float]:
    """Curvature and log likelihood of the training set, in float64; samples share one count."""
    width, classes = _phi(linear, linear.weight).shape[-1], linear.out_features
    outer = torch.zeros(width, width, dtype=torch.float64, device=linear.weight.device)
    hessian = outer.new_zeros(classes, classes)
    log_likelihood, num_data = 0.0, 0
    for features, labels in data:
        samples = len(features) // len(labels)
        log_probs = linear(features).double().log_softmax(-1)
        probs, phi = log_probs.exp(), _phi(linear, features).double()
        outer += phi.mT @ phi / samples
        hessian += (torch.diag(probs.sum(0)) - probs.mT @ probs) / samples
        nll = F.nll_loss(log_probs, labels.repeat(samples), reduction="sum")
        log_likelihood -= float(nll) / samples
        num_data += len(labels)
    curvature = KroneckerCurvature.of(outer / num_data, hessian / num_data, num_data)
    return curvature, log_likelihood


@torch.no_grad()
def _log_likelihood(layer: LaplaceLinear, data: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Of the predictions: means over samples of the softmax."""
    total = 0.0
    for features, labels in data:
        log_probs = layer(features).double().log_softmax(-1).unflatten(0, (-1, len(labels)))
        total -= float(F.nll_loss(log_probs.logsumexp(0), labels, reduction="sum"))
    return total


def _phi(linear: nn.Linear, features: Float[Tensor, "*n dim"]) -> Float[Tensor, "*n features"]:
    """Append the bias's input, a one, if there is a bias."""
    bias = cast("Tensor | None", linear.bias)
    return features if bias is None else F.pad(features, (0, 1), value=1.0)
