"""Mean and standard error over seeds, which differences they support, and ranks.

Importing this module loads neither torch nor scipy.

Example:
    >>> from probseq.summary import best_names, summarise
    >>> nll = {"a": summarise([0.10, 0.11, 0.12]), "b": summarise([0.50, 0.51, 0.52])}
    >>> f"{nll['a'].mean:.2f} ± {nll['a'].standard_error:.3f}"
    '0.11 ± 0.006'
    >>> best_names(nll, "lower")
    frozenset({'a'})
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Literal

__all__ = [
    "LABELS",
    "Direction",
    "Gain",
    "Order",
    "Spread",
    "Summary",
    "average_ranks",
    "best_names",
    "differ",
    "direction_of",
    "interval_factor",
    "judge",
    "mean_of",
    "order_of",
    "summarise",
]

# The good end of a metric.
Direction = Literal["higher", "lower"]
# How one mean stands to another.
Order = Literal["better", "worse", "equal", "undecided"]

# What seeds say of a claimed gain.
Verdict = Literal["holds", "does not hold", "not resolved"]

# What metrics are called in tables, and their good ends (None for one in the middle), by the names
# that `evaluate` of `probseq.metrics` and the reports of runs give them.
LABELS: dict[str, tuple[str, Direction | None]] = {
    "accuracy": ("accuracy", "higher"),
    "mcc": ("MCC", "higher"),
    "nll": ("NLL", "lower"),
    "ece": ("ECE", "lower"),
    "classwise-ece": ("ECE, classwise", "lower"),
    "mce": ("MCE", "lower"),
    "brier": ("Brier", "lower"),
    "aurc": ("AURC", "lower"),
    "e-aurc": ("E-AURC", "lower"),
    "failure-auroc": ("failure AUROC", "higher"),
    "failure-fpr95": ("failure FPR95", "lower"),
    "mae": ("MAE", "lower"),
    "rmse": ("RMSE", "lower"),
    "coverage-ece": ("coverage error", "lower"),
    "coverage": ("coverage of 95 %", None),
    "auroc": ("AUROC", "higher"),
    "aupr-out": ("AUPR-out", "higher"),
    "aupr-in": ("AUPR-in", "higher"),
    "fpr95": ("FPR95", "lower"),
    "fid": ("FID", "lower"),
    "is": ("IS", "higher"),
    "nlpd": ("NLPD", "lower"),
    "crps": ("CRPS", "lower"),
    "psnr": ("PSNR (dB)", "higher"),
}

# A mean, its standard error, and the number of values behind it.
Spread = tuple[float, float | None, int]

# Level of the two-sided test.
_LEVEL = 0.05
# Seeds beyond which nobody would go.
_MOST_SEEDS = 1000


def direction_of(metric: str) -> Direction | None:
    """Return the good end of a metric; None for one that has none."""
    label = LABELS.get(metric.rpartition("/")[2])
    return None if label is None else label[1]


@dataclass(frozen=True)
class Summary:
    """A metric over the seeds."""

    values: tuple[float | None, ...]  # one for each seed; None where the metric was not defined
    mean: float | None  # their mean; None unless all are defined
    standard_error: float | None  # sample standard deviation divided by √n

    @property
    def interval(self) -> float | None:
        """Half the width of the mean's 95% interval (Student's t); None without an error."""
        if self.standard_error is None:
            return None
        return interval_factor(len(self.values)) * self.standard_error

    @property
    def spread(self) -> Spread:
        """Mean, standard error and number of values, for a mean that is defined."""
        return self.mean or 0.0, self.standard_error, len(self.values)


def summarise(values: Sequence[float | None]) -> Summary:
    """Return mean and standard error of a metric's values over the seeds."""
    defined = [value for value in values if value is not None]
    if not defined or len(defined) < len(values):
        return Summary(tuple(values), None, None)
    error = stdev(defined) / math.sqrt(len(defined)) if len(defined) > 1 else None
    return Summary(tuple(values), fmean(defined), error)


def interval_factor(count: int) -> float:
    """Return half the width of a mean's 95% interval (Student's t) in its standard errors."""
    return float(_stats().t.ppf(0.975, count - 1))


def best_names(summaries: Mapping[str, Summary], direction: Direction) -> frozenset[str]:
    """Return the names of the best methods, as far as the seeds can tell.

    The method with the best mean is joined by those next to it, in the order of their means, until
    Welch's t-test at the 5% level tells one from it. If that is every one, nothing is claimed and
    the answer is empty. Methods without a standard error (a single seed, an ensemble) take no part.
    """
    spreads = {n: s.spread for n, s in summaries.items() if s.standard_error is not None}
    sign = 1.0 if direction == "higher" else -1.0
    ranked = sorted(spreads, key=lambda name: sign * spreads[name][0], reverse=True)
    for position, name in enumerate(ranked):
        # A worse method is not marked beside a better one only because its seeds scatter more.
        if differ(spreads[ranked[0]], spreads[name]):
            return frozenset(ranked[:position])
    return frozenset()


def order_of(first: Summary, second: Summary, direction: Direction) -> Order:
    """Return how the first mean stands to the second by Welch's t-test at the 5% level."""
    if first.standard_error is None or second.standard_error is None:
        return "undecided"
    best = best_names({"first": first, "second": second}, direction)
    if not best:
        return "equal"
    return "better" if "first" in best else "worse"


def mean_of(summaries: Iterable[Summary]) -> Summary:
    """Return the summary of the mean of several metrics, taken for each seed first."""
    seeds = zip(*(summary.values for summary in summaries), strict=True)
    return summarise([summarise(values).mean for values in seeds])


def average_ranks(tasks: Iterable[Mapping[str, float]], direction: Direction) -> dict[str, float]:
    """Rank the methods of each task, 1 being the best, and average over the tasks.

    Equal values share the mean of their places. A method's mean is over the tasks that have it, and
    it is ranked among the methods of each: a task with fewer methods has fewer ranks to give. Tasks
    with a single method are left out.

    Args:
        tasks: values by method, for each task.
        direction: which end is good.

    Returns:
        Mean rank by method, in order of appearance.
    """
    sign = -1.0 if direction == "higher" else 1.0
    ranks: dict[str, list[float]] = {}
    for values in tasks:
        if len(values) < 2:
            continue
        places = _stats().rankdata([sign * value for value in values.values()])
        for method, place in zip(values, places, strict=True):
            ranks.setdefault(method, []).append(float(place))
    return {method: sum(places) / len(places) for method, places in ranks.items()}


def differ(first: Spread, second: Spread) -> bool:
    """Return whether two means differ, tested two-sided at the 5% level.

    Welch's t-test where both have an error. Where one has none, as a single run or an ensemble, it
    is taken for one more draw with the scatter of the other, for which t = (x − m) / (s √(1 + 1/n))
    has n − 1 degrees of freedom. Without any error the answer is no.

    Args:
        first: mean, standard error (None without one), and number of values behind it.
        second: the other.
    """
    distance = abs(first[0] - second[0])
    known = [
        (error, count) for _, error, count in (first, second) if error is not None and count > 1
    ]
    if not known:
        return False
    if len(known) == 1:
        ((error, count),) = known
        # s √(1 + 1/n) with s = error √n.
        scale, freedom = error * math.sqrt(count + 1), count - 1.0
    else:
        total = sum(error**2 for error, _ in known)
        # Welch–Satterthwaite.
        weights = sum(error**4 / (count - 1) for error, count in known)
        scale, freedom = math.sqrt(total), total**2 / weights if weights else math.inf
    if scale == 0.0:
        return distance > 0.0
    return 2.0 * float(_stats().t.sf(distance / scale, freedom)) < _LEVEL


@dataclass(frozen=True)
class Gain:
    """The verdict of paired differences on a claimed gain."""

    summary: Summary  # of the differences, positive where the claim is right
    verdict: Verdict
    seeds: int | None  # for "not resolved", how many would resolve it; None for too many


def judge(differences: Sequence[float], effect: float) -> Gain:
    """Judge a claimed gain by its differences, one for each seed.

    With the 95% interval (Student's t) of the mean difference, the claim

    - holds if the mean is at least `effect` and the interval is above 0, or above `effect` where
      that is negative: a claim that nothing is lost beyond that;
    - does not hold if the whole interval is below `effect`;
    - else is not resolved, as it always is by a single seed. More seeds of the same mean and
      scatter would resolve it, as many as `seeds` says.

    Args:
        differences: gains of what is claimed to be better, one for each seed.
        effect: smallest gain worth having; a negative one is the largest loss that is allowed.
    """
    summary = summarise(differences)
    if summary.mean is None or summary.interval is None or summary.standard_error is None:
        return Gain(summary, "not resolved", None)
    count, scatter = len(differences), summary.standard_error * math.sqrt(len(differences))
    # The interval decides once it is shorter than the distance to what it must not reach.
    reached = summary.mean >= effect
    distance = summary.mean - min(effect, 0.0) if reached else effect - summary.mean
    if summary.interval < distance:
        return Gain(summary, "holds" if reached else "does not hold", None)
    for seeds in range(count + 1, _MOST_SEEDS + 1):
        if interval_factor(seeds) * scatter / math.sqrt(seeds) < distance:
            return Gain(summary, "not resolved", seeds)
    return Gain(summary, "not resolved", None)


def _stats() -> Any:
    from scipy import stats

    return stats
