"""Mean and standard error over seeds, and which differences they support.

One test of means: the 95% interval (Student's t) of the differences paired by seed. Importing this
module loads neither torch nor scipy.

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
from typing import Literal

# The good end of a metric.
Direction = Literal["higher", "lower"]
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
    "trusted": ("trusted", "higher"),
    "trusted-error": ("wrong of these", "lower"),
    "surest-error": ("wrong of nine in ten", "lower"),
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
    def resolved(self) -> bool:
        """True if the mean's interval leaves out 0; False without an interval."""
        return self.interval is not None and abs(self.mean or 0.0) > self.interval


def summarise(values: Sequence[float | None]) -> Summary:
    """Return mean and standard error of a metric's values over the seeds."""
    defined = [value for value in values if value is not None]
    if not defined or len(defined) < len(values):
        return Summary(tuple(values), None, None)
    error = stdev(defined) / math.sqrt(len(defined)) if len(defined) > 1 else None
    return Summary(tuple(values), fmean(defined), error)


def interval_factor(count: int) -> float:
    """Return half the width of a mean's 95% interval (Student's t) in its standard errors."""
    from scipy.special import stdtrit

    return float(stdtrit(count - 1, 0.975))


def difference(first: Summary, second: Summary) -> Summary:
    """Return the summary of first minus second by seed.

    It has no values where their seeds differ in number, as of an ensemble and its members.
    """
    if len(first.values) != len(second.values):
        return summarise(())
    pairs = zip(first.values, second.values, strict=True)
    return summarise([None if a is None or b is None else a - b for a, b in pairs])


def best_names(summaries: Mapping[str, Summary], direction: Direction) -> frozenset[str]:
    """Return the names of the best methods, as far as the seeds can tell.

    The method with the best mean is joined by those next to it, in the order of their means, until
    the interval of one's differences from it leaves out 0. If that is every one, nothing is claimed
    and the answer is empty. Methods without a standard error, or with another number of seeds than
    the best, take no part.
    """
    sign = 1.0 if direction == "higher" else -1.0
    measured = {n: s for n, s in summaries.items() if s.standard_error is not None}
    ranked = sorted(measured, key=lambda n: sign * (measured[n].mean or 0.0), reverse=True)
    ranked = [n for n in ranked if len(measured[n].values) == len(measured[ranked[0]].values)]
    for position, name in enumerate(ranked):
        # A worse method is not marked beside a better one only because its seeds scatter more.
        if difference(measured[ranked[0]], measured[name]).resolved:
            return frozenset(ranked[:position])
    return frozenset()


def mean_of(summaries: Iterable[Summary]) -> Summary:
    """Return the summary of the mean of several metrics, taken for each seed first."""
    seeds = zip(*(summary.values for summary in summaries), strict=True)
    return summarise([summarise(values).mean for values in seeds])


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

    ``effect`` is the smallest gain worth having; a negative one is the largest loss that is
    allowed.
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
