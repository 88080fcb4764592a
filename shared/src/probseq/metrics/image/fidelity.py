"""Metrics by torch-fidelity itself, from the features of any extractor (extra ``image``)."""

from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.utils.data import Dataset

from probseq.checks import check_counts
from probseq.errors import require
from probseq.metrics.image.extractors import FeatureExtractor, extract_features

_NAME, _LAYERS = "probseq", ("features", "logits")
_SUBSET, _TINY = 1000, 1e-300
# torch-fidelity's names, and ours.
_NAMES = {
    "frechet_inception_distance": "fd",
    "inception_score_mean": "is",
    "inception_score_std": "is_std",
    "kernel_inception_distance_mean": "kid",
    "kernel_inception_distance_std": "kid_std",
    "precision": "precision",
    "recall": "recall",
}


class _Levels(Dataset[Tensor]):
    """Images as torch-fidelity reads them from files: levels of 0..255."""

    def __init__(self, images: Tensor) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor:
        return self.images[index]


def check_torch_fidelity() -> None:
    """Raise a MissingExtraError if torch-fidelity is not installed, before samples are made."""
    require("torch_fidelity", extra="image", distribution="probseq")


def torch_fidelity_metrics(
    extractor: FeatureExtractor,
    real: UInt8[Tensor, "n c h w"],
    fake: UInt8[Tensor, "m c h w"],
    *,
    splits: int = 10,
    neighbours: int = 3,
    batch_size: int = 64,
) -> dict[str, float]:
    """Return torch-fidelity's own numbers, for a final figure; nothing is fetched or cached.

    The library draws the features batch by batch, through a feature extractor that is registered
    for this call, and computes all metrics. With `InceptionFeatures` its network is the library's.
    Samples keep their order, in which the `splits` of the inception score are cut; `neighbours` are
    those of precision and recall. Images are levels of 0..255.

    Returns:
        `fd`, `kid` and `kid_std` (100 subsets of 1,000 images, or of all of the smaller side),
        `precision`, `recall`, and of an extractor with classes `is` and `is_std`.
    """
    check_counts(splits=splits, neighbours=neighbours, batch_size=batch_size)
    for name, images in (("real", real), ("fake", fake)):
        if images.dtype != torch.uint8:
            raise ValueError(f"{name} must be levels of 0..255 as uint8, got {images.dtype}")
        if len(images) <= max(neighbours, 1):
            raise ValueError(f"{name} must hold more images than {neighbours=}, got {len(images)}")
    library = require("torch_fidelity", extra="image", distribution="probseq")
    base = require(
        "torch_fidelity.feature_extractor_base", extra="image", distribution="probseq"
    ).FeatureExtractorBase
    registry = require("torch_fidelity.registry", extra="image", distribution="probseq")
    classes = extract_features(extractor, fake[:1]).probabilities is not None
    if classes and splits > len(fake):
        raise ValueError(f"splits must be at most the {len(fake)} samples, got {splits}")

    class Registered(base):
        """Ours, as the library calls its own."""

        def __init__(self, name: str, features_list: list[str], **_: Any) -> None:
            super().__init__(name, features_list)

        @staticmethod
        def get_provided_features_list() -> tuple[str, ...]:
            return _LAYERS

        @staticmethod
        def get_default_feature_layer_for_metric(metric: str) -> str:
            return "logits" if metric == "isc" else "features"

        def forward(self, images: Tensor) -> tuple[Tensor, ...]:
            features, probs = extract_features(extractor, images, batch_size=batch_size)
            layers = {"features": features.double()}
            if probs is not None:  # the library takes their softmax
                layers["logits"] = probs.double().clamp_min(_TINY).log()
            return tuple(layers[name] for name in self.features_list)

    registry.FEATURE_EXTRACTORS_REGISTRY[_NAME] = Registered
    try:
        metrics: dict[str, float] = library.calculate_metrics(
            input1=_Levels(fake),
            input2=_Levels(real),
            feature_extractor=_NAME,
            isc=classes,
            fid=True,
            kid=True,
            prc=True,
            isc_splits=splits,
            kid_subset_size=min(_SUBSET, len(real), len(fake)),
            prc_neighborhood=neighbours,
            batch_size=batch_size,
            samples_shuffle=False,
            save_cpu_ram=True,
            cuda=False,
            cache=False,
            verbose=False,
        )
    finally:
        del registry.FEATURE_EXTRACTORS_REGISTRY[_NAME]
    return {_NAMES[name]: float(value) for name, value in metrics.items() if name in _NAMES}
