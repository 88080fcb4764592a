"""What the report of an `online-vae` experiment is made of."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probseq_apps.experiments.online_vae_settings import VAE_METHODS, OnlineVaeSettings
from probseq_apps.experiments.online_vae_tasks import ChannelStream
from probseq_apps.report.online import online_vae_report
from probseq_apps.report.report import Report

FRAMES = "frames"


def make_report(
    folder: Path,
    settings: OnlineVaeSettings,
    stream: ChannelStream,
    runs: Mapping[str, Mapping[str, Any]],
    *,
    recipe: str,
) -> Report:
    """Return the report.

    Args:
        folder: the experiment's folder.
        settings: what was compared.
        stream: of the first seed, for what the data are.
        runs: what was measured, by method and seed.
        recipe: name of the recipe that the settings came from.
    """
    model, series = settings.model, stream.series
    return online_vae_report(
        folder,
        runs,
        titles={method: VAE_METHODS[method] for method in runs},
        settings=settings.to_dict(),
        data={
            "name": series.name,
            "channels": len(series.channels),
            "time": series.time_label,
            "unit": stream.unit,
            "train": [len(task.t) for task in stream.tasks],
            "test": [len(task.test_t) for task in stream.tasks],
            "notes": list(series.notes),
        },
        facts=[
            f"M = {model.num_inducing}, {model.num_latents} latents; old posterior carried along: "
            f"{'yes' if model.carry else 'no'}; weight of elastic weight consolidation "
            f"{model.consolidation:g}",
            f"errors are in {stream.unit}",
        ],
        recipe=recipe,
        frame=series.frame,
    )
