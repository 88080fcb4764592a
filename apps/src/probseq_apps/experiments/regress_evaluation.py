"""Metrics of predicted numbers, as flat names: `test/mae`, `ood/swapped-edges/variance/auroc`.

A prediction is given by its members: one for a single model, several for an ensemble, whose
predictive distribution is the mixture of theirs.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from probseq import metrics
from probseq_apps.experiments.methods import Method
from probseq_apps.experiments.regress_prediction import NumberPredictions
from probseq_apps.report.regress import Predicted, is_constant

Members = Sequence[NumberPredictions]

# Probabilities of the central intervals of thesis Eq. 4.20: 0.05, 0.15, ..., 0.95.
LEVELS = tuple((2 * k + 1) / 20 for k in range(10))


def make_entries(
    method: Method, runs: Sequence[Mapping[str, NumberPredictions]]
) -> list[dict[str, Members]]:
    """Predictions of a row of the report, by set: an entry for each seed, or one for an ensemble.

    Args:
        method: says whether the seeds are members of an ensemble.
        runs: predictions of each seed's run.
    """
    if method.ensemble:
        return [{name: [run[name] for run in runs] for name in runs[0]}]
    return [{name: [found] for name, found in run.items()} for run in runs]


def predictive_mean(members: Members) -> Float[Tensor, " n"]:
    """Mean over members and samples."""
    return torch.stack([member.samples.mean(0) for member in members]).mean(0)


def predictive_variance(members: Members) -> Float[Tensor, " n"]:
    """Variance of the mixture: the mean of the variances plus the variance of the means.

    A member's own is var_s f + 2 b².
    """
    means = torch.stack([member.samples.mean(0) for member in members])
    within = [
        metrics.laplace_predictive_variance(member.samples, member.scale) for member in members
    ]
    return torch.stack(within).mean(0) + means.var(0, correction=0)


def function_variance(members: Members) -> Float[Tensor, " n"]:
    """Predictive variance without the noise 2 b², which is the same for all inputs.

    It ranks them as the predictive variance does, and is comparable between seeds.
    """
    noise = torch.stack([2.0 * member.scale.square() for member in members]).mean()
    return (predictive_variance(members) - noise).clamp(min=0.0)


def log_density(members: Members) -> Float[Tensor, " n"]:
    """Log density of the true values under the mixture over members and samples."""
    each = [
        metrics.laplace_log_prob(member.samples, member.targets, member.scale) for member in members
    ]
    return torch.logsumexp(torch.stack(each), 0) - math.log(len(members))


def predicted(members: Members) -> Predicted:
    """Return what plots show of the predictions of one set."""
    levels = (0.0, *LEVELS, 1.0)
    return Predicted(
        members[0].targets,
        predictive_mean(members),
        predictive_variance(members),
        function_variance(members),
        dict(zip(levels, interval_coverage(members, levels), strict=True)),
    )


def evaluate_numbers(sets: Mapping[str, Members]) -> dict[str, float | None]:
    """Compute all metrics of one model or ensemble.

    Args:
        sets: predictions by name: `test`, and `ood/NAME` to tell from it.

    Returns:
        Values by name; None where a metric is not defined: the predictive variance of a
        deterministic method is the same everywhere and tells nothing apart.
    """
    test = sets["test"]
    mean, targets = predictive_mean(test), test[0].targets
    values: dict[str, float | None] = {
        "test/mae": float(metrics.mae(mean, targets)),
        "test/rmse": float(metrics.rmse(mean, targets)),
        "test/nll": -float(log_density(test).mean()),
        "test/coverage-ece": coverage_error(test),
    }
    inside = predictive_variance(test)
    for name, outside in sets.items():
        if name.startswith("ood/"):
            scores = predictive_variance(outside)
            found = metrics.ood_metrics(inside, scores)
            flat = is_constant(torch.cat([inside, scores]))
            for metric, value in found.items():
                key = f"{name}/variance/{metric.replace('_', '-')}"
                values[key] = None if flat else float(value)
    return values


def interval_coverage(members: Members, levels: Sequence[float]) -> list[float]:
    """Share of the true values inside the central intervals of given probabilities.

    The mixture's distribution function F is known, so no quantile is estimated: y lies between the
    quantiles (1 - c)/2 and (1 + c)/2 where 2 |F(y) - 1/2| ≤ c.

    Args:
        members: predictions of one set.
        levels: probabilities c of the intervals.
    """
    central = 2.0 * (_distribution_at_targets(members) - 0.5).abs()
    return [float((central <= level).double().mean()) for level in levels]


def coverage_error(members: Members) -> float:
    """Mean distance of coverage and probability of central intervals (thesis Eq. 4.20)."""
    found = interval_coverage(members, LEVELS)
    return sum(abs(c - level) for c, level in zip(found, LEVELS, strict=True)) / len(LEVELS)


def _distribution_at_targets(members: Members) -> Float[Tensor, " n"]:
    each: list[Tensor] = []
    for member in members:
        z = (member.targets - member.samples) / member.scale
        tail = 0.5 * torch.exp(-z.abs())
        each.append(torch.where(z < 0.0, tail, 1.0 - tail).mean(0))
    return torch.stack(each).mean(0)
