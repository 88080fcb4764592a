"""Metrics of images: reconstructions against their originals, samples against a data set.

The mathematics needs torch alone; LPIPS and Inception features come with the extra ``image``.
Images are floats in −1..1 of shape (n, c, h, w). Nothing is downloaded unless asked for.

These numbers follow a run and compare models that are measured alike. For a number that is to stand
beside those of papers, write the samples as files and run torch-fidelity's command `fidelity`.
"""

from probseq.metrics.image.distances import FeatureMoments, frechet_distance, kernel_distance
from probseq.metrics.image.extractors import (
    ClassifierFeatures,
    FeatureExtractor,
    ImageFeatures,
    ModuleFeatures,
    RandomConvolution,
    SmallClassifier,
    extract_features,
)
from probseq.metrics.image.inception import INCEPTION_SHA256, InceptionFeatures, distance_name
from probseq.metrics.image.inception_score import InceptionScore, inception_score
from probseq.metrics.image.lpips import LPIPS
from probseq.metrics.image.psnr import psnr

__all__ = [
    "INCEPTION_SHA256",
    "LPIPS",
    "ClassifierFeatures",
    "FeatureExtractor",
    "FeatureMoments",
    "ImageFeatures",
    "InceptionFeatures",
    "InceptionScore",
    "ModuleFeatures",
    "RandomConvolution",
    "SmallClassifier",
    "distance_name",
    "extract_features",
    "frechet_distance",
    "inception_score",
    "kernel_distance",
    "psnr",
]
