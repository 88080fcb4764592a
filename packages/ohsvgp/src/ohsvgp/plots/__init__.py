"""Figures of online Gaussian processes, as matplotlib's; it comes with the extra ``plots``.

Save one with ``figure.savefig(path)``. Without matplotlib all raise a ``MissingExtraError``.
"""

from ohsvgp.plots.coefficients import coefficients_plot
from ohsvgp.plots.fits import SeriesFit, after_tasks_plot, series_plot
from ohsvgp.plots.metrics import Band, Metric, metrics_plot, per_task_plot
from ohsvgp.plots.models import forecast_plot
from ohsvgp.plots.plane import Plane, boundaries_plot
from ohsvgp.plots.streams import frames_plot, metric_figures, prediction_figures

__all__ = [
    "Band",
    "Metric",
    "Plane",
    "SeriesFit",
    "after_tasks_plot",
    "boundaries_plot",
    "coefficients_plot",
    "forecast_plot",
    "frames_plot",
    "metric_figures",
    "metrics_plot",
    "per_task_plot",
    "prediction_figures",
    "series_plot",
]
