"""What samples are measured by: features, and their moments over the training images; and files."""

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn

from probseq.metrics.image import (
    ClassifierFeatures,
    FeatureExtractor,
    FeatureMoments,
    InceptionFeatures,
    RandomConvolution,
)
from probseq_apps.data.images import GenerationData, load_generation_data, to_unit
from probseq_apps.engine import distributed, log
from probseq_apps.engine.config import TrainConfig
from probseq_apps.engine.files import (
    MANIFEST,
    load_arrays,
    read_finished,
    save_arrays,
    write_manifest,
)
from probseq_apps.engine.fit import fit
from probseq_apps.engine.trainer import Batch, Loss, LossParts, Step
from probseq_apps.experiment import Experiment, Job
from probseq_apps.folder import RunFolder
from probseq_apps.options import Options
from probseq_apps.settings.generate import Features
from pseudovideo.evaluation import generation, reference_moments
from pseudovideo.pretrained import Pretrained

CLASSIFIER, REFERENCE, SAMPLES, PRETRAINED = "classifier", "reference", "samples", "pretrained"
_WIDTH, _FEATURES = 32, 64
# Epochs between two validations and checkpoints; of a small data set they pass in a second.
_EPOCHS_BETWEEN = 10
# Videos that are kept whole, for pictures; drawn at once: keys and values of as many must fit.
_KEPT_VIDEOS, _BATCH = 64, 250


class Reference(NamedTuple):
    """The features that all models of an experiment are measured by.

    Attributes:
        extractor: of features.
        moments: of the training images' features.
        real: what is measured of the test images as if they were samples.
    """

    extractor: FeatureExtractor
    moments: FeatureMoments
    real: dict[str, Any]

    @classmethod
    def of(
        cls, data: GenerationData, settings: Features, at: RunFolder, *, device: str
    ) -> "Reference":
        """Make the features of an experiment, from the classifier in its folder if it has one."""
        # All seeds are measured in the same features: spreads are those of the models alone.
        extractor = make_extractor(data, settings, at.path / CLASSIFIER, seed=0, device=device)
        moments = reference_moments(extractor, data.train)
        real = at.once(REFERENCE, lambda: generation(data.test, moments, extractor))
        return cls(extractor, moments, real)

    def measure(self, images: UInt8[Tensor, "n c h w"]) -> dict[str, Any]:
        """Measure samples."""
        return generation(images, self.moments, self.extractor)


class Samples(NamedTuple):
    """What was drawn.

    Attributes:
        images: last frames of all samples.
        videos: the first samples with all their frames.
        seconds: time that drawing and decoding took.
    """

    images: UInt8[Tensor, "n c h w"]
    videos: UInt8[Tensor, "m t c h w"]
    seconds: float

    def save(self, file: Path) -> None:
        """Write the arrays, all or nothing."""
        seconds = torch.tensor(self.seconds, dtype=torch.float64)
        save_arrays(file, {"images": self.images, "videos": self.videos, "seconds": seconds})

    @classmethod
    def load(cls, file: Path) -> "Samples":
        """Read what `save` wrote; raise if it is not there, damaged, or something else."""
        images, videos, seconds = _arrays(file, "samples", {"images": 4, "videos": 5, "seconds": 0})
        return cls(images, videos, float(seconds))


class Process(NamedTuple):
    """Snapshots of how a few samples came into being.

    An image model has predictions of the image, T = 1; a video model all its frames, those that
    have not begun being grey; an HVAE the image of each level, T = 1.

    Attributes:
        frames: of n samples at k snapshots.
        done: denoising steps, over all stages, or levels that were done; rising to their total.
    """

    frames: UInt8[Tensor, "n k t c h w"]
    done: Int64[Tensor, " k"]

    def save(self, file: Path) -> None:
        """Write the arrays, all or nothing."""
        save_arrays(file, {"frames": self.frames, "done": self.done})

    @classmethod
    def load(cls, file: Path) -> "Process":
        """Read what `save` wrote; raise if it is not there, damaged, or something else."""
        frames, done = _arrays(file, "process", {"frames": 6, "done": 1})
        if len(done) != frames.shape[1]:
            raise ValueError(
                f"process must have a number of steps for each snapshot, not so {file}"
            )
        return cls(frames, done)


def collect_samples(
    draw: Callable[[int, torch.Generator], Float[Tensor, "n f c y x"]],
    num: int,
    device: torch.device,
    *,
    seed: int,
) -> Samples:
    """Draw videos part by part and keep what is needed of them."""
    generator = torch.Generator(device).manual_seed(seed)
    images: list[Tensor] = []
    videos: list[Tensor] = []
    start = time.perf_counter()
    with log.bar(total=num, unit=" images") as bar:
        bar.set_description_str("samples")
        for first in range(0, num, _BATCH):
            count = min(_BATCH, num - first)
            frames = to_bytes(draw(count, generator))
            images.append(frames[:, -1])
            videos.append(frames[: max(0, _KEPT_VIDEOS - first)])
            bar.update(count)
    return Samples(torch.cat(images), torch.cat(videos), time.perf_counter() - start)


def to_bytes(frames: Float[Tensor, "*n c h w"]) -> UInt8[Tensor, "*n c h w"]:
    """Return pixels in -1..1 as bytes on the CPU; the noise of pseudo videos goes beyond."""
    return ((frames.float().clamp(-1, 1) + 1.0) * 127.5).round().to(torch.uint8).cpu()


def _arrays(file: Path, what: str, dimensions: Mapping[str, int]) -> list[Tensor]:
    if not file.is_file():
        raise FileNotFoundError(f"{what} must be a file of {what}, and {file} is not there")
    arrays = load_arrays(file)
    if missing := [name for name in dimensions if name not in arrays]:
        raise ValueError(f"{what} must be a file of {what}, and {file} has no {missing[0]}")
    found = [arrays[name] for name in dimensions]
    for array, (name, count) in zip(found, dimensions.items(), strict=True):
        if array.ndim != count:
            raise ValueError(
                f"{what} must have {name} of {count} dimensions, and {file} has {array.ndim}"
            )
    return found


class ImageExperiment(Experiment[GenerationData]):
    """A comparison of models of images, measured in the same features."""

    _reference: Reference | None = None

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return distributed.resolve_device(self.settings.machine.device)

    def reference(self, data: GenerationData, at: RunFolder) -> Reference:
        """Return the features of the experiment, made once."""
        if self._reference is None:
            features, machine = self.settings.evaluation.features, self.settings.machine
            self._reference = Reference.of(data, features, at, device=machine.device)
        return self._reference

    def real(self, data: GenerationData, at: RunFolder) -> dict[str, Any]:
        """Return what is measured of the test images as if they were samples."""
        return at.once(REFERENCE, lambda: self.reference(data, at).real)


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


def load_images(settings: Any, options: Options) -> GenerationData:
    """Return the images that settings name."""
    return load_generation_data(
        settings.data,
        image_size=settings.reading.image_size,
        data_dir=options.data_dir,
        download=options.download,
    )


def describe_images(data: GenerationData) -> str:
    """Return name, numbers and sizes."""
    return (
        f"{data.name}: {len(data.train):,} training and {len(data.test):,} test images of "
        f"{data.channels}x{data.image_size}x{data.image_size}"
    )


def count_steps(steps: int) -> str:
    """Return a number of steps in words."""
    return f"{steps:,} step{'' if steps == 1 else 's'}"


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
    model.save_pretrained(folder / PRETRAINED)
    write_manifest(folder / PRETRAINED)


def finished_run(folder: Path, what: str, holds: str, *, found: bool = True) -> dict[str, Any]:
    """Return how a training ended; raise if the folder holds none, or one that is not finished."""
    if not found:
        raise FileNotFoundError(f"{what} must be a folder of {holds}, and {folder} holds none")
    finished = read_finished(folder)
    if finished is None:
        raise FileNotFoundError(
            f"{what} must be a trained one, and the training in {folder} is not finished: resume it"
        )
    return finished


def numbered(
    images: UInt8[Tensor, "n c h w"],
) -> tuple[UInt8[Tensor, "n c h w"], Int64[Tensor, " n"]]:
    """Return images with their numbers, of which the noise of their videos is drawn."""
    return images, torch.arange(len(images))


class SmallClassifier(nn.Module):
    """Three strided convolutions, a layer of 64 features, and one of logits."""

    def __init__(self, channels: int, num_classes: int, *, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.trunk = nn.Sequential(
                *_convolution(channels, _WIDTH, stride=1),
                *_convolution(_WIDTH, 2 * _WIDTH, stride=2),
                *_convolution(2 * _WIDTH, 2 * _WIDTH, stride=2),
                nn.AdaptiveAvgPool2d(4),
                nn.Flatten(),
                nn.Linear(32 * _WIDTH, _FEATURES),
                nn.GELU(),
            )
            self.head = nn.Linear(_FEATURES, num_classes)

    def forward(self, images: Float[Tensor, "n c h w"]) -> Float[Tensor, "n k"]:
        """Return the logits of images in -1..1."""
        return self.head(self.trunk(images))


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
    fit(
        classifier,
        (data.train, data.labels.train),
        TrainConfig(
            steps=steps,
            batch_size=64,
            learning_rate=1e-3,
            warmup_steps=steps // 20,
            schedule="cosine",
            select="last",
            validate_every=_EPOCHS_BETWEEN,
            checkpoint_every=_EPOCHS_BETWEEN,
            seed=seed,
            device=device,
        ),
        folder,
        loss=classifier_loss,
        score=classifier_accuracy,
        held_out=(data.validation, data.labels.validation),
        label="classifier",
        metadata={"experiment": "generate-classifier", "data": data.name},
    )
    return ClassifierFeatures(classifier.trunk, classifier.head, name="classifier").to(place)


def check_features(settings: Features) -> None:
    """Raise if a file of weights is not there."""
    weights = settings.inception_weights
    if weights is not None and not Path(weights).is_file():
        raise FileNotFoundError(
            f"inception_weights must be a file of Inception's weights, and {weights} is not there"
        )


def classifier_loss(model: nn.Module, batch: Batch, step: Step) -> LossParts:
    """Return the cross-entropy of a batch of images and labels."""
    images, labels = batch
    logits = model(to_unit(images)).float()
    right = (logits.detach().argmax(-1) == labels).float().mean()
    return LossParts(F.cross_entropy(logits, labels), {"accuracy": right})


def classifier_accuracy(model: nn.Module, batches: Iterable[Batch]) -> float:
    """Return the share of images that the classifier is right about."""
    right = total = 0
    for images, labels in batches:
        right += int((model(to_unit(images)).argmax(-1) == labels).sum())
        total += len(labels)
    return right / total


def _convolution(inputs: int, outputs: int, *, stride: int) -> tuple[nn.Module, ...]:
    return (
        nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.GELU(),
    )
