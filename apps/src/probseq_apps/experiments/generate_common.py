"""Shared functions of `probseq generate`: files of samples, and trained models."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn

from probseq.pretrained import Pretrained
from probseq_apps.data.images import GenerationData, load_generation_data
from probseq_apps.engine import distributed, log
from probseq_apps.engine.config import TrainConfig, derive_seed
from probseq_apps.engine.files import CONFIG, load_arrays, read_finished, save_arrays
from probseq_apps.engine.fit import fit
from probseq_apps.engine.trainer import Batch, Loss, TrainStep, fork_random, training_seconds
from probseq_apps.experiment import RunFolder
from probseq_apps.experiments.features import check_features, make_reference
from probseq_apps.options import Options
from probseq_apps.settings.generate import ClassSettings, GenerateSettings, OnImages
from probseq_apps.settings.models import DiffusionSettings, HvaeSettings
from pseudovideo.beyond.sample_evaluator import SampleEvaluator
from pseudovideo.corruptions import PseudoVideoConfig, pseudo_videos
from pseudovideo.labels import draw_labels
from pseudovideo.pixels import to_unit
from pseudovideo.pretrained import load_pretrained
from pseudovideo.samples import draw_samples

CLASSIFIER, REFERENCE, SAMPLES, PRETRAINED = "classifier", "reference", "samples", "pretrained"
# Levels above are white.
_THRESHOLD = 127
# Videos whose frames are stored and measured.
_WHOLE_VIDEOS = 1000
# Of the commands that compare models of images.
ImageSettings: TypeAlias = GenerateSettings | DiffusionSettings | HvaeSettings


class Samples(NamedTuple):
    """Samples of a model: last frames of all, the first videos whole, seconds that it took."""

    images: UInt8[Tensor, "n c h w"]
    videos: UInt8[Tensor, "m t c h w"]
    seconds: Float[Tensor, ""]
    labels: Int64[Tensor, " n"] | None = None  # of samples of classes


Module = TypeVar("Module", bound=nn.Module)
PretrainedT = TypeVar("PretrainedT", bound=Pretrained)


def load_samples(file: Path) -> Samples:
    """Read samples."""
    return Samples(**load_arrays(file))


def save_samples(samples: Samples, file: Path) -> None:
    """Write samples."""
    arrays = samples._asdict().items()
    save_arrays(file, {name: array for name, array in arrays if array is not None})


def draw_timed(
    model: Any, num: int, *, seed: int, labels: Tensor | None = None, **options: Any
) -> Samples:
    """Draw from a model on its device, and keep what is needed, and how long it took.

    Without labels those of a model of classes are drawn, see `labels_for`.
    """
    labels = labels_for(model, num, seed=seed) if labels is None else labels
    generator, start = generator_for(model, seed), time.perf_counter()
    with log.bar(total=num, unit=" images", desc="samples") as bar:
        options |= {"generator": generator, "progress": bar.update, "keep": _WHOLE_VIDEOS}
        images, videos = draw_samples(model, num, labels=labels, **options)
    seconds = time.perf_counter() - start
    return Samples(images, videos, torch.tensor(seconds, dtype=torch.float64), labels)


def labels_for(model: Any, num: int, *, seed: int) -> Int64[Tensor, " n"] | None:
    """Return the classes of samples: of fewer samples the first; None of a model without."""
    if model.config.num_classes is None:
        return None
    return draw_labels(model.config, num, seed=derive_seed(seed, "labels"))


def generator_for(model: nn.Module, seed: int) -> torch.Generator:
    """Return a generator on a model's device."""
    return torch.Generator(next(model.parameters()).device).manual_seed(seed)


# -- Comparisons ----------------------------------------------------------------------------------


class ImageRun:
    """Images, and the features that their models are measured in, made once.

    All seeds are measured in the same ones: spreads are those of the models alone.
    """

    def __init__(self, data: GenerationData, settings: ImageSettings) -> None:
        self.data, self.settings = data, settings
        self._reference: SampleEvaluator | None = None

    def reference(self, at: RunFolder) -> SampleEvaluator:
        """Return the features of the run in a folder."""
        if self._reference is None:
            evaluation, device = self.settings.evaluation, self.settings.machine.device
            self._reference = make_reference(
                self.data, evaluation.features, at.path / CLASSIFIER, seed=0, device=device
            )
            self.real(at)
        return self._reference

    def real(self, at: RunFolder) -> dict[str, Any]:
        """Return what is measured of as many test images as samples, as if they were these."""
        count = self.settings.evaluation.num_samples
        return at.once(REFERENCE, lambda: self.reference(at).real(count))


def load(settings: ImageSettings, options: Options) -> ImageRun:
    """Read the images; raise if the machine is not as the settings want it."""
    distributed.join(device_of(settings))
    return ImageRun(load_images(settings, options), settings)


def device_of(settings: ImageSettings) -> torch.device:
    """Return where a command runs."""
    return distributed.resolve_device(settings.machine.device)


def check_run(settings: ImageSettings, data: GenerationData) -> None:
    """Raise if a file of weights is not there; tell of images that are asked for in vain."""
    evaluation = settings.evaluation
    for name in ("num_images", "likelihood_images"):
        asked = getattr(evaluation, name, None) or 0
        if asked > len(data.test):
            log.say(f"{name}={asked:,}: all {len(data.test):,} test images count")
    conditioning_classes(settings.classes, data)
    check_features(evaluation.features)


def model_config(settings: ImageSettings, data: GenerationData) -> dict[str, Any]:
    """Return settings, and the training images of each class if models learn classes."""
    counts = conditioning_classes(settings.classes, data)
    return {"settings": settings.to_dict(), **({"classes": counts} if counts else {})}


def run_config(settings: ImageSettings, run: ImageRun) -> dict[str, Any]:
    """Return the `model_config` of a run."""
    return model_config(settings, run.data)


def describe_run(settings: ImageSettings, data: GenerationData, compared: str) -> str:
    """Return notes on the data, and a line about data and jobs."""
    count = settings.training.steps
    steps = f"{count:,} step{'' if count == 1 else 's'}"
    images = f"{len(data.train):,} training and {len(data.test):,} test images"
    size = f"{data.channels}x{data.image_size}x{data.image_size}"
    models = f"{compared}; {steps} each, on {device_of(settings)}"
    line = f"{data.name}: {images} of {size}; {models}"
    return "\n".join([*(f"note: {note}" for note in data.notes), line])


def make_features(settings: ImageSettings, run: ImageRun, at: RunFolder) -> None:
    """Make the features before several processes need them."""
    run.reference(at)


def store_samples(file: Path, draw: Callable[[], Samples]) -> None:
    """Write what the main process draws, unless the file is there."""
    if not distributed.broadcast(file.exists()):
        distributed.main_alone(lambda: save_samples(draw(), file))


# -- Images and classes ---------------------------------------------------------------------------


def load_images(settings: OnImages, options: Options) -> GenerationData:
    """Return the images that settings name, black and white if so asked."""
    data = load_generation_data(
        settings.data,
        image_size=settings.reading.image_size,
        skip_unreadable=settings.reading.skip_unreadable,
        data_dir=options.data_dir,
        download=options.download,
    )
    if not (isinstance(settings, HvaeSettings) and settings.binarize):
        return data
    if data.channels != 1:
        raise ValueError(
            f"binarize is for grey images, and {data.name} has {data.channels} channels: "
            "turn it off"
        )
    images = {name: getattr(data, name) for name in ("train", "validation", "test")}
    binary = {name: (grey > _THRESHOLD).to(torch.uint8) * 255 for name, grey in images.items()}
    note = f"{data.name}: pixels above {_THRESHOLD} white, all others black"
    return replace(data, **binary, notes=(*data.notes, note))


def conditioning_classes(settings: ClassSettings, data: GenerationData) -> dict[str, int]:
    """Return the training images of each class that models learn; none without labels."""
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
    settings: ClassSettings,
    data: GenerationData,
    split: Literal["train", "test"],
    count: int | None = None,
) -> Int64[Tensor, " n"] | None:
    """Return the first labels of a part, as models learn them; None of models without classes."""
    return getattr(data.labels, split)[:count] if settings.labels else None


def videos_of(
    batch: Batch, videos: PseudoVideoConfig, step: TrainStep, *, seed: int
) -> Float[Tensor, "n t c h w"]:
    """Return the videos of numbered images; their noise is that of seed, epoch and image."""
    noise_seed = derive_seed(seed, "videos")
    images, index = to_unit(batch[0]), batch[1]
    return pseudo_videos(images, videos, seed=noise_seed, epoch=step.epoch, index=index)


def seeded(build: Callable[[], Module], seed: int) -> Module:
    """Return a new model whose weights depend on the seed alone."""
    with fork_random(torch.device("cpu")):
        torch.manual_seed(seed)
        return build()


# -- Trained models -------------------------------------------------------------------------------


class TrainingJob(NamedTuple):
    """A model to train, and what it is trained on."""

    objective: nn.Module  # what is trained
    model: Pretrained  # in it: what is stored
    batch: Batch  # all examples
    loss: Loss
    config: TrainConfig
    layout: torch.memory_format = torch.contiguous_format  # of convolutions under bf16

    def seconds(self, device: torch.device) -> float:
        """Return how long it will take."""
        return training_seconds(self.objective, self.batch, self.config, device, self.loss)


class LossModule(nn.Module):
    """A model whose call is one of its methods, a loss: what several processes train."""

    def __init__(self, model: nn.Module, method: str) -> None:
        super().__init__()
        self.model, self.method = model, method

    def forward(self, *tensors: Tensor, **options: Any) -> Any:
        """Return what the method returns."""
        return getattr(self.model, self.method)(*tensors, **options)


def train_model(
    make: Callable[[], TrainingJob],
    folder: Path,
    kind: str,
    recipe: str,
    settings: ImageSettings,
    data: GenerationData,
) -> Mapping[str, Any]:
    """Train a model, from where it stopped, and store it in `pretrained/` of a folder of its own.

    Return how its training ended: `steps` and `seconds`.

    The folder's `config.json` has the kind, the recipe and the settings, and the classes of the
    data that the model learns.
    """
    training, finished = make(), read_finished(folder) or {}
    trained = finished.get("steps") == training.config.steps
    if not distributed.broadcast(trained and (folder / PRETRAINED / CONFIG).is_file()):
        if training.config.precision == "bf16":
            # Typed for tensors alone, in torch's own words.
            training.objective.to(memory_format=training.layout)  # pyright: ignore[reportCallIssue]
        fit(
            training.objective,
            training.batch,
            training.config,
            folder,
            loss=training.loss,
            label=folder.name,
            metadata={"experiment": kind, "recipe": recipe, **model_config(settings, data)},
        )

        distributed.main_alone(partial(training.model.save_pretrained, folder / PRETRAINED))
    return read_finished(folder) or {}


def read_model(folder: Path, kind: type[PretrainedT], noun: str) -> PretrainedT:
    """Read the model of a folder; raise if it is not trained, or damaged."""
    if read_finished(folder) is None:
        raise FileNotFoundError(
            f"{noun} must be a trained one, and the training in {folder} is not finished: resume it"
        )
    return load_pretrained(folder / PRETRAINED, kind)


def model_folder(folder: Path) -> Path:
    """Return the folder of a training: the given one, or that whose `pretrained/` it is."""
    inside = folder.name == PRETRAINED and (folder / CONFIG).is_file()
    return folder.parent if inside and (folder.parent / CONFIG).is_file() else folder
