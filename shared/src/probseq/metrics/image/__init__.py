"""Metrics of images: reconstructions against their originals, samples against a data set.

The mathematics needs torch alone; LPIPS and Inception features come with the extra ``image``.
Images are floats in −1..1 of shape (n, c, h, w). Nothing is downloaded unless asked for.

These numbers follow a run and compare models that are measured alike. For a number that is to stand
beside those of papers, write the samples to lossless files and let torch-fidelity read them and the
reference's: it has the papers' resizing and networks, Inception for FID, KID and inception score,
VGG-16 for precision and recall.
"""

from probseq.metrics.image.extractors import (
    ClassifierFeatures,
    FeatureExtractor,
    Features,
    ModuleFeatures,
    RandomConvolution,
    SmallClassifier,
    extract_features,
)
from probseq.metrics.image.frechet import FeatureMoments, frechet_distance
from probseq.metrics.image.inception import INCEPTION_SHA256, InceptionFeatures, distance_name
from probseq.metrics.image.inception_score import InceptionScore, inception_score
from probseq.metrics.image.kernel_distance import KernelDistance, kernel_distance
from probseq.metrics.image.lpips import LPIPS
from probseq.metrics.image.precision_recall import PrecisionRecall, precision_recall
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
    "KernelDistance",
    "ModuleFeatures",
    "PrecisionRecall",
    "RandomConvolution",
    "SmallClassifier",
    "distance_name",
    "extract_features",
    "frechet_distance",
    "inception_score",
    "kernel_distance",
    "mean_psnr",
    "precision_recall",
    "psnr",
]
