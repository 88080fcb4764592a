"""The report of `probseq regress`: tables of metrics, and plots."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from probseq.metrics import ood_roc, selective_error
from probseq.metrics.plots import (
    interval_coverage_plot,
    predicted_plot,
    roc_plot,
    selective_error_plot,
    spread_plot,
)
from probseq_apps.report.classify import MethodResult, methods_report
from probseq_apps.report.report import Report, save_figures


class Predicted(NamedTuple):
    """Predictions of a set by one model or ensemble.

    Attributes:
        targets: true values.
        mean: predictive means.
        variance: predictive variances.
        function_variance: the same without the noise.
        coverage: share of the true values inside central intervals, by the intervals' probability.
    """

    targets: Float[Tensor, " n"]
    mean: Float[Tensor, " n"]
    variance: Float[Tensor, " n"]
    function_variance: Float[Tensor, " n"]
    coverage: Mapping[float, float]


# For each method, its entries: predictions by set.
Rows = Mapping[str, Sequence[Mapping[str, Predicted]]]


def regress_report(methods: Mapping[str, MethodResult], rows: Rows, **given: Any) -> Report:
    """Return the report of a comparison of regressors: what was measured, and predictions."""
    target = given["data"]["target"]
    return methods_report(
        "regress",
        methods,
        f"examples; the target is `{target}`, and errors are in its unit",
        plots=lambda folder: save_figures(regress_figures(rows, target), folder),
        **given,
    )


def is_constant(values: Float[Tensor, " n"]) -> bool:
    """Return whether values differ by nothing but round-off."""
    spread = values.amax() - values.amin()
    return bool(spread <= 1e-9 * values.abs().amax())


def regress_figures(rows: Rows, target: str) -> dict[str, Figure]:
    """Draw everything that the predictions allow."""
    first = {method: entries[0]["test"] for method, entries in rows.items()}
    inside = {m: [list(e["test"].coverage.values()) for e in found] for m, found in rows.items()}
    figures = {
        "predicted": predicted_plot(
            {m: (one.targets, one.mean, one.variance) for m, one in first.items()}, target=target
        ),
        "coverage": interval_coverage_plot(
            {
                m: (
                    torch.tensor(list(one.coverage), dtype=torch.float64),
                    torch.tensor(inside[m]).mean(0),
                )
                for m, one in first.items()
            }
        ),
        "error-by-variance": selective_error_plot(_selective(rows), target=target),
    }
    # Nothing but noise tells nothing apart, and has no curve to draw.
    telling = {m: entries for m, entries in rows.items() if not _is_flat(entries)}
    for name in next(iter(rows.values()))[0]:
        if name.startswith("ood/") and telling:
            outside = name.removeprefix("ood/")
            label = outside.replace("-", " ")
            spreads = {
                method: [
                    torch.cat([e[s].function_variance for e in entries]) for s in ("test", name)
                ]
                for method, entries in telling.items()
            }
            both = ("Test set", label.capitalize())
            roots = {
                method: dict(zip(both, [v.sqrt() for v in variances], strict=True))
                for method, variances in spreads.items()
            }
            figures[f"ood-{outside}"] = spread_plot(roots, target=target)
            curves = {method: ood_roc(*variances) for method, variances in spreads.items()}
            figures[f"ood-{outside}-roc"] = figure = roc_plot(curves)
            figure.suptitle(f"Test set against {label}, by predictive variance", fontsize=10)
    return figures


def _is_flat(entries: Sequence[Mapping[str, Predicted]]) -> bool:
    return all(is_constant(entry["test"].variance) for entry in entries)


def _selective(rows: Rows) -> dict[str, tuple[Tensor, Tensor]]:
    """Return coverage and error of each method, means over its entries."""
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for method, entries in rows.items():
        each = [entry["test"] for entry in entries]
        curves = [selective_error(one.mean - one.targets, one.variance) for one in each]
        coverage, error = curves[0][0], torch.stack([error for _, error in curves]).mean(0)
        if _is_flat(entries):
            # No order: every choice has the same error on average.
            found[f"{method} (no order)"] = torch.tensor([0.0, 1.0]), error[-1].expand(2)
        else:
            found[method] = coverage, error
    return found
