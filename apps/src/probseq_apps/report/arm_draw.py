"""Pictures that all comparisons of models have: samples, films of the process, losses."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from probseq_apps.data.generation import GenerationData, to_unit
from probseq_apps.experiments.generate_files import model_folder, model_samples_file, process_file
from probseq_apps.experiments.generate_sample import Samples
from probseq_apps.report.arm_curves import save_losses
from probseq_apps.report.arm_pictures import GRID, save_arm_grids, save_process
from probseq_apps.report.arm_results import REAL
from probseq_apps.report.diffusion_process import Process
from probseq_apps.report.training_curves import Quantity

PLOTS = "plots"
# Rows of a film of videos.
_ROWS = 4


def draw_samples(data: GenerationData, folder: Path, arms: Sequence[str], seed: int) -> list[Path]:
    """Samples of all arms beside images of the test part.

    Args:
        data: the images.
        folder: of the experiment.
        arms: their names; those whose samples are not there are left out.
        seed: of the models.
    """
    shown: dict[str, Tensor] = {}
    for arm in arms:
        file = model_samples_file(folder, arm, seed)
        if file.is_file():
            shown[arm] = to_unit(Samples.load(file).images[:GRID])
    title = f"{data.name}: samples, seed {seed}"
    # No more than of any arm.
    count = max(map(len, shown.values()), default=GRID)
    shown = {REAL: to_unit(data.test[:count]), **shown}
    return [save_arm_grids(shown, folder / PLOTS / "samples.png", title=title)]


def draw_process(folder: Path, arm: str, seed: int, *, what: str, unit: str) -> list[Path]:
    """A film of how samples come into being; none where its file is not there.

    Args:
        folder: of the experiment.
        arm: its name.
        seed: of the model.
        what: is shown.
        unit: of what was done, such as `step`.
    """
    file = process_file(folder, arm, seed)
    if not file.is_file():
        return []
    process = Process.load(file)
    if process.frames.shape[2] > 1:
        process = process._replace(frames=process.frames[:_ROWS])
    out = folder / PLOTS / f"process-{arm}.gif"
    return [save_process(process, out, name=what, unit=unit)]


def draw_losses(
    folder: Path, arms: Sequence[str], seeds: Sequence[int], labels: Mapping[str, Quantity]
) -> list[Path]:
    """Losses of all arms; none where nothing was logged.

    Args:
        folder: of the experiment.
        arms: their names.
        seeds: of the models.
        labels: numbers of the logs by their key.
    """
    runs = {arm: [model_folder(folder, arm, seed) for seed in seeds] for arm in arms}
    return save_losses(runs, folder / PLOTS / "losses.png", labels)
