"""`probseq report --over SETTING`: metrics of methods over a setting that runs differ in."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from probseq.figures import Curve, curves_plot
from probseq.summary import LABELS, Summary, summarise
from probseq_apps.engine.files import flatten
from probseq_apps.report.compare import NOT_COMPARED, setting_text
from probseq_apps.report.measured import MeasuredRun, Seeds
from probseq_apps.report.tables import markdown_table, with_error

_METRICS = ("test/accuracy", "test/nll", "test/ece", "test/mae", "nlpd", "rmse", "forgetting")
# Summaries by metric, method, and value of the setting.
Curves = Mapping[str, Mapping[str, Mapping[int | float, Summary]]]
# Values this far apart stand on a logarithmic axis.
_DECADE = 10.0


def collect(runs: Sequence[MeasuredRun], setting: str) -> Curves:
    """Return the methods' metrics at each value; of two runs with a method, the newer's.

    The setting is a number by its path, `model.num_inducing`, or a fact of the data, `train`, the
    number of training examples. Methods that are not there at all values are left out.

    Runs are sorted from the newest to the oldest.

    Raises:
        ValueError: the runs are of several experiments or data sets, a run lacks the setting, it
            is no number or the same everywhere, or the runs have no method or no metric in common.
    """
    if len(data := {(run.experiment, run.data) for run in runs}) > 1:
        kinds = ", ".join(sorted(" ".join(kind) for kind in data))
        raise ValueError(f"runs must be of one experiment on one data set, got {kinds}")
    by_value: dict[int | float, dict[str, Seeds]] = {}
    for run in runs:
        value = run.facts.get(setting, run.setting(setting))
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(
                f"over must name a number in all runs, and in {run.folder} it is {value!r}"
            )
        by_value[value] = {**run.numbers, **by_value.get(value, {})}
    if len(by_value) < 2:
        raise ValueError(f"over must name what runs differ in, and {setting} has one value in all")
    values = sorted(by_value)
    rows = list(dict.fromkeys(name.split("/")[0] for name in by_value[values[0]]))
    curves: dict[str, dict[str, dict[int | float, Summary]]] = {}
    for metric in _METRICS:
        for row in rows:
            seeds = [by_value[value].get(f"{row}/{metric}") for value in values]
            curve = {v: summarise(s) for v, s in zip(values, seeds, strict=True) if s is not None}
            if len(curve) == len(values) and all(
                point.mean is not None for point in curve.values()
            ):
                curves.setdefault(metric, {})[row] = curve
    if not curves:
        raise ValueError("runs must have a method and a metric in common, and these have none")
    return curves


def other_changes(runs: Sequence[MeasuredRun], setting: str) -> list[str]:
    """Return the other settings that the runs differ in with their values, a line each."""
    all_settings = [dict(flatten(run.settings)) for run in runs]
    changes = {
        name: list(dict.fromkeys(setting_text(settings.get(name)) for settings in all_settings))
        for name in all_settings[0]
        if name not in (setting, f"reading.{setting}_size") and not NOT_COMPARED.fullmatch(name)
    }
    return [
        f"the runs differ in {name} too: {', '.join(values)}"
        for name, values in changes.items()
        if len(values) > 1
    ]


def over_markdown(curves_by_metric: Curves, setting: str) -> str:
    """Return a table for each metric: a row for each method, a column for each value."""
    write, tables = with_error(4), list[str]()
    for metric, curves in curves_by_metric.items():
        heads = [f"{_label(metric)} over {setting}", *map(str, next(iter(curves.values())))]
        rows = [[row, *map(write, curve.values())] for row, curve in curves.items()]
        tables.append(markdown_table([heads, *rows]))
    return "\n\n".join(tables)


def over_plot(curves_by_metric: Curves, setting: str, title: str) -> Figure:
    """Draw a panel for each metric, in it a curve for each method with its standard errors."""
    numbers: dict[str, dict[str, Curve]] = {}
    for metric, curves in curves_by_metric.items():
        numbers[_label(metric)] = {
            row: Curve(
                list(curve),
                [summary.mean or 0.0 for summary in curve.values()],
                [summary.standard_error or 0.0 for summary in curve.values()],
            )
            for row, curve in curves.items()
        }
    figure = curves_plot(numbers, title=title, x_label=setting)
    values = list(next(iter(next(iter(curves_by_metric.values())).values())))
    for axes in figure.axes:
        if values[0] > 0.0 and values[-1] >= _DECADE * values[0]:
            axes.set_xscale("log")
            axes.set_xticks(values, labels=[f"{value:g}" for value in values])
            axes.minorticks_off()
    return figure


def _label(metric: str) -> str:
    name = metric.rpartition("/")[2]
    return LABELS.get(name, (name,))[0]
