"""Mean and standard error over seeds, and which differences they support."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy import stats

from probseq_apps.report.labels import Direction

# Level of the two-sided test that stands behind a mark.
LEVEL = 0.05


@dataclass(frozen=True)
class Summary:
    """A metric over the seeds.

    Attributes:
        values: one for each seed; None where the metric was not defined.
        mean: their mean; None unless all are defined.
        standard_error: sample standard deviation divided by √n; None for fewer than two values.
    """

    values: tuple[float | None, ...]
    mean: float | None
    standard_error: float | None


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

    Args:
        summaries: one metric of all methods.
        direction: which end is good.
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
