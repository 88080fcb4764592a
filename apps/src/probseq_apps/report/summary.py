"""Mean and standard error over seeds, which differences they support, and ranks."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

import numpy as np
from scipy import stats

# The good end of a metric.
Direction = Literal["higher", "lower"]
# How one mean stands to another.
Order = Literal["better", "worse", "equal", "undecided"]

# Level of the two-sided test that stands behind a mark.
LEVEL = 0.05


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
        return float(stats.t.ppf(0.975, len(self.values) - 1)) * self.standard_error


def summarise(values: Sequence[float | None]) -> Summary:
    """Mean and standard error of a metric's values over the seeds."""
    defined = [value for value in values if value is not None]
    if not defined or len(defined) < len(values):
        return Summary(tuple(values), None, None)
    error = stdev(defined) / math.sqrt(len(defined)) if len(defined) > 1 else None
    return Summary(tuple(values), fmean(defined), error)


def best_names(summaries: Mapping[str, Summary], direction: Direction) -> frozenset[str]:
    """Names of the best methods, as far as the seeds can tell.

    The method with the best mean is joined by those next to it, in the order of their means, until
    Welch's t-test at the 5% level tells one from it. If that is every one, nothing is claimed and
    the answer is empty. Methods without a standard error (a single seed, an ensemble) take no part.
    """
    taking_part = {
        name: summary
        for name, summary in summaries.items()
        if summary.mean is not None and summary.standard_error is not None
    }
    if len(taking_part) < 2:
        return frozenset()
    sign = 1.0 if direction == "higher" else -1.0
    ranked = sorted(
        taking_part, key=lambda name: sign * (taking_part[name].mean or 0.0), reverse=True
    )
    for position, name in enumerate(ranked):
        # A worse method is not marked beside a better one only because its seeds scatter more.
        if position and _differ(taking_part[ranked[0]], taking_part[name]):
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
        places = stats.rankdata(sign * np.array(list(values.values())))
        for method, place in zip(values, places, strict=True):
            ranks.setdefault(method, []).append(float(place))
    return {method: sum(found) / len(found) for method, found in ranks.items()}


def _differ(first: Summary, second: Summary) -> bool:
    """Welch's t-test: two-sided, unequal variances."""
    errors = [(s.standard_error or 0.0) ** 2 for s in (first, second)]
    difference = abs((first.mean or 0.0) - (second.mean or 0.0))
    if sum(errors) == 0.0:
        return difference > 0.0
    counts = [len(s.values) for s in (first, second)]
    # Welch–Satterthwaite.
    freedom = sum(errors) ** 2 / sum(
        error**2 / (count - 1) for error, count in zip(errors, counts, strict=True)
    )
    return 2.0 * float(stats.t.sf(difference / math.sqrt(sum(errors)), freedom)) < LEVEL
