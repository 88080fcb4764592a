"""What the report of an `online` experiment is made of."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probseq_apps.experiments.online_settings import (
    LEARNED_METHODS,
    ONLINE_METHODS,
    OnlineSettings,
)
from probseq_apps.experiments.online_tasks import Stream
from probseq_apps.report.online import online_report
from probseq_apps.report.report import Report


def make_report(
    folder: Path,
    settings: OnlineSettings,
    stream: Stream,
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
    return online_report(
        folder,
        runs,
        titles={method: ONLINE_METHODS[method].title for method in runs},
        settings=settings.to_dict(),
        data={
            "name": stream.name,
            "input": stream.input_label,
            "target": stream.target_label,
            "train": [len(task.y) for task in stream.tasks],
            "test": [len(task.test_y) for task in stream.tasks],
            "notes": list(stream.notes),
        },
        facts=method_facts(settings),
        recipe=recipe,
        toy=settings.data == "toy" and settings.stream.num_tasks == 2,
    )


def method_facts(settings: OnlineSettings) -> list[str]:
    """Return what one must know about how methods were run."""
    model = settings.model
    facts = [
        f"M = {model.num_inducing}; {model.kernel} kernel; hyperparameters: {model.hyperparameters}"
    ]
    if learned := [name for name in LEARNED_METHODS if name in settings.method]:
        facts.append(
            f"Adam steps a task on inducing points: {model.learn_steps:,} of rate "
            f"{model.learn_rate:g} lengthscales ({', '.join(learned)})"
        )
    return facts
