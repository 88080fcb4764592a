"""Metrics of images: reconstructions against their originals, samples against a data set.

The mathematics needs torch alone; LPIPS and Inception features come with the extra ``image``.
Images are floats in −1..1 of shape (n, c, h, w). Nothing is downloaded unless asked for.
"""

from probseq.metrics.image.extractors import (
    ClassifierFeatures,
    FeatureExtractor,
    Features,
    ModuleFeatures,
    RandomConvolution,
    extract_features,
)
from probseq.metrics.image.frechet import FeatureMoments, frechet_distance
from probseq.metrics.image.inception import INCEPTION_SHA256, InceptionFeatures, distance_name
from probseq.metrics.image.inception_score import InceptionScore, inception_score
from probseq.metrics.image.lpips import LPIPS
from probseq.metrics.image.psnr import mean_psnr, psnr

__all__ = [
    "INCEPTION_SHA256",
    "LPIPS",
    "ClassifierFeatures",
    "FeatureExtractor",
    "FeatureMoments",
    "Features",
    "InceptionFeatures",
    "InceptionScore",
    "ModuleFeatures",
    "RandomConvolution",
    "distance_name",
    "extract_features",
    "frechet_distance",
    "inception_score",
    "mean_psnr",
    "psnr",
]
