"""Writes the report of an `online` experiment."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probseq_apps.experiments.online_evaluation import metric_names
from probseq_apps.experiments.online_settings import (
    LEARNED_METHODS,
    ONLINE,
    ONLINE_METHODS,
    OnlineSettings,
)
from probseq_apps.experiments.online_tables import legend
from probseq_apps.experiments.online_tasks import Stream
from probseq_apps.experiments.task_report import write_task_report
from probseq_apps.report.online_plots import draw
from probseq_apps.report.online_toy import write_toy_figure


def write_online_report(
    folder: Path,
    settings: OnlineSettings,
    stream: Stream,
    runs: Mapping[str, Mapping[str, Any]],
    *,
    recipe: str,
) -> str:
    """Write `report.json`, `plots/` and `report.md`.

    Args:
        folder: the experiment's folder.
        settings: what was compared.
        stream: of the first seed, for what the data are.
        runs: what was measured, by method and seed.
        recipe: name of the recipe that the settings came from.

    Returns:
        The comparison as text, for the terminal.
    """
    report: dict[str, Any] = {
        "experiment": ONLINE,
        "recipe": recipe,
        "settings": settings.to_dict(),
        "data": {
            "name": stream.name,
            "input": stream.input_label,
            "target": stream.target_label,
            "train": [len(task.y) for task in stream.tasks],
            "test": [len(task.test_y) for task in stream.tasks],
            "notes": list(stream.notes),
        },
        "methods": {
            method: {"title": ONLINE_METHODS[method].title, "seeds": dict(found)}
            for method, found in runs.items()
        },
    }
    data = report["data"]
    opening = (
        f"{sum(data['train']):,} points in {len(data['train'])} tasks, {sum(data['test']):,} for "
        f"evaluation;\ninput: {data['input']}, target: {data['target']}. Recipe `{recipe}`, seeds\n"
        f"{', '.join(map(str, settings.seeds))}; all settings are in `config.json`."
    )
    return write_task_report(
        folder,
        report,
        opening=opening,
        notes=method_notes(settings),
        legend=legend(metric_names(settings.model.likelihood)),
        draw=lambda: [*draw(folder), *_toy_figure(folder, settings)],
    )


def method_notes(settings: OnlineSettings) -> list[str]:
    """What a reader must know about how methods were run."""
    model = settings.model
    values = f"lengthscale {model.lengthscale:g}, outputscale {model.outputscale:g}"
    if model.likelihood == "gaussian":
        values += f", noise {model.noise:g}"
    origin = {
        "fixed": f"as given ({values})",
        "first": "of greatest evidence on the first task",
        "online": "of greatest evidence on the first task, then re-estimated at every task",
    }[model.hyperparameters]
    notes = [f"M = {model.num_inducing}; {model.kernel} kernel, hyperparameters {origin}."]
    if "ovff" in settings.method:
        own = (
            f"with its own lengthscale {model.ovff_lengthscale:g}"
            if model.hyperparameters == "fixed" and model.ovff_lengthscale is not None
            else "with its own hyperparameters, of greatest evidence on the first task"
        )
        notes.append(f"ovff: Matérn-5/2 kernel {own}; it knows the interval of all tasks.")
    if learned := [name for name in LEARNED_METHODS if name in settings.method]:
        notes.append(
            f"{', '.join(learned)}: {model.learn_steps:,} Adam steps of rate {model.learn_rate:g} "
            f"lengthscales a task on the inducing points{_thesis_steps(settings)}."
        )
    return notes


def _thesis_steps(settings: OnlineSettings) -> str:
    """The thesis' number of Adam steps for such data, where it has one."""
    if settings.data == "covid":
        return " (thesis: 5,000 for COVID)"
    if settings.of_time:
        return " (thesis: 1,000 for series)"
    return " (thesis: 2,000 for UCI)" if settings.data in ("skillcraft", "powerplant") else ""


def _toy_figure(folder: Path, settings: OnlineSettings) -> list[Path]:
    """Fig. 4.1, which has two tasks of a toy series of its own."""
    if settings.data != "toy" or settings.stream.num_tasks != 2:
        return []
    return [write_toy_figure(folder / "plots")]
