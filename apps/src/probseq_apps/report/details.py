"""The parts of `report.md` that go beyond the test sets: shift, and out-of-distribution data."""

from collections.abc import Mapping

from probseq_apps.report.grids import markdown_grid
from probseq_apps.report.ood_grids import ood_grids
from probseq_apps.report.shift_grids import SHIFT_TITLES, shift_grids
from probseq_apps.report.summary import Summary

Summaries = Mapping[str, Mapping[str, Summary]]

_PREFIXES = ("ood/", *(f"{kind}/" for kind in SHIFT_TITLES))
_SHIFT = """## Distribution shift

By severity: the mean over the corruptions. By group: the mean over its corruptions and the
severities; `all` is that over all corruptions."""
_OOD = """## Out-of-distribution detection

AUPR-in has the test set as the positive class, AUPR-out the other set; FPR95 is the share of the
test set flagged where 95% of the other set are."""


def on_test_sets(summaries: Summaries) -> dict[str, dict[str, Summary]]:
    """The metrics that are not told by :func:`details`.

    Args:
        summaries: metrics by method.
    """
    return {
        method: {name: found for name, found in metrics.items() if not name.startswith(_PREFIXES)}
        for method, metrics in summaries.items()
    }


def details(summaries: Summaries, seeds: Mapping[str, int]) -> str:
    """Markdown sections with every table under shift and of detection; empty without any.

    Args:
        summaries: metrics by method.
        seeds: number of entries of each method.
    """
    parts: list[str] = []
    for text, grids in ((_SHIFT, shift_grids(summaries)), (_OOD, ood_grids(summaries))):
        if grids:
            parts += [text, *(markdown_grid(grid, seeds) for grid in grids)]
    return "\n\n".join(parts)
