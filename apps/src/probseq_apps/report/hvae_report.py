"""Writes the report of `probseq generate hvae`."""

from collections.abc import Sequence
from pathlib import Path

from probseq_apps.data.generation import GenerationData
from probseq_apps.experiments.hvae_settings import HvaeSettings
from probseq_apps.report.arm_results import Result


def write_hvae_report(
    folder: Path,
    settings: HvaeSettings,
    results: Sequence[Result],
    real: Result,
    *,
    data: GenerationData,
    recipe: str,
) -> str:
    """Write `report.json`, then `plots/`, then `report.md`.

    Pictures are of the first seed: of `samples/ARM-seedS.npz` (`Samples`)
    and `process/ARM-seedS.npz` (`Process`); a file that is gone leaves its pictures
    out. Loss curves are of the runs in `models/ARM-seedS`.

    Args:
        folder: the experiment's folder.
        settings: what was compared.
        results: contents of `results/*.json`, in the order of the arms.
        real: what `evaluate_generation` says of the test images.
        data: gives sizes, notes, and real images.
        recipe: name of the recipe that the settings came from.

    Returns:
        The comparison as text, for the terminal.

    Raises:
        RuntimeError: the plots cannot be drawn; the report stands without them.
    """
    return ""
