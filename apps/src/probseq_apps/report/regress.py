"""The report of `probseq regress`: tables of metrics, and plots."""

from collections.abc import Mapping, Sequence
from typing import Any

from probseq_apps.report.classify import MethodResult, methods_report
from probseq_apps.report.report import Report
from probseq_apps.report.set_plots import NumberSets, number_figures


def regress_report(
    results: Mapping[str, MethodResult], rows: Mapping[str, Sequence[NumberSets]], **common: Any
) -> Report:
    """Return the report of a comparison of regressors from their results and predictions."""
    target = common["data"]["target"]
    return methods_report(
        "regress",
        results,
        f"examples; the target is `{target}`, and errors are in its unit",
        story=("coverage",),
        figures=lambda: number_figures(
            {results[name].row.short_title: sets for name, sets in rows.items()}, target
        ),
        **common,
    )
