"""Features that distances are measured in: Inception's from a file, or those of a classifier."""

from collections.abc import Iterable
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from probseq.metrics.image import (
    ClassifierFeatures,
    FeatureExtractor,
    InceptionFeatures,
    RandomConvolution,
)
from probseq_apps.data.images import GenerationData, to_unit
from probseq_apps.engine.config import TrainConfig
from probseq_apps.engine.distributed import resolve_device
from probseq_apps.engine.fit import fit
from probseq_apps.engine.trainer import Batch, LossParts, Step
from probseq_apps.experiments.generate_groups import FeatureSettings

_WIDTH, _FEATURES = 32, 64
_BATCH, _LEARNING_RATE = 64, 1e-3
# Epochs between two validations and checkpoints; of a small data set they pass in a second.
_EPOCHS_BETWEEN = 10


class SmallClassifier(nn.Module):
    """Three strided convolutions, a layer of 64 features, and one of logits.

    Args:
        channels: 1 for grey images, 3 for colour.
        num_classes: K.
        seed: of the weights.
    """

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
        """Logits of images in -1..1."""
        return self.head(self.trunk(images))


def make_extractor(
    data: GenerationData,
    settings: FeatureSettings,
    folder: Path,
    *,
    seed: int,
    device: str,
    progress: bool = True,
) -> FeatureExtractor:
    """Inception if its weights are named, else a classifier of the data, else random features.

    The classifier is trained here, as a run of its own that can be resumed.

    Args:
        data: images, and labels if there are any.
        settings: which features.
        folder: of the classifier's run.
        seed: of the classifier; the random convolution is the same always.
        device: as `TrainConfig.device`.
        progress: show a progress bar.

    Returns:
        The extractor on the device.

    Raises:
        FileNotFoundError: the file of Inception's weights is not there.
        ValueError: it holds something else.
    """
    place = resolve_device(device)
    if settings.inception_weights is not None:
        return InceptionFeatures(settings.inception_weights).to(place)
    if data.labels is None:
        return RandomConvolution(data.channels, seed=0).to(place)
    classifier = SmallClassifier(data.channels, len(data.class_names), seed=seed)
    fit(
        classifier,
        (data.train, data.labels.train),
        _training(settings, seed, device),
        folder,
        loss=classifier_loss,
        score=classifier_accuracy,
        held_out=(data.validation, data.labels.validation),
        progress=progress,
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


def _training(settings: FeatureSettings, seed: int, device: str) -> TrainConfig:
    steps = settings.classifier_steps
    return TrainConfig(
        steps=steps,
        batch_size=_BATCH,
        learning_rate=_LEARNING_RATE,
        warmup_steps=steps // 20,
        schedule="cosine",
        select="last",
        validate_every=_EPOCHS_BETWEEN,
        checkpoint_every=_EPOCHS_BETWEEN,
        seed=seed,
        device=device,
    )
