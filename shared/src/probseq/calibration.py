"""Calibration of any trained classifier, and decisions with a guaranteed rate of errors.

Candidates are fitted on one half of held-out data and measured on the other; a later one is chosen
only where its negative log likelihood is lower by more than chance, so that the model as it is may
stay. The model is called as it is, always in evaluation mode, and nothing of it is changed.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from probseq.batches import output_kind, read_batches, read_labels, to_log_probs
from probseq.calibrated import Calibrated, CandidateRow, entropy, predict
from probseq.laplace import (
    LogitVariance,
    Structure,
    fit_curvature,
    last_call,
    linear_layers,
    watch_layers,
)
from probseq.metrics import auroc, select_with_error
from probseq.metrics.post_hoc import is_bound, search_temperature

_PRECISIONS = torch.logspace(-4, 4, 17).tolist()  # δ of the prior of the Laplace posterior
_ROWS = 2000  # that choose among them
_BATCH = 256
_TEMPERED = {
    "as it is": "temperature",
    "mean of the models": "mean, temperature",
    "Laplace": "Laplace, temperature",
}


@torch.no_grad()
def calibrate(
    model: Any,
    held_out: Any,
    *,
    error_rate: float | None = None,
    coverage: float = 0.9,
    level: float = 0.95,
    train: Iterable[Any] | None = None,
    unknown: Any = None,
    classes: Sequence[Any] | None = None,
    output: str | int | Callable[[Any], Any] | None = None,
    structure: Structure | None = "kronecker",
    seed: int = 0,
) -> Calibrated:
    """Calibrate a classifier on held-out data.

    Tried are the model as it is, the mean of several models' probabilities, and a Laplace posterior
    of a linear last layer, each also with a temperature (Guo et al. 2017).

    Args:
        model: of torch, an estimator with ``predict_proba``, a function from inputs to outputs, or
            several of them; or logits or probabilities, (examples, classes). One column is that of
            the second of two classes. Rows of probabilities are recognised.
        held_out: data not trained on, see :func:`~probseq.batches.read_batches`; or just labels.
        error_rate: most errors among what is accepted, with probability `level`, whichever
            candidate is chosen (Geifman and El-Yaniv 2017).
        coverage: share of new examples whose class is in their prediction set (split conformal).
        level: probability of the error rate.
        train: training data, for the Laplace posterior's curvature, in place of the half that fits.
        unknown: inputs of no class, a tensor or batches without labels, for the entropy above which
            an input is unknown. Of known inputs a share of 1 - `level` is.
        classes: what labels are called, in the order of the outputs.
        output: key, attribute or number of the logits among several outputs, or a function.
        structure: of the Laplace posterior's curvature; ``None`` leaves it out.
        seed: of the halves, which have the same shares of classes.

    Example:
        >>> logits = 4 * torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
        >>> labels = (logits / 4).softmax(-1).multinomial(1)[:, 0]
        >>> calibrated = calibrate(logits, labels)
        >>> calibrated.chosen
        'temperature'
    """
    for name, value in (("error_rate", error_rate), ("coverage", coverage), ("level", level)):
        if value is not None and not 0.0 < value < 1.0:
            raise ValueError(f"{name} must be above 0 and below 1, got {value}")
    models, classes = _models(model, classes)
    read = _read(models, held_out, classes, output) if models else _stored(model, held_out, classes)
    labels, kinds = read.labels, [output_kind(logits) for logits in read.logits]
    members = [to_log_probs(x, kind) for x, kind in zip(read.logits, kinds, strict=True)]
    _check_classes(members, labels, classes)
    fit, choose = split_evenly(labels, seed)
    notes = [
        *_warnings(members[0], read.features, labels, fit, choose),
        *_notes(read.logits, kinds),
    ]

    candidates: dict[str, tuple[Tensor, LogitVariance | None]] = {"as it is": (members[0], None)}
    if len(members) > 1:
        mean = torch.logsumexp(torch.stack(members), 0) - math.log(len(members))
        candidates["mean of the models"] = mean, None
    elif structure is not None and read.layer is not None and kinds == ["logits"]:
        candidates["Laplace"] = _posterior(models[0], read, train, output, structure, fit)
    log_probs: dict[str, Tensor] = {}  # of the half that did not fit
    fitted: dict[str, tuple[float, LogitVariance | None]] = {}
    for name, (values, variance) in candidates.items():
        tempered = _TEMPERED[name]
        temperature = search_temperature(values[fit], labels[fit])
        log_probs[name], fitted[name] = values[choose], (1.0, variance)
        log_probs[tempered] = (values[choose] / temperature).log_softmax(-1)
        fitted[tempered] = temperature, variance

    chosen, rows = _choose(log_probs, labels[choose])
    temperature, variance = fitted[chosen]
    if is_bound(temperature):
        notes.append(f"the temperature {temperature:g} is the last that is tried")
    served = models if "mean" in chosen else models[:1]
    calibrated = Calibrated(served, output)
    calibrated.facts = {
        "chosen": chosen,
        "temperature": temperature,
        "rows": [list(row) for row in rows],
        "notes": notes,
        "kinds": kinds[: max(len(served), 1)],
        "layer": read.layer,
        "bias": variance is not None and variance.bias,
        "classes": members[0].shape[-1],
        "names": None if classes is None else [str(each) for each in classes],
        "examples": [len(fit), len(choose)],
        "model": bool(models),
    }
    calibrated.temperature.fill_(temperature)
    if variance is not None and read.layer is not None:
        calibrated.set_variance(read.layer, variance)
    _decide(calibrated, log_probs[chosen], labels[choose], error_rate, coverage, level)
    if unknown is not None:
        _detect(calibrated, log_probs[chosen], unknown, level)
    return calibrated


def split_evenly(labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Return the rows of two halves, drawn by a seed, with the same shares of classes."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    order = order[labels[order].argsort(stable=True)]
    return order[::2], order[1::2]


# Outputs of models on held-out data


class _Read(NamedTuple):
    logits: list[Tensor]  # of each model
    labels: Tensor
    layer: str | None = None  # linear, whose outputs are the only model's logits
    features: Tensor | None = None  # that go into it


def _models(model: Any, classes: Sequence[Any] | None) -> tuple[list[Any], Sequence[Any] | None]:
    """Return models, as modules or functions, none for outputs; and the names of classes."""
    models = list(model) if isinstance(model, list | tuple) else [model]
    if not models:
        raise ValueError("model must be one model or several, got none")
    if hasattr(models[0], "__array__"):
        return [], classes
    if classes is None:
        classes = getattr(models[0], "classes_", None)
        names = getattr(getattr(models[0], "config", None), "id2label", None) or {}
        if not all(str(name).startswith("LABEL_") for name in names.values()):
            classes = [names[index] for index in sorted(names)]
    models = [getattr(each, "predict_proba", each) for each in models]
    if wrong := [each for each in models if not callable(each)]:
        raise ValueError(
            "model must be of torch, a function, an estimator with predict_proba, or logits, got "
            f"{type(wrong[0]).__name__}"
        )
    return models, None if classes is None else list(classes)


def _stored(model: Any, labels: Any, classes: Sequence[Any] | None) -> _Read:
    members = model if isinstance(model, list | tuple) else [model]
    logits = [x if isinstance(x, Tensor) else torch.as_tensor(np.asarray(x)) for x in members]
    rows = [_rows(x.detach().cpu(), None) for x in logits]
    return _Read(rows, read_labels(labels, "held_out", classes))


def _read(models: list[Any], data: Any, classes: Sequence[Any] | None, output: Any) -> _Read:
    """Call models on batches; where the last layer is linear, note what goes into it."""
    first = models[0] if isinstance(models[0], nn.Module) else None
    layers = {} if first is None or len(models) > 1 else linear_layers(first)
    logits: list[list[Tensor]] = [[] for _ in models]
    labels, features = list[Tensor](), list[Tensor]()
    for inputs, numbers in read_batches(data, first, name="held_out", classes=classes):
        whole = [(inputs, len(numbers))]
        for piece, rows in whole if first is None else _pieces(inputs, len(numbers)):
            with watch_layers(layers) as calls:
                outputs = [predict(each, piece, output) for each in models]
            for each, values in zip(logits, outputs, strict=True):
                each.append(_rows(values.detach(), rows).cpu())
            last = last_call(calls, outputs[0])
            layers = {} if last is None else {last.name: layers[last.name]}
            features += [] if last is None else [last.features.detach().cpu()]
        labels.append(numbers)
    if not labels:
        raise ValueError("held_out must hold data, got none")
    joined = [torch.cat(each) for each in logits]
    layer = next(iter(layers), None)
    return _Read(joined, torch.cat(labels), layer, torch.cat(features) if layer else None)


def _pieces(inputs: Any, rows: int) -> Iterator[tuple[Any, int]]:
    """Cut a large batch of tensors with a row an example into pieces."""
    flat, spec = tree_flatten(inputs)
    tensors = all(isinstance(each, Tensor | np.ndarray) and len(each) == rows for each in flat)
    for start in range(0, rows, _BATCH if tensors else rows):
        piece = [each[start : start + _BATCH] for each in flat] if tensors else flat
        yield tree_unflatten(piece, spec), min(_BATCH, rows - start) if tensors else rows


def _rows(outputs: Tensor, rows: int | None) -> Tensor:
    """Return outputs of one row an example, of one class column or several."""
    shape = tuple(outputs.shape)
    if outputs.ndim not in (1, 2) or rows not in (None, shape[0]) or not outputs.numel():
        raise ValueError(
            f"model must give one row of logits an example, ({rows or 'examples'}, classes), got "
            f"{shape}: logits of several tokens or pixels are no classification of an example"
        )
    if not outputs.is_floating_point():
        raise ValueError(f"model must give floating-point logits, got {outputs.dtype}")
    return outputs.float() if outputs.dtype.itemsize < 4 else outputs


# What speaks against the data


def _check_classes(members: list[Tensor], labels: Tensor, classes: Sequence[Any] | None) -> None:
    """Refuse labels of other rows or classes, and predictions that are worth nothing."""
    count, size = members[0].shape
    if any(each.shape != members[0].shape for each in members):
        raise ValueError(f"model must be several of the same classes, got {[*map(len, members)]}")
    if len(labels) != count:
        raise ValueError(f"held_out must have a label a row, got {len(labels)} for {count} rows")
    if count < 10:
        raise ValueError(f"held_out must have 10 examples at least, got {count}")
    if classes is not None and len(classes) != size:
        raise ValueError(f"classes must be as many as outputs, {size}, got {len(classes)}")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= size:
        raise ValueError(f"held_out must have labels from 0 to {size - 1}, got {low} to {high}")
    shares = labels.bincount(minlength=size) / count
    accuracy = float((members[0].argmax(-1) == labels).double().mean())
    if accuracy >= float(shares.max()):
        return
    # Unequal shares: probabilities may be right where the most probable class is always the same.
    tempered = (members[0] / search_temperature(members[0], labels)).log_softmax(-1)
    if float(F.nll_loss(tempered, labels)) < float(torch.special.entr(shares).sum()):
        return
    _, right = _best_order(members[0], labels)
    raise ValueError(
        f"model must be right more often than the commonest class is, {float(shares.max()):.3f}, "
        f"and is in {accuracy:.3f}: the order of the classes is probably another than that of the "
        f"labels (the best has {right:.3f}), or inputs are prepared in another way than in training"
    )


def _best_order(log_probs: Tensor, labels: Tensor) -> tuple[Tensor, float]:
    """Return for each output the label that it stands for most often, and the accuracy so."""
    size = log_probs.shape[-1]
    table = (log_probs.argmax(-1) * size + labels).bincount(minlength=size**2).view(size, size)
    best = table.max(-1)
    return best.indices, float(best.values.sum()) / len(labels)


def _warnings(
    log_probs: Tensor, features: Tensor | None, labels: Tensor, fit: Tensor, choose: Tensor
) -> list[str]:
    """Return what speaks for wrong inputs or another order of classes."""
    truth, output = labels[choose], log_probs.argmax(-1)
    right = (output[choose] == truth).double()
    order, _ = _best_order(log_probs[fit], labels[fit])
    moved = (order[output[choose]] == truth).double()
    predicted = output.unique()
    if len(order[predicted].unique()) == len(predicted) and _is_better(moved, right):
        wrong = [f"{i} for {int(order[i])}" for i in predicted.tolist() if int(order[i]) != i][:5]
        return [
            f"classes are probably in another order: with outputs {', '.join(wrong)} accuracy is "
            f"{float(moved.mean()):.3f} in place of {float(right.mean()):.3f}"
        ]
    if features is None:
        return []
    # Ridge regression of the classes on the features, standardised, with a one.
    rows, x = fit[:_ROWS], features.float()
    x = (x - x[rows].mean(0)) / x[rows].std(0).clamp_min(1e-6)
    x = F.pad(x, (0, 1), value=1.0)
    target = F.one_hot(labels[rows], log_probs.shape[-1]).float()
    ridge = 0.01 * len(rows) * torch.eye(x.shape[-1])
    weights = torch.linalg.solve(x[rows].mT @ x[rows] + ridge, x[rows].mT @ target)
    probe = ((x[choose] @ weights).argmax(-1) == truth).double()
    if not _is_better(probe, right):
        return []
    return [
        "inputs are probably prepared in another way than in training: a linear head on the "
        f"model's own features is right in {float(probe.mean()):.3f}, the model in "
        f"{float(right.mean()):.3f}"
    ]


def _is_better(right: Tensor, other: Tensor) -> bool:
    """Return whether accuracy is higher by .05 and by three standard errors of paired examples."""
    gain, half = _interval(right - other)
    return gain > max(0.05, 3.0 / 1.96 * half)


def _notes(logits: list[Tensor], kinds: list[str]) -> list[str]:
    probs = [(x, kind) for x, kind in zip(logits, kinds, strict=True) if "prob" in kind]
    notes = [f"outputs are {kind}: their logarithms are taken" for _, kind in probs[:1]]
    zeros = sum(int((x == 0).sum()) for x, _ in probs)
    return [*notes, f"{zeros} probabilities of 0 count as 1e-12"] if zeros else notes


# Candidates


def _posterior(
    model: nn.Module, read: _Read, train: Any, output: Any, structure: Structure, fit: Tensor
) -> tuple[Tensor, LogitVariance]:
    """Return scaled log probabilities, and the variances at the best prior precision."""
    linear = cast("nn.Linear", model.get_submodule(cast("str", read.layer)))
    features, logits = cast("Tensor", read.features), read.logits[0]
    data, rows = (features[fit], read.labels[fit]), fit[:_ROWS]
    if train is not None:
        learned = _read([model], train, None, output)
        if learned.layer != read.layer or learned.features is None:
            raise ValueError("train must be data of which the model's last layer gives the logits")
        data = learned.features, learned.labels
    batches = zip(*(each.to(linear.weight.device).split(_BATCH) for each in data), strict=True)
    curvature = fit_curvature(linear, batches, structure)

    def loss(variance: LogitVariance) -> float:
        scaled = variance.scale(logits[rows], features[rows])
        return float(F.nll_loss(scaled.double().log_softmax(-1), read.labels[rows]))

    variances = (curvature.variance(precision).float().cpu() for precision in _PRECISIONS)
    variance = min(variances, key=loss)
    return variance.scale(logits, features).log_softmax(-1), variance


def _choose(log_probs: Mapping[str, Tensor], labels: Tensor) -> tuple[str, list[CandidateRow]]:
    """Measure candidates; return the last that is better than those before by more than chance."""
    losses = {k: F.nll_loss(v, labels, reduction="none").double() for k, v in log_probs.items()}
    chosen, rows = "as it is", list[CandidateRow]()
    for name, values in log_probs.items():
        gain, half = _interval(losses[name] - losses[chosen])
        if gain + half < 0.0:
            chosen = name
        right = (values.argmax(-1) == labels).double()
        nll, accuracy = _interval(losses[name]), _interval(right)
        difference = _interval(losses[name] - losses["as it is"])
        rows.append(CandidateRow(name, *nll, *_ece(values, right), *accuracy, *difference))
    return chosen, rows


def _interval(values: Tensor) -> tuple[float, float]:
    """Return the mean, and half of its 95 % interval."""
    return float(values.mean()), 1.96 * float(values.std()) / math.sqrt(len(values))


def _ece(log_probs: Tensor, right: Tensor) -> tuple[float, float]:
    """Return the ECE in 15 bins, and half of its interval by 200 bootstrap samples."""
    confidence = log_probs.max(-1).values.exp().double()
    index = (confidence * 15).ceil().long().clamp(1, 15) - 1
    gap, count = right - confidence, len(right)

    def error(rows: Tensor) -> Tensor:  # of each sample of rows
        bins = index[rows] + 15 * torch.arange(len(rows))[:, None]
        sums = bins.flatten().bincount(gap[rows].flatten(), 15 * len(rows))
        return sums.view(-1, 15).abs().sum(-1) / count

    generator = torch.Generator().manual_seed(0)
    draws = [error(torch.randint(count, (10, count), generator=generator)) for _ in range(20)]
    return float(error(torch.arange(count)[None])), 1.96 * float(torch.cat(draws).std())


# Decisions


def _decide(
    calibrated: Calibrated,
    log_probs: Tensor,
    labels: Tensor,
    error_rate: float | None,
    coverage: float,
    level: float,
) -> None:
    """Set the threshold of the error rate, and the least probability of prediction sets."""
    facts, probs, count = calibrated.facts, log_probs.exp().double(), len(labels)
    if error_rate is not None:
        confidence, label = probs.max(-1)
        # Each candidate could have been chosen: all of their guarantees hold together.
        union = 1.0 - (1.0 - level) / len(calibrated.rows)
        selection = select_with_error(confidence, label == labels, error_rate, level=union)
        calibrated.threshold.fill_(selection.threshold)
        facts["decision"] = {
            "error_rate": error_rate,
            "level": level,
            "threshold": f"{selection.threshold:.4f}",
            "accepted": selection.coverage,
            "error": selection.error,
        }
    # Split conformal: the true class's probability that so many of n + 1 examples reach.
    true = probs.gather(-1, labels[:, None])[:, 0].sort(descending=True).values
    rank = math.ceil((count + 1) * coverage)
    least = float(true[rank - 1]) if rank <= count else 0.0
    calibrated.least_probability.fill_(least)
    sizes = (probs >= least).sum(-1).double()
    facts["sets"] = {"coverage": coverage, "size": float(sizes.mean())}


def _detect(calibrated: Calibrated, log_probs: Tensor, unknown: Any, level: float) -> None:
    """Set the entropy above which an input is unknown, by what known inputs have."""
    inside = entropy(log_probs).double()
    batches = [unknown] if isinstance(unknown, Tensor | np.ndarray | Mapping) else unknown
    outside = torch.cat([entropy(calibrated(each)).double().cpu() for each in batches])
    rank = min(math.ceil((len(inside) + 1) * level), len(inside))
    calibrated.most_entropy.fill_(float(inside.sort().values[rank - 1]))
    flagged = float((outside > calibrated.most_entropy).double().mean())
    unlike = torch.arange(len(inside) + len(outside)) >= len(inside)
    area = float(auroc(torch.cat([inside, outside]), unlike))
    calibrated.facts["unknown"] = {"rate": 1.0 - level, "caught": flagged, "auroc": area}
