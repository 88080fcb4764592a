"""What the commands of `probseq generate` share: features, files of samples, and trained parts."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from probseq.metrics.image import (
    ClassifierFeatures,
    FeatureExtractor,
    FeatureMoments,
    InceptionFeatures,
    RandomConvolution,
    SmallClassifier,
)
from probseq_apps.data.images import GenerationData, load_generation_data, to_unit
from probseq_apps.engine import distributed, log
from probseq_apps.engine.config import TrainConfig
from probseq_apps.engine.files import (
    MANIFEST,
    check_manifest,
    load_arrays,
    read_finished,
    save_arrays,
    write_manifest,
)
from probseq_apps.engine.fit import fit
from probseq_apps.engine.trainer import Batch, Loss, LossParts, Step, fork_random
from probseq_apps.experiment import Experiment, Job, RunFolder
from probseq_apps.options import Options
from probseq_apps.settings.generate import Features
from pseudovideo.evaluation import generation, reference_moments
from pseudovideo.pretrained import Model, Pretrained, load_pretrained
from pseudovideo.samples import Film, draw_batches

CLASSIFIER, REFERENCE, SAMPLES, PRETRAINED = "classifier", "reference", "samples", "pretrained"
# Of the classifier; ten epochs of a small data set pass in a second.
_TRAINING = {"batch_size": 64, "learning_rate": 1e-3, "schedule": "cosine", "select": "last"}
_EVERY = {"validate_every": 10, "checkpoint_every": 10}


class Reference(NamedTuple):
    """Features that all models of an experiment are measured by, and those of training images."""

    extractor: FeatureExtractor
    moments: FeatureMoments

    def measure(self, images: UInt8[Tensor, "n c h w"]) -> dict[str, Any]:
        """Measure samples."""
        return generation(images, self.moments, self.extractor)


class Samples(NamedTuple):
    """What was drawn: last frames of all samples, the first videos whole, seconds that it took."""

    images: UInt8[Tensor, "n c h w"]
    videos: UInt8[Tensor, "m t c h w"]
    seconds: Float[Tensor, ""]


Module = TypeVar("Module", bound=nn.Module)
Kept = TypeVar("Kept", Samples, Film)
_DIMENSIONS = {Samples: (4, 5, 0), Film: (6, 1)}


def load_kept(kind: type[Kept], file: Path) -> Kept:
    """Read samples or a film; raise if it is not there, damaged, or something else."""
    what = "samples" if kind is Samples else "process"
    if not file.is_file():
        raise FileNotFoundError(f"{what} must be a file of {what}, and {file} is not there")
    arrays = load_arrays(file)
    for name, count in zip(kind._fields, _DIMENSIONS[kind], strict=True):
        found = f"{arrays[name].ndim}" if name in arrays else "none"
        if found != str(count):
            raise ValueError(
                f"{what} must have {name} of {count} dimensions, and {file} has {found}"
            )
    return kind(*(arrays[name] for name in kind._fields))


def collect_samples(
    draw: Callable[[int, torch.Generator], Tensor], num: int, device: torch.device, *, seed: int
) -> Samples:
    """Draw videos part by part and keep what is needed of them."""
    generator, start = torch.Generator(device).manual_seed(seed), time.perf_counter()
    with log.bar(total=num, unit=" images") as bar:
        bar.set_description_str("samples")
        found = draw_batches(lambda count: draw(count, generator), num, progress=bar.update)
    seconds = time.perf_counter() - start
    return Samples(*found, torch.tensor(seconds, dtype=torch.float64))


def save_kept(file: Path, kept: Samples | Film) -> None:
    """Write the arrays, all or nothing."""
    save_arrays(file, kept._asdict())


class ImageExperiment(Experiment[GenerationData]):
    """A comparison of models of images, measured in the same features."""

    _reference: Reference | None = None

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return distributed.resolve_device(self.settings.machine.device)

    def check(self, data: GenerationData) -> None:
        """Raise if a file of weights is not there."""
        weights = self.settings.evaluation.features.inception_weights
        if weights is not None and not Path(weights).is_file():
            raise FileNotFoundError(
                f"inception_weights must be a file of Inception's weights, and {weights} is not "
                "there"
            )

    def described(self, data: GenerationData, compared: str) -> str:
        """Return a line about data and jobs."""
        count = self.settings.training.steps
        steps = f"{count:,} step{'' if count == 1 else 's'}"
        return f"{describe_images(data)}; {compared}; {steps} each, on {self.device}"

    def reference(self, data: GenerationData, at: RunFolder) -> Reference:
        """Return the features of the experiment, made once.

        All seeds are measured in the same ones: spreads are those of the models alone.
        """
        if self._reference is None:
            folder, device = at.path / CLASSIFIER, self.settings.machine.device
            features = self.settings.evaluation.features
            extractor = make_extractor(data, features, folder, seed=0, device=device)
            self._reference = Reference(extractor, reference_moments(extractor, data.train))
            self.real(data, at)
        return self._reference

    def real(self, data: GenerationData, at: RunFolder) -> dict[str, Any]:
        """Return what is measured of the test images as if they were samples."""
        return at.once(REFERENCE, lambda: self.reference(data, at).measure(data.test))


def lost(error: FileNotFoundError, job: Job, at: RunFolder) -> FileNotFoundError:
    """Return an error that says what to do where a model is gone, too."""
    return FileNotFoundError(
        f"{error}; delete {at.results_file(job.name)} and resume, so that all of this arm is made "
        "anew"
    )


def check_one_process(device: str) -> None:
    """Raise if there is no such device, or torchrun has started several processes."""
    distributed.resolve_device(device)
    if distributed.world_size() > 1:
        raise ValueError("generate runs in one process, and torchrun started several")


def load_images(
    settings: Any, options: Options, data: str | None = None, image_size: int | None = None
) -> GenerationData:
    """Return the images that settings name, unless others are."""
    return load_generation_data(
        data or settings.data,
        image_size=image_size or settings.reading.image_size,
        data_dir=options.data_dir,
        download=options.download,
    )


def describe_images(data: GenerationData) -> str:
    """Return name, numbers and sizes."""
    return (
        f"{data.name}: {len(data.train):,} training and {len(data.test):,} test images of "
        f"{data.channels}x{data.image_size}x{data.image_size}"
    )


def numbered(images: UInt8[Tensor, "n c h w"]) -> Batch:
    """Return images with their numbers, of which the noise of their videos is drawn."""
    return images, torch.arange(len(images))


def seeded(build: Callable[[], Module], seed: int) -> Module:
    """Return a new model whose weights depend on the seed alone."""
    with fork_random(torch.device("cpu")):
        torch.manual_seed(seed)
        return build()


def train(
    folder: Path,
    build: Callable[[], tuple[nn.Module, Pretrained]],
    batch: Batch,
    config: TrainConfig,
    *,
    loss: Loss,
    identity: dict[str, Any],
    label: str,
) -> None:
    """Train what `build` gives, from where it stopped, and store its model in `pretrained/`."""
    if read_finished(folder) is not None and (folder / PRETRAINED / MANIFEST).is_file():
        return
    trained, model = build()
    fit(trained, batch, config, folder, loss=loss, label=label, metadata=identity)
    store(model, folder)


def store(model: Pretrained, folder: Path) -> None:
    """Write a trained model beside its training."""
    model.save_pretrained(folder / PRETRAINED)
    write_manifest(folder / PRETRAINED)


def open_trained(
    folder: Path, kind: type[Model], what: str, *, found: object
) -> tuple[Model, dict[str, Any]]:
    """Return a trained model on the CPU, and how its training ended; raise if there is none."""
    if not found:
        holder = f"a folder of `generate {what}`"
        raise FileNotFoundError(f"{what} must be {holder}, and {folder} holds none")
    finished = read_finished(folder)
    if finished is None:
        raise FileNotFoundError(
            f"{what} must be a trained one, and the training in {folder} is not finished: resume it"
        )
    check_manifest(folder / PRETRAINED)
    return load_pretrained(folder / PRETRAINED, kind), finished


def make_extractor(
    data: GenerationData, settings: Features, folder: Path, *, seed: int, device: str
) -> FeatureExtractor:
    """Return Inception if its weights are named, else a classifier, else random features.

    The classifier is trained here, as a run of its own in `folder` that can be resumed.
    """
    place = distributed.resolve_device(device)
    if settings.inception_weights is not None:
        return InceptionFeatures(settings.inception_weights).to(place)
    if data.labels is None:
        return RandomConvolution(data.channels, seed=0).to(place)
    classifier = SmallClassifier(data.channels, len(data.class_names), seed=seed)
    steps = settings.classifier_steps
    own: dict[str, Any] = {**_TRAINING, **_EVERY, "seed": seed, "device": device}
    fit(
        classifier,
        (data.train, data.labels.train),
        TrainConfig(steps=steps, warmup_steps=steps // 20, **own),
        folder,
        loss=classifier_loss,
        score=classifier_accuracy,
        held_out=(data.validation, data.labels.validation),
        label="classifier",
        metadata={"experiment": "generate-classifier", "data": data.name},
    )
    return ClassifierFeatures(classifier.trunk, classifier.head, name="classifier").to(place)


def classifier_loss(model: nn.Module, batch: Batch, step: Step) -> LossParts:
    """Return the cross-entropy of a batch of images and labels."""
    images, labels = batch
    logits = model(to_unit(images)).float()
    right = (logits.detach().argmax(-1) == labels).float().mean()
    return LossParts(F.cross_entropy(logits, labels), {"accuracy": right})


def classifier_accuracy(model: nn.Module, batches: Iterable[Batch]) -> float:
    """Return the share of images that the classifier is right about."""
    found = [(model(to_unit(images)).argmax(-1) == labels) for images, labels in batches]
    right = torch.cat(found)
    return int(right.sum()) / len(right)
