"""Measures of samples against real images, in the features of one extractor."""

from functools import cached_property
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor

from probseq.checks import check_sizes
from probseq.metrics.image import (
    FeatureExtractor,
    FeatureMoments,
    distance_name,
    extract_features,
    frechet_distance,
    inception_score,
    kernel_distance,
)
from pseudovideo.evaluation import number_or_none

# Samples whose inception score is below this share of the real images' are not ranked.
LEAST_SCORE = 0.5
# Inception score: ten splits as in papers, of so many samples at least; below, one split of all.
_SPLITS, _SPLIT_SAMPLES = 10, 100
_MOST = 10_000  # features on each side of the kernel distance
_SEED = 0


class SampleEvaluator:
    """Training and test images, in the features that all models of a comparison are measured in.

    Args:
        extractor: of the features.
        train: the images that samples are compared with.
        test: images that no model has seen.
        moments: of the training images' features where they are known, as of Gaussian images.
        realism_classifier: tells noise from images by two probabilities, the second of images:
            whether samples show anything where the extractor knows no classes.
    """

    def __init__(
        self,
        extractor: FeatureExtractor,
        train: UInt8[Tensor, "n c h w"],
        test: UInt8[Tensor, "m c h w"],
        *,
        moments: FeatureMoments | None = None,
        realism_classifier: FeatureExtractor | None = None,
    ) -> None:
        for name, images in (("train", train), ("test", test)):
            if images.dtype != torch.uint8 or images.ndim != 4 or not len(images):
                raise ValueError(
                    f"{name} must be images (n, c, h, w) as bytes, got {images.dtype} of shape "
                    f"{tuple(images.shape)}"
                )
        self.extractor, self.train, self.test = extractor, train, test
        self._moments, self.realism_classifier = moments, realism_classifier
        # A few training images are the same for all models.
        self._order = torch.randperm(len(train), generator=torch.Generator().manual_seed(_SEED))

    @cached_property
    def moments(self) -> FeatureMoments:
        """Moments of the training images' features."""
        return self._moments or FeatureMoments.of(self._train)

    def real(self, count: int) -> dict[str, Any]:
        """Return what `measure` says of as many test images as samples, as if they were these.

        The distance depends on the number: it is None where the test part has fewer.
        """
        measured = self.measure(self.test[:count])
        return measured if len(self.test) >= count else measured | {"fd": None}

    def measure(self, images: UInt8[Tensor, "k c h w"]) -> dict[str, Any]:
        """Measure samples.

        Returns:
            fd, fd_name: Fréchet distance from the training images.
            is, is_std: inception score and its standard deviation over the splits; None without
                classes.
            is_splits: ten, or one where a tenth would be fewer than 100 samples.
            num_samples: how many samples.
            kid: kernel distance from as many training images, 10,000 at most.
            realism: the mean probability of the realism_classifier that samples are images.
            What the samples are too few for is None.
        """
        check_sizes("images", images, "k", *self.train.shape[1:])
        extracted, count = extract_features(self.extractor, images), len(images)
        score, spread, splits = None, None, None
        if extracted.probabilities is not None:
            splits = _SPLITS if count >= _SPLITS * _SPLIT_SAMPLES else 1
            score, spread, *_ = inception_score(extracted.probabilities, splits=splits)
        measured: dict[str, Any] = {
            "fd": self._distance(extracted.features),
            "fd_name": distance_name(self.extractor),
            "is": score,
            "is_std": spread,
            "is_splits": splits,
            "num_samples": count,
        }
        compared = self._train[self._order[: min(count, _MOST)]]
        measured["kid"] = _kernel_distance_of(compared, extracted.features[:_MOST])
        if self.realism_classifier is not None:
            looks = extract_features(self.realism_classifier, images).probabilities
            measured["realism"] = None if looks is None else float(looks[:, 1].mean())
        return measured

    @cached_property
    def _train(self) -> Tensor:
        return extract_features(self.extractor, self.train).features

    def _distance(self, features: Tensor) -> float | None:
        return number_or_none(frechet_distance(self.moments, features))


def is_ranked(score: float | None, real: float | None) -> bool:
    """Return whether samples show enough to be compared with others by a distance.

    A distance of a few features cannot tell noise from poor samples. Ranked is what has at least
    half of the real images' inception score (without classes: `realism`), or has none.
    """
    return score is None or real is None or score >= LEAST_SCORE * real


def _kernel_distance_of(real: Tensor, fake: Tensor) -> float | None:
    return float(kernel_distance(real, fake)) if min(len(real), len(fake)) > 1 else None
