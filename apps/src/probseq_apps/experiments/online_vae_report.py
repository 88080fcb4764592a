"""Writes the report of an `online-vae` experiment."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probseq_apps.experiments.online_vae_settings import (
    ONLINE_VAE,
    VAE_METHODS,
    OnlineVaeSettings,
)
from probseq_apps.experiments.online_vae_tasks import ChannelStream
from probseq_apps.experiments.task_report import write_task_report
from probseq_apps.report.online_vae_plots import draw_vae

FRAMES = "frames"
LEGEND = (
    "mean ± half of the 95% interval (Student's t) over the seeds. NLPD in nats and RMSE per "
    "value, over the test steps of all tasks, after the last one; forgetting: how much worse a "
    "task before the last is predicted then than right after it was learned, mean over those "
    "tasks; lost: nats that changes of the inducing variables cost; seconds: all training."
)


def write_online_vae_report(
    folder: Path,
    settings: OnlineVaeSettings,
    stream: ChannelStream,
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
        "experiment": ONLINE_VAE,
        "recipe": recipe,
        "settings": settings.to_dict(),
        "data": {
            "name": stream.series.name,
            "channels": len(stream.series.channels),
            "time": stream.series.time_label,
            "unit": stream.unit,
            "train": [len(task.t) for task in stream.tasks],
            "test": [len(task.test_t) for task in stream.tasks],
            "notes": list(stream.series.notes),
        },
        "methods": {
            method: {"title": VAE_METHODS[method], "seeds": dict(found)}
            for method, found in runs.items()
        },
    }
    data = report["data"]
    opening = (
        f"{data['channels']} channels, {sum(data['train']):,} time steps in {len(data['train'])} "
        f"tasks,\n{sum(data['test']):,} for evaluation. Recipe `{recipe}`, seeds\n"
        f"{', '.join(map(str, settings.seeds))}; all settings are in `config.json`, the trained "
        "models in\n`models/`."
    )
    return write_task_report(
        folder,
        report,
        opening=opening,
        notes=_notes(report, settings),
        legend=LEGEND,
        draw=lambda: draw_vae(folder, stream.series.frame),
    )


def _notes(report: Mapping[str, Any], settings: OnlineVaeSettings) -> list[str]:
    """What a reader must know about how methods were run."""
    model = settings.model
    carried = (
        "the old posterior of the inducing variables is carried along as a site"
        if model.carry
        else "without the old posterior: inducing variables know the newest task alone"
    )
    return [
        f"M = {model.num_inducing}, {model.num_latents} latents; {carried}; weight of elastic "
        f"weight consolidation {model.consolidation:g}.",
        f"Errors are in {report['data']['unit']}.",
    ]
