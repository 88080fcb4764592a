"""The features that samples are measured in, and the classifiers that are trained for them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probseq.metrics import image
from probseq_apps.data.images import GenerationData
from probseq_apps.engine import distributed
from probseq_apps.engine.config import TrainConfig, derive_seed
from probseq_apps.engine.fit import fit
from probseq_apps.engine.trainer import Batch, LossParts, TrainStep
from probseq_apps.settings.generate import Features
from pseudovideo.beyond.gaussian_images import noise_like
from pseudovideo.beyond.sample_evaluator import SampleEvaluator
from pseudovideo.pixels import to_unit

# Of the classifier; ten epochs of a small data set pass in a second.
_TRAINING = {"batch_size": 64, "learning_rate": 1e-3, "schedule": "cosine", "select": "last"}
_EVERY: dict[str, Any] = {"validate_every": 10, "checkpoint_every": None}


def check_features(settings: Features) -> None:
    """Raise if a file of weights is not there."""
    file = settings.inception_weights
    if file is not None and not Path(file).is_file():
        raise FileNotFoundError(
            f"inception_weights must be a file of weights, and {file} is not there"
        )


def make_reference(
    data: GenerationData, settings: Features, folder: Path, *, seed: int, device: str
) -> SampleEvaluator:
    """Return what samples are measured against; arguments as of `make_extractor`."""
    extractor = make_extractor(data, settings, folder, seed=seed, device=device)
    covariance, moments, classifier = data.covariance, None, None
    if covariance is not None:  # as that of two would be: scatter over 1
        moments = image.FeatureMoments(2, covariance.new_zeros(len(covariance)), covariance)
    if isinstance(extractor, image.RandomConvolution):
        classifier = make_realism_classifier(data, settings, folder, seed=seed, device=device)
    return SampleEvaluator(
        extractor, data.train, data.test, moments=moments, realism_classifier=classifier
    )


def make_extractor(
    data: GenerationData, settings: Features, folder: Path, *, seed: int, device: str
) -> image.FeatureExtractor:
    """Return Inception if its weights are named, else a classifier, else random features.

    Of Gaussian images it is the pixels: a Fréchet distance in them leaves nothing out. The
    classifier is trained here, as a run of its own in `folder` that can be resumed.
    """
    resolved = distributed.resolve_device(device)
    if settings.inception_weights is not None:
        return image.InceptionFeatures(settings.inception_weights).to(resolved)
    if data.covariance is not None:
        return image.ModuleFeatures(nn.Flatten(), name="pixels", dimension=len(data.covariance))
    if data.labels is None:
        return image.RandomConvolution(data.channels, seed=0).to(resolved)
    train, held_out = (data.train, data.labels.train), (data.validation, data.labels.validation)
    count = len(data.class_names)
    return _train_classifier(
        "classifier", train, held_out, count, folder, data.name, settings, seed, device
    )


def make_realism_classifier(
    data: GenerationData, settings: Features, folder: Path, *, seed: int, device: str
) -> image.FeatureExtractor:
    """Return what tells images from noise with their covariance, trained as `make_extractor`'s."""

    def beside_noise(images: Tensor, purpose: str) -> Batch:
        noise = noise_like(data.train, len(images), seed=derive_seed(seed, purpose))
        return torch.cat([noise, images]), torch.arange(2).repeat_interleave(len(images))

    train = beside_noise(data.train, "noise")
    held_out = beside_noise(data.validation, "validation noise")
    return _train_classifier(
        "realism", train, held_out, 2, folder, data.name, settings, seed, device
    )


def _train_classifier(
    name: str,
    train: Batch,
    held_out: Batch,
    num_classes: int,
    folder: Path,
    data: str,
    settings: Features,
    seed: int,
    device: str,
) -> image.FeatureExtractor:
    steps = settings.classifier_steps
    classifier = image.SmallClassifier(train[0].shape[1], num_classes, seed=seed)
    training: dict[str, Any] = {**_TRAINING, **_EVERY, "seed": seed, "device": device}
    fit(
        classifier,
        train,
        TrainConfig(steps=steps, warmup_steps=steps // 20, **training),
        folder,
        loss=classifier_loss,
        score=classifier_accuracy,
        held_out=held_out,
        label=name,
        metadata={"experiment": f"generate-{name}", "data": data},
    )
    features = image.ClassifierFeatures(classifier.trunk, classifier.head, name=name)
    return features.to(distributed.resolve_device(device))


def classifier_loss(model: nn.Module, batch: Batch, step: TrainStep) -> LossParts:
    """Return the cross-entropy of a batch of images and labels."""
    images, labels = batch
    logits = model(to_unit(images)).float()
    right = (logits.detach().argmax(-1) == labels).float().mean()
    return LossParts(F.cross_entropy(logits, labels), {"accuracy": right})


def classifier_accuracy(model: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
    """Return the share of images that the classifier is right about."""
    right = torch.cat([model(to_unit(images)).argmax(-1) == labels for images, labels in batches])
    return {"accuracy": int(right.sum()) / len(right)}
