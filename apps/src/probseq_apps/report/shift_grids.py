"""Tables of metrics under distribution shift: by severity, and by group of corruptions."""

from collections.abc import Mapping

from probseq_apps.data.names import CORRUPTION_GROUPS
from probseq_apps.report.grids import Grid, mean_of
from probseq_apps.report.labels import LABELS
from probseq_apps.report.summary import Summary

Summaries = Mapping[str, Mapping[str, Summary]]

SHIFT_TITLES = {"shift": "corrupted", "cifar-c": "CIFAR-C"}
_SHOWN = ("accuracy", "nll", "ece", "mce")
# The published files hold corruptions that belong to none of the program's groups.
_GROUPS = (*CORRUPTION_GROUPS, "other")


def shift_grids(summaries: Summaries) -> list[Grid]:
    """For each kind of corrupted images and each metric: by severity, then by group.

    A number by severity is a mean over the corruptions; one by group is a mean over its corruptions
    and the severities, `all` that over all corruptions and severities.

    Args:
        summaries: metrics by method.
    """
    grids: list[Grid] = []
    for kind, title in SHIFT_TITLES.items():
        if severities := severities_of(summaries, kind):
            for metric in _SHOWN:
                grids += _grids(summaries, kind, title, metric, severities)
    return grids


def severities_of(summaries: Summaries, kind: str) -> list[int]:
    """Severities that were measured, in order.

    Args:
        summaries: metrics by method.
        kind: `shift` or `cifar-c`.
    """
    prefix = f"{kind}/severity-"
    names = next(iter(summaries.values()))
    found = {int(name.split("/")[1].partition("-")[2]) for name in names if name.startswith(prefix)}
    return sorted(found)


def mean_over_severities(
    metrics: Mapping[str, Summary], kind: str, group: str, metric: str
) -> Summary:
    """Mean of a metric over the severities for a group of corruptions.

    Args:
        metrics: of one method.
        kind: `shift` or `cifar-c`.
        group: of corruptions; `severity` stands for all of them.
        metric: own name of the metric.
    """
    return mean_of(
        summary
        for name, summary in metrics.items()
        if name.startswith(f"{kind}/{group}-") and name.endswith(f"/{metric}")
    )


def _grids(
    summaries: Summaries, kind: str, title: str, metric: str, severities: list[int]
) -> list[Grid]:
    label, direction = LABELS[metric]
    by_severity = {
        method: tuple(metrics[f"{kind}/severity-{severity}/{metric}"] for severity in severities)
        for method, metrics in summaries.items()
    }
    heads = tuple(f"severity {severity}" for severity in severities)
    grids = [Grid(f"{title}: {label}", heads, (direction,) * len(heads), by_severity)]
    names = next(iter(summaries.values()))
    groups = [group for group in _GROUPS if any(n.startswith(f"{kind}/{group}-") for n in names)]
    if len(groups) > 1:  # one group alone is what all are
        by_group = {
            method: tuple(
                mean_over_severities(metrics, kind, group, metric)
                for group in (*groups, "severity")
            )
            for method, metrics in summaries.items()
        }
        heads = (*groups, "all")
        grids.append(Grid(f"{title}: {label}", heads, (direction,) * len(heads), by_group))
    return grids
