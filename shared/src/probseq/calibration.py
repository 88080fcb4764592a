"""Calibration of any trained classifier, and decisions with a guaranteed rate of errors.

Held-out data are cut in three. Candidates are fitted on the first third and measured on the second:
the first of them is chosen whose negative log likelihood is level with the lowest, so that the
model as it is may stay. The third, which neither fitted nor chose, decides: it is drawn from all
alike, as new examples are. The model is called as it is, always in evaluation mode, and nothing of
it is changed.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from probseq import batches, laplace
from probseq.calibrated import Calibrated, CandidateRow, entropy, plain_modules, predict
from probseq.checks import check_choice, check_shares, check_whole
from probseq.metrics import Selection, auroc, select_with_error
from probseq.metrics.post_hoc import is_bound, mean_log_probs, search_temperature
from probseq.precision import full_precision

_PRECISIONS = torch.logspace(-4, 4, 17).tolist()  # δ of the prior of the Laplace posterior
_ROWS = 2000  # that choose among them
_BATCH = 256
_NOTHING = Selection(math.inf, 0.0, 0.0, 0.0)  # is accepted


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
    structure: laplace.Structure | None = "kronecker",
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
        error_rate: most errors among what is accepted, with probability `level` (Geifman and
            El-Yaniv 2017).
        coverage: share of new examples whose class is in their prediction set (split conformal).
        level: probability of the error rate.
        train: training data, for the Laplace posterior's curvature, in place of the third that
            fits.
        unknown: inputs of no class, a tensor or batches without labels, to measure how many of
            them have an entropy above that of a share `level` of the held-out inputs.
        classes: what labels are called, in the order of the outputs.
        output: key, attribute or number of the logits among several outputs, or a function.
        structure: of the Laplace posterior's curvature; ``None`` leaves it out.
        seed: of the thirds; the first two have the same shares of classes.

    Example:
        >>> logits = 4 * torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
        >>> labels = (logits / 4).softmax(-1).multinomial(1)[:, 0]
        >>> calibrated = calibrate(logits, labels)
        >>> calibrated.chosen
        'temperature'
    """
    rate = level if error_rate is None else error_rate
    check_shares(coverage=coverage, level=level, error_rate=rate)
    check_whole(seed=seed)
    if structure is not None:
        check_choice("structure", structure, laplace.Structure)
    models, classes = _models(model, classes)
    if models:
        read = _read(models, held_out, "held_out", classes, output)
    else:
        outputs = model if isinstance(model, list | tuple) else [model]
        labels = batches.read_labels(held_out, "held_out", classes)
        read = _Read([_stored(x) for x in outputs], labels)
    labels, kinds = read.labels, [batches.output_kind(logits) for logits in read.logits]
    members = [batches.to_log_probs(x, kind) for x, kind in zip(read.logits, kinds, strict=True)]
    _check_classes(members, labels, classes)
    fit, choose, decide = split_in_three(labels, seed)
    learning = torch.cat([fit, choose])
    _check_worth(members[0][learning], labels[learning])
    notes = _warnings(members[0], read.features, labels, fit, choose) + _notes(read.logits, kinds)
    if absent := members[0].shape[-1] - len(labels.unique()):
        notes.append(f"{absent} classes have no held-out example: nothing is measured of them")

    untempered = dict[str, tuple[Tensor, laplace.LogitVariance | None]]()
    untempered["as it is"] = members[0], None
    if len(members) > 1:
        untempered["ensemble"] = mean_log_probs(members), None
    elif structure is not None and read.layer is not None and kinds == [batches.LOGITS]:
        learned = None if train is None else _read(models, train, "train", classes, output)
        untempered["Laplace"] = _posterior(models[0], read, learned, structure, fit)
    elif train is not None:
        raise ValueError("train must come with a model of torch whose logits a linear layer gives")
    elif structure is not None and any(isinstance(each, nn.Module) for each in models):
        notes.append("no Laplace posterior: the outputs are not those of a plain linear layer")
    candidates = dict[str, _Candidate]()
    for name, (log_probs, variance) in untempered.items():
        temperature = search_temperature(log_probs[fit], labels[fit])
        tempered = "temperature" if name == "as it is" else f"{name}, temperature"
        candidates[name] = _Candidate(log_probs, 1.0, variance)
        candidates[tempered] = _Candidate(log_probs, temperature, variance)

    chosen, rows = _choose({k: each.at(choose) for k, each in candidates.items()}, labels[choose])
    candidate = candidates[chosen]
    if is_bound(candidate.temperature):
        notes.append(f"the temperature {candidate.temperature:g} is the last that is tried")
    served = models if "ensemble" in chosen else models[:1]
    calibrated = Calibrated(served, output)
    calibrated.facts = {
        "chosen": chosen,
        "temperature": candidate.temperature,
        "rows": [list(row) for row in rows],
        "notes": notes,
        "kinds": kinds[: max(len(served), 1)],
        "layer": read.layer,
        "bias": candidate.variance is not None and candidate.variance.bias,
        "classes": members[0].shape[-1],
        "names": None if classes is None else [str(each) for each in classes],
        "examples": [len(fit), len(choose), len(decide)],
        "model": bool(models),
    }
    calibrated.temperature.fill_(candidate.temperature)
    if candidate.variance is not None and read.layer is not None:
        calibrated.set_variance(read.layer, candidate.variance)
    log_probs = candidate.at(decide)
    if unknown is not None:
        _detect(calibrated, entropy(candidate.at(choose)), entropy(log_probs), unknown, level)
    _decide(calibrated, log_probs, labels[decide], error_rate, coverage, level)
    return calibrated


def split_in_three(labels: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows of three thirds, drawn by a seed, the first two with the same classes."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    decide, others = order[: len(order) // 3], order[len(order) // 3 :]
    rank = labels[others].argsort(stable=True).argsort()  # by class, in a random order within
    return others[rank % 2 == 0], others[rank % 2 == 1], decide


# Outputs of models on held-out data


class _Candidate(NamedTuple):
    log_probs: Tensor  # of all rows, without the temperature
    temperature: float
    variance: laplace.LogitVariance | None

    def at(self, rows: Tensor) -> Tensor:
        """Return log probabilities of rows."""
        return (self.log_probs[rows] / self.temperature).log_softmax(-1)


class _Read(NamedTuple):
    logits: list[Tensor]  # of each model
    labels: Tensor
    layer: str | None = None  # linear, whose outputs are the only model's logits
    features: Tensor | None = None  # that go into it


def _models(model: Any, classes: Sequence[Any] | None) -> tuple[list[Any], Sequence[Any] | None]:
    """Return models, as modules or functions, none for outputs; and the names of classes."""
    models = list(model) if isinstance(model, list | tuple | nn.ModuleList) else [model]
    if not models:
        raise ValueError("model must be one model or several, got none")
    if all(hasattr(each, "__array__") for each in models):
        return [], classes
    if classes is None:
        classes = getattr(models[0], "classes_", None)
        names = getattr(getattr(models[0], "config", None), "id2label", None) or {}
        if not all(str(name).startswith("LABEL_") for name in names.values()):
            classes = [names[index] for index in sorted(names)]
    models = [getattr(each, "predict_proba", each) for each in models]
    if wrong := [type(each).__name__ for each in models if not callable(each)]:
        what = "of torch, a function, an estimator with predict_proba, or logits"
        raise ValueError(f"model must be {what}, got {wrong[0]}")
    return models, None if classes is None else list(classes)


def _stored(outputs: Any) -> Tensor:
    if not isinstance(outputs, Tensor):
        outputs = torch.as_tensor(np.array(outputs, order="C"))
    return _rows(outputs.detach().cpu(), None)


def _read(
    models: list[Any], data: Any, name: str, classes: Sequence[Any] | None, output: Any
) -> _Read:
    """Call models on batches; where the last layer is linear, note what goes into it."""
    first = models[0] if isinstance(models[0], nn.Module) else None
    layers = {} if first is None or len(models) > 1 else laplace.linear_layers(plain_modules(first))
    logits: list[list[Tensor]] = [[] for _ in models]
    labels, features = list[Tensor](), list[Tensor]()
    for inputs, numbers in batches.read_batches(data, first, name=name, classes=classes):
        whole = [(inputs, len(numbers))]
        for piece, rows in whole if first is None else _pieces(inputs, len(numbers)):
            with laplace.watch_layers(layers) as calls:
                outputs = [predict(each, piece, output) for each in models]
            for each, values in zip(logits, outputs, strict=True):
                each.append(_rows(values.detach(), rows).cpu())
            last = laplace.last_call(calls, outputs[0], layers)
            layers = {} if last is None else {last.name: layers[last.name]}
            features += [] if last is None else [last.features.detach().cpu()]
        labels.append(numbers)
    if not labels:
        raise ValueError(f"{name} must hold data, got none: a generator gives its batches once")
    joined = [torch.cat(each) for each in logits]
    layer = next(iter(layers), None)
    return _Read(joined, torch.cat(labels), layer, torch.cat(features) if layers else None)


def _pieces(inputs: Any, rows: int) -> Iterator[tuple[Any, int]]:
    """Cut a large batch of tensors with a row an example into pieces."""
    flat, spec = tree_flatten(inputs)
    tensors = all(isinstance(each, Tensor) and each.shape[:1] == (rows,) for each in flat)
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
    return full_precision(outputs)


# What speaks against the data


def _check_classes(members: list[Tensor], labels: Tensor, classes: Sequence[Any] | None) -> None:
    """Refuse labels of other rows or classes, and predictions that are worth nothing."""
    count, size = members[0].shape
    if len(shapes := {tuple(each.shape) for each in members}) > 1:
        raise ValueError(f"models must have outputs of the same shape, got {sorted(shapes)}")
    if len(labels) != count:
        raise ValueError(f"held_out must have a label a row, got {len(labels)} for {count} rows")
    if count < 10:
        raise ValueError(f"held_out must have 10 examples at least, got {count}")
    if classes is not None and len({*classes}) != len(classes):
        raise ValueError(f"classes must have different names, got {list(classes)[:20]}")
    if classes is not None and len(classes) != size:
        raise ValueError(f"classes must be as many as outputs, {size}, got {len(classes)}")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= size:
        raise ValueError(f"held_out must have labels from 0 to {size - 1}, got {low} to {high}")
    impossible = members[0].gather(1, labels[:, None])[:, 0] == torch.finfo(members[0].dtype).min
    if bool(impossible.any()):
        raise ValueError(
            "model must give the classes of all examples a chance, and has a logit of -inf in "
            f"{int(impossible.sum())} rows, first in {int(impossible.nonzero()[0])}"
        )
    if bool((members[0] == members[0][0]).all()):
        raise ValueError("model must tell examples apart, and gives all of them the same outputs")


def _check_worth(log_probs: Tensor, labels: Tensor) -> None:
    """Refuse predictions that are worth nothing; the third that decides is not looked at."""
    count, size = log_probs.shape
    counts = labels.bincount(minlength=size)
    right, most = int((log_probs.argmax(-1) == labels).sum()), int(counts.max())
    if right >= most:
        return
    # Unequal shares: probabilities may be right where the most probable class is always the same.
    tempered = (log_probs / search_temperature(log_probs, labels)).log_softmax(-1)
    if float(F.nll_loss(tempered, labels)) < float(torch.special.entr(counts / count).sum()):
        return
    order, best = _best_order(log_probs, labels)
    other = len({*order.values()}) == len(order) and best * count > most
    hint = f"the order of the classes is probably another (right in {best:.3f}), or " * other
    raise ValueError(
        f"model must be right more often than the commonest class is, {most / count:.3f}, and is "
        f"in {right / count:.3f}: {hint}inputs are prepared in another way than in training"
    )


def _best_order(log_probs: Tensor, labels: Tensor) -> tuple[dict[int, int], float]:
    """Return for each output the label that it stands for most often, and the accuracy so."""
    pairs = Counter(zip(log_probs.argmax(-1).tolist(), labels.tolist(), strict=True))
    order, right = dict[int, int](), 0
    for (output, label), count in pairs.most_common():
        right += count * (output not in order)
        order.setdefault(output, label)
    return order, right / len(labels)


def _warnings(
    log_probs: Tensor, features: Tensor | None, labels: Tensor, fit: Tensor, choose: Tensor
) -> list[str]:
    """Return what speaks for wrong inputs or another order of classes."""
    truth, outputs = labels[choose], log_probs[choose].argmax(-1)
    right = (outputs == truth).double()
    order, _ = _best_order(log_probs[fit], labels[fit])
    moved = (torch.tensor([order.get(each, -1) for each in outputs.tolist()]) == truth).double()
    if len({*order.values()}) == len(order) and _is_better(moved, right):
        wrong = [f"{i} for {order[i]}" for i in sorted(order) if order[i] != i][:5]
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
    """Return how outputs are read, where they could be read otherwise."""
    notes = [f"outputs are {kind}: their logarithms are taken" for kind in kinds if "prob" in kind]
    notes += [f"outputs are {kind}" for kind in kinds if kind == batches.LOGIT]
    probs = [x for x, kind in zip(logits, kinds, strict=True) if "prob" in kind]
    if zeros := sum(int((x == 0).sum()) for x in probs):
        notes.append(f"{zeros} probabilities of 0 count as 1e-12")
    if dist.is_available() and dist.is_initialized() and (size := dist.get_world_size()) > 1:
        notes.append(f"each of {size} processes is calibrated on its own data: give all the same")
    if kinds == [batches.LOGITS] and bool(((logits[0] >= 0.0) & (logits[0] <= 1.0)).all()):
        notes.append("outputs from 0 to 1 are read as logits: rows do not sum to 1")
    return list(dict.fromkeys(notes))


# Candidates


def _posterior(
    model: nn.Module, read: _Read, learned: _Read | None, structure: laplace.Structure, fit: Tensor
) -> tuple[Tensor, laplace.LogitVariance]:
    """Return scaled log probabilities, and the variances at the best prior precision."""
    assert read.layer is not None
    assert read.features is not None
    linear = laplace.linear_layers(plain_modules(model))[read.layer]
    features, logits = read.features, read.logits[0]
    data, rows = (features[fit], read.labels[fit]), fit[:_ROWS]
    if learned is not None:
        if learned.layer != read.layer or learned.features is None:
            raise ValueError("train must be data of which the model's last layer gives the logits")
        data = learned.features, learned.labels
    pieces = zip(*(each.to(linear.weight.device).split(_BATCH) for each in data), strict=True)
    curvature = laplace.fit_curvature(linear, pieces, structure)

    def loss(variance: laplace.LogitVariance) -> float:
        scaled = variance.scale(logits[rows], features[rows])
        return float(F.nll_loss(scaled.double().log_softmax(-1), read.labels[rows]))

    variances = (curvature.variance(precision).float().cpu() for precision in _PRECISIONS)
    variance = min(variances, key=loss)
    return variance.scale(logits, features).log_softmax(-1), variance


def _choose(log_probs: Mapping[str, Tensor], labels: Tensor) -> tuple[str, list[CandidateRow]]:
    """Measure candidates; return the first whose loss is the lowest, or higher by chance alone."""
    losses = {k: F.nll_loss(v, labels, reduction="none").double() for k, v in log_probs.items()}
    best = min(losses.values(), key=lambda loss: float(loss.mean()))
    level = (k for k, loss in losses.items() if torch.sub(*_interval(loss - best)) <= 0.0)
    rows = list[CandidateRow]()
    for name, values in log_probs.items():
        right = (values.argmax(-1) == labels).double()
        nll, accuracy = _interval(losses[name]), _interval(right)
        difference = _interval(losses[name] - losses["as it is"])
        rows.append(CandidateRow(name, *nll, *_ece(values, right), *accuracy, *difference))
    return next(level), rows


def _interval(values: Tensor) -> tuple[float, float]:
    """Return the mean, and half of its 95 % interval."""
    return float(values.mean()), 1.96 * float(values.std()) / math.sqrt(len(values))


def _ece(log_probs: Tensor, right: Tensor) -> tuple[float, float]:
    """Return the ECE in 15 bins, and half of its interval."""
    confidence = log_probs.max(-1).values.exp().double()
    index = (confidence * 15).ceil().long().clamp(1, 15) - 1
    gap = right - confidence
    # Σ_b |Σ_{i in b} gap_i| / n, a mean of gaps with the sign of the sum of their bin.
    sign = index.bincount(gap, 15).sign()
    return _interval(sign[index] * gap)


# Decisions


def _detect(
    calibrated: Calibrated, chosen_by: Tensor, inside: Tensor, unknown: Any, level: float
) -> None:
    """Set the entropy above which an input is unknown, and measure it on other inputs."""
    rank = min(math.ceil((len(chosen_by) + 1) * level), len(chosen_by))
    calibrated.most_entropy.fill_(float(chosen_by.sort().values[rank - 1]))
    inputs = batches.split_inputs(unknown, "unknown")
    outside = [entropy(calibrated(each)).cpu() for each in inputs]
    if not sum(map(len, outside)):
        raise ValueError("unknown must hold data, got none: a generator gives its batches once")
    scores = torch.cat([inside, *outside]).double()
    unlike = torch.arange(len(scores)) >= len(inside)
    flagged = ~(scores <= calibrated.most_entropy)
    calibrated.facts["unknown"] = {
        "rate": float(flagged[~unlike].double().mean()),
        "caught": float(flagged[unlike].double().mean()),
        "auroc": float(auroc(scores, unlike)),
    }


def _decide(
    calibrated: Calibrated,
    log_probs: Tensor,
    labels: Tensor,
    error_rate: float | None,
    coverage: float,
    level: float,
) -> None:
    """Set the threshold of the error rate, and the least probability of prediction sets."""
    facts, probs, count = calibrated.facts, log_probs.exp(), len(labels)
    if error_rate is not None:
        confidence, label = probs.max(-1)
        # What is unknown is not accepted, and does not count.
        usual, selection = entropy(log_probs) <= calibrated.most_entropy, _NOTHING
        if bool(usual.any()):
            right = (label == labels)[usual]
            selection = select_with_error(confidence[usual], right, error_rate, level=level)
        calibrated.threshold.fill_(selection.threshold)
        facts["decision"] = {
            "error_rate": error_rate,
            "level": level,
            "threshold": f"{selection.threshold:.6g}",
            "accepted": selection.coverage * float(usual.double().mean()),
            "error": selection.error,
        }
    # Split conformal: the true class's probability that so many of n + 1 examples reach.
    true = probs.gather(-1, labels[:, None])[:, 0].sort(descending=True).values
    rank = math.ceil((count + 1) * coverage)
    least = float(true[rank - 1]) if rank <= count else 0.0
    calibrated.least_probability.fill_(least)
    size = float((probs >= least).sum(-1).double().mean())
    # So many that the rank is that of an example.
    enough = math.ceil(round(coverage / (1.0 - coverage), 9))
    facts["sets"] = {"coverage": coverage, "size": size, "least": enough}
