"""What the commands of `probseq generate` share: files of samples, and trained parts."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn

from probseq.settings import Settings
from probseq_apps.data.images import GenerationData, load_generation_data
from probseq_apps.engine import distributed, log
from probseq_apps.engine.config import TrainConfig, derive_seed
from probseq_apps.engine.files import (
    CONFIG,
    FINISHED,
    MANIFEST,
    check_manifest,
    load_arrays,
    prepare_run_dir,
    read_finished,
    save_arrays,
    write_json,
    write_manifest,
)
from probseq_apps.engine.fit import fit
from probseq_apps.engine.trainer import Batch, LossParts, Step, Trainer, fork_random
from probseq_apps.experiment import Job, RunFolder
from probseq_apps.experiment_classes import Experiment
from probseq_apps.experiments.features import check_features, make_reference
from probseq_apps.options import Options
from probseq_apps.report.generate import generate_report
from probseq_apps.settings.common import config_values, saved_settings
from probseq_apps.settings.generate import ClassTraining
from pseudovideo.beyond.reference import Reference
from pseudovideo.corruptions import PseudoVideoConfig, pseudo_videos
from pseudovideo.labels import draw_labels
from pseudovideo.pixels import to_unit
from pseudovideo.pretrained import Pretrained, load_pretrained
from pseudovideo.samples import Film, draw_samples

CLASSIFIER, REFERENCE, SAMPLES, PRETRAINED = "classifier", "reference", "samples", "pretrained"
# Videos whose frames are kept and measured.
_KEPT = 1000


class Samples(NamedTuple):
    """What was drawn: last frames of all samples, the first videos whole, seconds that it took."""

    images: UInt8[Tensor, "n c h w"]
    videos: UInt8[Tensor, "m t c h w"]
    seconds: Float[Tensor, ""]
    labels: Int64[Tensor, " n"] | None = None  # of samples of classes


class Between(NamedTuple):
    """Images between pairs of samples, a row for each pair."""

    images: UInt8[Tensor, "n k c h w"]


Given = TypeVar("Given")
PartT = TypeVar("PartT", bound="Part[Any]")
Module = TypeVar("Module", bound=nn.Module)
Kept = TypeVar("Kept", Samples, Film, Between)
_DIMENSIONS = {Samples: (4, 5, 0, 1), Film: (6, 1, 0), Between: (5,)}
_NAMES = {Samples: "samples", Film: "process", Between: "interpolations"}


def load_kept(kind: type[Kept], file: Path) -> Kept:
    """Read what was drawn; raise if it is not there, damaged, or something else."""
    what = _NAMES[kind]
    if not file.is_file():
        raise FileNotFoundError(f"{what} must be a file of {what}, and {file} is not there")
    arrays = load_arrays(file)
    for name, count in zip(kind._fields, _DIMENSIONS[kind], strict=True):
        if name in kind._field_defaults and name not in arrays:
            continue
        found = f"{arrays[name].ndim}" if name in arrays else "none"
        if found != str(count):
            raise ValueError(
                f"{what} must have {name} of {count} dimensions, and {file} has {found}"
            )
    return kind(**{name: arrays[name] for name in kind._fields if name in arrays})


def save_kept(kept: Samples | Film | Between, file: Path) -> None:
    """Write samples or a film."""
    save_arrays(file, {name: found for name, found in kept._asdict().items() if found is not None})


def draw_timed(
    model: Any, num: int, *, seed: int, labels: Tensor | None = None, **options: Any
) -> Samples:
    """Draw from a model on its device, and keep what is needed, and how long it took.

    Without labels those of a model of classes are drawn, see `labels_for`.
    """
    labels = labels_for(model, num, seed=seed) if labels is None else labels
    generator, start = generator_for(model, seed), time.perf_counter()
    with log.bar(total=num, unit=" images", desc="samples") as bar:
        options |= {"generator": generator, "progress": bar.update, "keep": _KEPT}
        found = draw_samples(model, num, labels=labels, **options)
    seconds = time.perf_counter() - start
    return Samples(*found, torch.tensor(seconds, dtype=torch.float64), labels)


def labels_for(model: Any, num: int, *, seed: int) -> Int64[Tensor, " n"] | None:
    """Return the classes of samples: of fewer samples the first; None of a model without."""
    return draw_labels(model.config, num, seed=derive_seed(seed, "labels"))


def generator_for(model: nn.Module, seed: int) -> torch.Generator:
    """Return a generator on a model's device."""
    return torch.Generator(next(model.parameters()).device).manual_seed(seed)


class ImageExperiment(Experiment[GenerationData]):
    """A comparison of models of images, measured in the same features."""

    drawn: ClassVar[Sequence[str]] = (SAMPLES,)  # folders of what is drawn from a model
    _reference: Reference | None = None

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return distributed.resolve_device(self.settings.machine.device)

    def check(self, data: GenerationData) -> None:
        """Raise if a file of weights is not there; tell of images that are asked for in vain."""
        for name in ("num_images", "likelihood_images", "frame_error_images"):
            asked = getattr(self.settings.evaluation, name, None) or 0
            if asked > len(data.test):
                log.say(f"{name}={asked:,}: all {len(data.test):,} test images count")
        if counts := told_classes(self.settings.classes, data):
            self.config["classes"] = counts
        check_features(self.settings.evaluation.features, self._video_weights)

    @property
    def _video_weights(self) -> str | None:
        return getattr(self.settings.evaluation, "video_weights", None)

    def described(self, data: GenerationData, compared: str) -> str:
        """Return a line about data and jobs."""
        count = self.settings.training.steps
        steps = f"{count:,} step{'' if count == 1 else 's'}"
        return f"{describe_images(data)}; {compared}; {steps} each, on {self.device}"

    def prepare(self, data: GenerationData, at: RunFolder) -> None:
        """Make the features."""
        self.reference(data, at)

    def reference(self, data: GenerationData, at: RunFolder) -> Reference:
        """Return the features of the experiment, made once.

        All seeds are measured in the same ones: spreads are those of the models alone.
        """
        if self._reference is None:
            folder, device = at.path / CLASSIFIER, self.settings.machine.device
            features = self.settings.evaluation.features
            self._reference = make_reference(
                data, features, folder, seed=0, device=device, video_weights=self._video_weights
            )
            self.real(data, at)
        return self._reference

    def real(self, data: GenerationData, at: RunFolder) -> dict[str, Any]:
        """Return what is measured of as many test images as samples, as if they were these."""
        count = self.settings.evaluation.num_samples
        return at.once(REFERENCE, lambda: self.reference(data, at).real(count))

    def write_report(
        self, data: GenerationData, results: Sequence[Any], at: RunFolder, **drawn: Any
    ) -> str:
        """Write the report and return it as text; what is drawn, `generate_report` says."""
        own: Any = {"settings": self.settings.to_dict(), "data": data, "recipe": at.recipe}
        report = generate_report(self.kind, results, self.real(data, at), **own, **drawn)
        return report.write(at.path)

    def draw(
        self,
        name: str,
        job: Job,
        at: RunFolder,
        make: Callable[[], Sequence[Samples | Film | Between]],
    ) -> list[Path]:
        """Return the files of what is drawn from a model, made with the same seed where missing."""
        files = [at.path / part / f"{name}.npz" for part in self.drawn]
        if not all(file.exists() for file in files):
            if at.has(job.name):
                log.say(f"samples of {name} are not there and are drawn anew")
            try:
                found = make()
            except FileNotFoundError as error:
                raise FileNotFoundError(
                    f"{error}; delete {at.results_file(job.name)} and resume, so that all of this "
                    "arm is made anew"
                ) from error
            for file, kept in zip(files, found, strict=True):
                save_kept(kept, file)
        return files


def check_one_process(device: str) -> None:
    """Raise if there is no such device, or torchrun has started several processes."""
    distributed.resolve_device(device)
    if distributed.world_size() > 1:
        raise ValueError("generate runs in one process, and torchrun started several")


def load_images(settings: Any, options: Options) -> GenerationData:
    """Return the images that settings name."""
    return load_generation_data(
        settings.data,
        image_size=settings.reading.image_size,
        skip_unreadable=settings.reading.skip_unreadable,
        data_dir=options.data_dir,
        download=options.download,
    )


def told_classes(settings: ClassTraining, data: GenerationData) -> dict[str, int]:
    """Return the training images of each class that models are told of; none without labels.

    Raises:
        ValueError: labels are asked for, and there are none, or none of a class.
    """
    if not settings.labels:
        return {}
    counts = data.class_counts
    for name in (name for name, count in counts.items() if not count):
        raise ValueError(
            f"labels needs training images of each class, and {data.name} has none of {name!r}"
        )
    if not counts:
        raise ValueError(
            f"labels needs data with classes, and {data.name} has none: leave it out, or take a "
            "folder with a sub-folder for each class"
        )
    return counts


def labels_of(
    settings: ClassTraining,
    data: GenerationData,
    part: Literal["train", "test"],
    count: int | None = None,
) -> Int64[Tensor, " n"] | None:
    """Return a part's first labels, as models are told them; None of models without classes."""
    return getattr(data.labels, part)[:count] if settings.labels else None


def describe_images(data: GenerationData) -> str:
    """Return name, numbers and sizes."""
    return (
        f"{data.name}: {len(data.train):,} training and {len(data.test):,} test images of "
        f"{data.channels}x{data.image_size}x{data.image_size}"
    )


def videos_of(
    batch: Batch, videos: PseudoVideoConfig, step: Step, *, seed: int
) -> Float[Tensor, "n t c h w"]:
    """Return the videos of numbered images; their noise is that of seed, epoch and image."""
    given: Any = {"seed": derive_seed(seed, "videos"), "epoch": step.epoch, "index": batch[1]}
    return pseudo_videos(to_unit(batch[0]), videos, **given)


def seeded(build: Callable[[], Module], seed: int) -> Module:
    """Return a new model whose weights depend on the seed alone."""
    with fork_random(torch.device("cpu")):
        torch.manual_seed(seed)
        return build()


class Trained(NamedTuple):
    """A trained model in eval mode on the CPU, the part that it is, and how its training ended."""

    part: Any
    model: Any
    steps: int
    seconds: float


class Part(Generic[Given]):
    """A model that is trained in a folder of its own: a run of `fit`, with `pretrained/` in it.

    Attributes:
        kind: as `config.json` names it.
        name: of such a part in messages.
        settings_class: of what its training depends on.
        model_class: of the model.
        layout: in which the weights of convolutions lie under bf16.
    """

    kind: ClassVar[str]
    name: ClassVar[str]
    settings_class: ClassVar[type[Settings]]
    model_class: ClassVar[type[Pretrained]]
    layout: ClassVar[torch.memory_format] = torch.contiguous_format

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    def build(self, data: Given) -> tuple[nn.Module, Pretrained]:
        """Return what is trained, and the new model in it; weights depend on the seed alone."""
        raise NotImplementedError

    def batch(self, data: Any) -> Batch:
        """Return all that is trained on: images and their numbers, and of classes the labels."""
        return data.train, torch.arange(len(data.train))

    def classes(self, data: Given) -> dict[str, int]:
        """Return the training images of each class that the model is told of, if of any."""
        return {}

    def loss(self, model: Any, batch: Batch, step: Step) -> LossParts:
        """Return the loss of a batch."""
        raise NotImplementedError

    def train_config(self) -> TrainConfig | None:
        """Return the settings of the training loop; None for a model that is taken as it is."""
        return self.settings.train_config()

    def trial(self, data: Any) -> tuple[nn.Module, Batch]:
        """Return a model to try a few steps with, and batches for them."""
        return self.build(data)[0], self.batch(data)

    def training_seconds(self, data: Any) -> float:
        """Return about how long the training takes, by the time of its second step."""
        config = self.train_config()
        if config is None:
            return 0.0
        device = distributed.resolve_device(config.device)
        with fork_random(device):
            model, batch = self.trial(data)
            few = tuple(tensor[: 3 * config.batch_size] for tensor in batch)
            trainer = Trainer(model, few, config, device, self.loss)
            trainer.train_step()
            start = time.perf_counter()
            trainer.train_step()
            trainer.monitor.flush()  # waits for a device
            return (time.perf_counter() - start) * (config.steps or 0)

    def train(self, data: Given, folder: Path, *, recipe: str, label: str) -> Trained:
        """Train the model, from where it stopped, and store it in `pretrained/`."""
        if read_finished(folder) is None or not (folder / PRETRAINED / MANIFEST).is_file():
            trained, model = self.build(data)
            identity = config_values(self.kind, recipe, self.settings.to_dict())
            if classes := self.classes(data):
                identity["classes"] = classes
            if config := self.train_config():
                if config.precision == "bf16":
                    # Typed for tensors alone, in torch's own words.
                    trained.to(memory_format=self.layout)  # pyright: ignore[reportCallIssue]
                known: Any = {"loss": self.loss, "label": label, "metadata": identity}
                fit(trained, self.batch(data), config, folder, **known)
            else:
                prepare_run_dir(folder, identity, resume=True)
                write_json(folder / FINISHED, {"steps": 0, "seconds": 0.0})
            model.save_pretrained(folder / PRETRAINED)
            write_manifest(folder / PRETRAINED)
        return self.read(folder)

    def read(self, folder: Path) -> Trained:
        """Read the model; raise if it is not trained, or damaged."""
        folder = run_folder(folder)
        finished = read_finished(folder)
        if finished is None:
            raise FileNotFoundError(
                f"{self.name} must be a trained one, and the training in {folder} is not finished: "
                "resume it"
            )
        check_manifest(folder / PRETRAINED)
        model = load_pretrained(folder / PRETRAINED, self.model_class)
        return Trained(self, model, finished["steps"], finished["seconds"])

    @classmethod
    def find(cls: type[PartT], folder: Path) -> PartT | None:
        """Return the part that a folder holds; None where it holds none of this kind."""
        saved = saved_settings(run_folder(folder), cls.kind, cls.settings_class)
        return None if saved is None else cls(saved[1])

    @classmethod
    def open(cls, folder: Path) -> Trained:
        """Read the model of a folder; raise if it holds none, or is damaged."""
        part = cls.find(folder)
        if part is None:
            raise FileNotFoundError(
                f"{cls.name} must be a folder of `generate {cls.name}`, and {folder} holds none"
            )
        return part.read(folder)


def run_folder(folder: Path) -> Path:
    """Return the folder of the run whose model a folder holds: itself, or that it lies in."""
    inside = folder.name == PRETRAINED and (folder / MANIFEST).is_file()
    return folder.parent if inside and (folder.parent / CONFIG).is_file() else folder
