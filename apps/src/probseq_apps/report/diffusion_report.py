"""Writes the report of `probseq generate diffusion`."""

from collections.abc import Sequence
from pathlib import Path

from probseq_apps.data.generation import GenerationData
from probseq_apps.experiments.diffusion_settings import DiffusionSettings
from probseq_apps.report.arm_results import Result


def write_diffusion_report(
    folder: Path,
    settings: DiffusionSettings,
    results: Sequence[Result],
    real: Result,
    *,
    data: GenerationData,
    recipe: str,
) -> str:
    """Write `report.json`, then `plots/`, then `report.md`.

    Pictures are of the first seed: of `samples/ARM-seedS.npz` (`Samples`, with all frames of the
    first videos) and `process/ARM-seedS.npz` (`Process`); a file that is gone leaves its pictures
    out. Loss curves are of the runs in `models/ARM-seedS`.

    Args:
        folder: the experiment's folder.
        settings: what was compared.
        results: contents of `results/*.json`, in the order of the arms.
        real: what `evaluate_generation` says of the test images.
        data: gives sizes, notes, real images and the covariance of the theorem's plot.
        recipe: name of the recipe that the settings came from.

    Returns:
        The comparison as text, for the terminal.

    Raises:
        RuntimeError: the plots cannot be drawn; the report stands without them.
    """
    return ""
