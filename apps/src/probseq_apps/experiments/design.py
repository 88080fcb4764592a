"""`probseq generate design`: kinds of pseudo video, ranked for Gaussian images."""

from functools import cached_property
from typing import Any, cast

from jaxtyping import Float64
from torch import Tensor

from probseq_apps.data.images import GenerationData, load_generation_data
from probseq_apps.experiment import Job, Results, RunFolder, Workflow
from probseq_apps.options import Options
from probseq_apps.report.design import design_report
from probseq_apps.settings.design import DesignSettings
from pseudovideo.beyond.design import check_design, image_covariance, measure_design
from pseudovideo.corruptions import ImageShape, PseudoVideoConfig
from pseudovideo.pixels import to_unit
from pseudovideo.spec import CorruptionKind


class GaussianImages:
    """Images, as far as a design is measured: their sizes and their covariance."""

    def __init__(self, images: GenerationData) -> None:
        self.images = images
        self.shape = ImageShape(images.channels, images.image_size, images.image_size)

    @cached_property
    def covariance(self) -> Float64[Tensor, "d d"]:
        """That of the training images, computed once."""
        return image_covariance(to_unit(self.images.train))


def designs_of(settings: DesignSettings) -> dict[Job, PseudoVideoConfig]:
    """Return the pseudo videos of each design, the image alone first."""
    videos = settings.videos
    kinds = cast("tuple[CorruptionKind, ...]", settings.kinds)
    return {Job("image alone", 0): videos.for_frames(1, "repeat")} | {
        Job(f"{kind}, T={length}", 0): videos.for_frames(length, kind)
        for length in settings.frames
        for kind in kinds
    }


def load(settings: DesignSettings, options: Options) -> GaussianImages:
    """Read the images."""
    reading = {name: getattr(settings, name) for name in ("image_size", "num_train")}
    source: dict[str, Any] = {"data_dir": options.data_dir, "download": options.download}
    return GaussianImages(load_generation_data(settings.data, **reading, **source))


def check(settings: DesignSettings, data: GaussianImages) -> None:
    """Raise if a design can't be measured at this size, or the images are too few for it."""
    for videos in designs_of(settings).values():
        check_design(data.shape, videos, settings.design)
    count, numbers = len(data.images.train), data.images.train[0].numel()
    if count <= numbers:
        raise ValueError(
            f"data must have more training images than an image has numbers ({numbers}), for "
            f"a covariance of full rank, got {count}: lower image_size, or raise num_train"
        )


def describe(settings: DesignSettings, data: GaussianImages) -> str:
    """Return a line about data and jobs."""
    count = len(designs_of(settings))
    return f"{data.images.name}: {len(data.images.train):,} images, {count} designs"


def measure(
    settings: DesignSettings, data: GaussianImages, job: Job, at: RunFolder
) -> dict[str, Any]:
    """Measure a design."""
    videos = designs_of(settings)[job]
    return measure_design(data.covariance, data.shape, videos, settings.design).to_dict()


def report(settings: DesignSettings, data: GaussianImages, results: Results, at: RunFolder) -> str:
    """Write the report."""
    designs = {job.row: measured for job, measured in results.items()}
    facts: dict[str, Any] = {"settings": settings.to_dict(), "data": data.images}
    return design_report(designs, recipe=at.recipe, **facts).write(at.path)


WORKFLOW = Workflow(
    kind="generate-design",
    command="generate design",
    one_process="nothing is trained",
    brief=True,
    jobs=designs_of,
    load=load,
    check=check,
    describe=describe,
    run=measure,
    report=report,
)
