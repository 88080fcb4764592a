"""What reports of generated images are made of: sizes, and what models of a folder drew."""

from pathlib import Path
from typing import Any

from probseq_apps.data.images import GenerationData
from probseq_apps.experiments.generate_files import model_samples_file, process_file
from probseq_apps.experiments.generate_sample import Samples
from probseq_apps.experiments.process import Process
from probseq_apps.report.generate_plots import Drawn


def image_facts(data: GenerationData) -> dict[str, Any]:
    """Return what a report says about images."""
    return {
        "name": data.name,
        "train": len(data.train),
        "validation": len(data.validation),
        "test": len(data.test),
        "channels": data.channels,
        "image_size": data.image_size,
        "notes": list(data.notes),
    }


def load_drawn(folder: Path, arm: str, seed: int) -> Drawn:
    """Read what a model drew; files that are gone leave their part out.

    Args:
        folder: of the experiment.
        arm: name of the arm.
        seed: of the model.

    Raises:
        ValueError: a file is damaged.
    """
    drawn = Drawn()
    if (file := model_samples_file(folder, arm, seed)).is_file():
        samples = Samples.load(file)
        drawn = drawn._replace(images=samples.images, videos=samples.videos)
    if (file := process_file(folder, arm, seed)).is_file():
        process = Process.load(file)
        drawn = drawn._replace(process=process.frames, done=process.done)
    return drawn
