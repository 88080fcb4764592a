"""Predictions of test sets by name: samples, ensembles, and all metrics at once."""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from probseq.checks import as_floating
from probseq.metrics.classification import nll
from probseq.metrics.evaluation import evaluate, evaluate_ood
from probseq.metrics.ood import entropy_score, ood_metrics, sample_scores
from probseq.metrics.post_hoc import mean_log_probs, scale_log_probs
from probseq.metrics.regression import LaplaceMixture, is_constant, mae, rmse
from probseq.metrics.selective import select_with_error

# Sets whose inputs are shifted: of one's own making, and the published ones of CIFAR-10-C.
SHIFTED = ("shift", "cifar-c")
# Of `sample_scores`, so many, and of `feature_scores`.
SCORES = ("energy", "information", "logit-variance", "mahalanobis", "nearest")
LOGIT_SCORES = 3
_NOT_UNDER_SHIFT = ("classwise-ece", "e-aurc")


class Predictions(NamedTuple):
    """A model's predictions of a test set: all that metrics and post-hoc methods need."""

    log_probs: Float[Tensor, "n c"]  # logarithm of the mean over samples of the softmax
    # Scores of SCORES, that grow with the distance from what was learned; NaN where there are none
    scores: Float[Tensor, "n k"]
    # True classes; those of another data set for out-of-distribution inputs
    labels: Int64[Tensor, " n"]

    @property
    def probs_and_scores(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Probabilities in double precision, and the scores by name."""
        scores = zip(SCORES, self.scores.double().unbind(-1), strict=True)
        return self.log_probs.double().exp(), dict(scores)

    def scaled(self, temperature: float) -> "Predictions":
        """Return predictions at a temperature; the scores stay those of the logits as they were."""
        return self._replace(log_probs=scale_log_probs(self.log_probs, temperature))


def class_predictions(logits: Float[Tensor, "s n c"]) -> tuple[Tensor, Tensor]:
    """Return `log_probs` of Monte Carlo samples, and the scores that logits have."""
    logits = as_floating("logits", logits).float()
    by_name = sample_scores(logits)
    missing = torch.full_like(by_name["energy"], math.nan)
    scores = torch.stack([by_name.get(name, missing) for name in SCORES[:LOGIT_SCORES]], -1)
    return mean_log_probs(list(logits.log_softmax(-1))), scores


def ensemble(members: Sequence[Predictions]) -> Predictions:
    """Return the mean of the members' probabilities, and of their scores.

    The information is that between prediction and sample of any member.
    """
    mean = mean_log_probs([member.log_probs for member in members])
    scores = torch.stack([member.scores for member in members]).mean(0)
    # H(p̄) − mean_m mean_s H(p_ms), of which the inner mean is H(p̄_m) − I_m
    entropies = [entropy_score(member.probs_and_scores[0]) for member in members]
    information = [member.probs_and_scores[1]["information"].nan_to_num(0.0) for member in members]
    within = torch.stack(entropies).mean(0) - torch.stack(information).mean(0)
    column = SCORES.index("information")
    scores[:, column] = (entropy_score(mean.double().exp()) - within).to(scores)
    return Predictions(mean, scores, members[0].labels)


def evaluate_sets(sets: Mapping[str, Predictions]) -> dict[str, float | None]:
    """Compute all metrics of one model or ensemble.

    Args:
        sets: predictions by name: `test` and further labelled sets, `shift/CORRUPTION/SEVERITY`
            (or `cifar-c/...`), `ood/NAME`, `validation`, on which detectors are fitted, and
            `validation/NAME`, told from `validation` as `ood/NAME` from `test`.

    Returns:
        Values by name; None where a metric is not defined on these predictions, as the AUROC of
        failures is without failures. Of `validation` it is the nll alone. Under shift,
        `shift/severity-3/ece` is the mean over the corruptions.
    """
    values: dict[str, float | None] = {}
    means: dict[str, list[float]] = defaultdict(list)
    scored = {name: predictions.probs_and_scores for name, predictions in sets.items()}
    for name, predictions in sets.items():
        kind, *labels = name.split("/")
        if kind in ("validation", "ood"):
            continue
        for metric, value in evaluate(scored[name][0], predictions.labels).items():
            if kind not in SHIFTED:
                values[f"{name}/{metric}"] = value
            elif metric not in _NOT_UNDER_SHIFT:
                values[f"{name}/{metric}"] = value
                # Of failures of a model without any, nothing is known.
                defined = [] if value is None else [value]
                means[f"{kind}/severity-{labels[1]}/{metric}"] += defined
    values |= {name: sum(each) / len(each) if each else None for name, each in means.items()}
    held_out = sets.get("validation")
    fitted = None if held_out is None else (scored["validation"][0], held_out.labels)
    if fitted is not None:
        values["validation/nll"] = float(nll(*fitted))
    for name in scored:
        if name.startswith("ood/"):
            detection = evaluate_ood(scored["test"], scored[name], fitted)
        elif name.startswith("validation/") and len(sets[name].labels):
            # What is fitted on the validation part would be too near to it.
            detection = evaluate_ood(scored["validation"], scored[name])
        else:
            continue
        values |= {f"{name}/{metric}": value for metric, value in detection.items()}
    return values


def trusted_shares(sets: Mapping[str, Predictions], max_error: float) -> dict[str, float | None]:
    """Measure which answers can be trusted, by confidences that the other half of the test chose.

    A random half of the test set, the same for all models, chooses the confidence above which
    answers are accepted; the other half checks it, and then the two change places. `trusted` is the
    confidence above which at most `max_error` are wrong (:func:`select_with_error`, level 95%), and
    `surest` that which nine in ten have.

    Returns:
        Shares by name: `test/trusted`, of the answers that are accepted, and `test/trusted-error`,
        of the wrong among them; the same of `corrupted`, all shifted sets together; and
        `trusted-refused/NAME`, of the examples of the set `ood/NAME` that are not accepted. The
        same of `surest`.
    """
    confidence = {name: p.log_probs.double().max(-1).values for name, p in sets.items()}
    correct = {name: p.log_probs.argmax(-1) == p.labels for name, p in sets.items()}
    if (size := len(correct["test"])) < 2:
        return {}
    order = torch.randperm(size, generator=torch.Generator().manual_seed(0))
    halves = order[: size // 2], order[size // 2 :]
    # By rule and set: examples, those that are accepted, and the right ones among these.
    counts: dict[tuple[str, str], Tensor] = defaultdict(lambda: torch.zeros(3))
    for choosing, checking in (halves, halves[::-1]):
        sure, right = confidence["test"][choosing], correct["test"][choosing]
        lowest = sure.sort().values[len(sure) // 10]
        rules = {"trusted": select_with_error(sure, right, max_error).threshold}
        rules["surest"] = math.nextafter(float(lowest), -math.inf)
        for (rule, threshold), name in product(rules.items(), sets):
            rows = checking if name == "test" else slice(None)
            accepted = confidence[name][rows] > threshold
            both = (accepted & correct[name][rows]).sum()
            name = "corrupted" if name.startswith(SHIFTED) else name
            counts[rule, name] += torch.stack([torch.tensor(len(accepted)), accepted.sum(), both])
    values: dict[str, float | None] = {}
    for (rule, name), count in counts.items():
        total, accepted, right = count.tolist()
        if name in ("test", "corrupted"):
            values[f"{name}/{rule}"] = accepted / total
            values[f"{name}/{rule}-error"] = 1.0 - right / accepted if accepted else None
        elif name.startswith("ood/"):
            values[f"{rule}-refused/{name[4:]}"] = 1.0 - accepted / total
    return values


def severities_of(names: Iterable[str], kind: str) -> list[int]:
    """Return the severities that :func:`evaluate_sets` measured of a kind of shift, in order."""
    matches = (re.match(rf"{kind}/severity-(\d+)/", name) for name in names)
    return sorted({int(match[1]) for match in matches if match})


def evaluate_numbers(
    sets: Mapping[str, tuple[LaplaceMixture, Float[Tensor, " n"]]],
) -> dict[str, float | None]:
    """Compute all metrics of one model or ensemble that predicts numbers.

    Sets are distributions and true values by name: `test`, and `ood/NAME` to tell from it.

    Returns:
        Values by name; None where the predictive variance tells nothing apart, as that of a
        deterministic method does, which is the same everywhere.
    """
    test, targets = sets["test"]
    values: dict[str, float | None] = {
        "test/mae": float(mae(test.mean, targets)),
        "test/rmse": float(rmse(test.mean, targets)),
        "test/nll": -float(test.log_prob(targets).mean()),
        "test/coverage-ece": test.coverage_error(targets),
    }
    inside = test.variance
    for name in (name for name in sets if name.startswith("ood/")):
        outside = sets[name][0].variance
        flat = is_constant(torch.cat([inside, outside]))
        for metric, value in ood_metrics(inside, outside).items():
            key = f"{name}/variance/{metric.replace('_', '-')}"
            values[key] = None if flat else float(value)
    return values
