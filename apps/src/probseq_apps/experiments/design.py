"""`probseq generate design`: kinds of pseudo video, ranked for Gaussian images."""

from typing import Any

from jaxtyping import Float64
from torch import Tensor

from probseq_apps.data.images import GenerationData, load_generation_data
from probseq_apps.experiment import Experiment, Job, Results, RunFolder
from probseq_apps.options import Options
from probseq_apps.report.design import design_report
from probseq_apps.settings.design import DesignSettings
from pseudovideo.beyond.design import check_design, image_covariance, measure_design
from pseudovideo.corruptions import ImageShape
from pseudovideo.pixels import to_unit


class Designs(Experiment[GenerationData]):
    """Designs of pseudo videos, each measured exactly."""

    kind, command, brief = "generate-design", "generate design", True

    def __init__(self, settings: DesignSettings) -> None:
        super().__init__(settings)
        videos = settings.videos
        self._videos = {Job("image alone", 0): videos.for_frames(1, "repeat")} | {
            Job(f"{kind}, T={length}", 0): videos.for_frames(length, kind)
            for length in settings.frames
            for kind in self.settings.kinds
        }
        self.jobs = list(self._videos)
        self._covariance: Float64[Tensor, "d d"] | None = None

    def load(self, options: Options) -> GenerationData:
        """Read the images."""
        reading = {name: getattr(self.settings, name) for name in ("image_size", "num_train")}
        source: dict[str, Any] = {"data_dir": options.data_dir, "download": options.download}
        return load_generation_data(self.settings.data, **reading, **source)

    def check(self, data: GenerationData) -> None:
        """Raise if a design can't be measured at this size, or the images are too few for it."""
        for videos in self._videos.values():
            check_design(_shape(data), videos, self.settings.design)
        count, numbers = len(data.train), data.train[0].numel()
        if count <= numbers:
            raise ValueError(
                f"data must have more training images than an image has numbers ({numbers}), for "
                f"a covariance of full rank, got {count}: lower image_size, or raise num_train"
            )

    def describe(self, data: GenerationData) -> str:
        """Return a line about data and jobs."""
        return f"{data.name}: {len(data.train):,} images, {len(self.jobs)} designs"

    def run(self, job: Job, data: GenerationData, at: RunFolder) -> dict[str, Any]:
        """Measure a design."""
        if self._covariance is None:
            self._covariance = image_covariance(to_unit(data.train))
        shape, videos = _shape(data), self._videos[job]
        return measure_design(self._covariance, shape, videos, self.settings.design).to_dict()

    def report(self, data: GenerationData, results: Results, at: RunFolder) -> str:
        """Write the report."""
        designs = {job.row: measured for job, measured in results.items()}
        settings = self.settings.to_dict()
        return design_report(designs, settings=settings, data=data, recipe=at.recipe).write(at.path)


def _shape(data: GenerationData) -> ImageShape:
    return ImageShape(data.channels, data.image_size, data.image_size)
