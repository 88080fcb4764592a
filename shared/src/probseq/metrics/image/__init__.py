"""Metrics of images: reconstructions against their originals, samples against a data set.

The mathematics needs torch alone; LPIPS and Inception features come with the extra ``image``.
Images are floats in −1..1 of shape (n, c, h, w). Nothing is downloaded unless asked for.

These numbers follow a run and compare models that are measured alike. For a number that is to stand
beside those of papers, `torch_fidelity_metrics` with `InceptionFeatures` is torch-fidelity's own;
papers take VGG-16's features for precision and recall, which torch-fidelity has for files of
samples.
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
from probseq.metrics.image.fidelity import check_torch_fidelity, torch_fidelity_metrics
from probseq.metrics.image.frechet import FeatureMoments, frechet_distance
from probseq.metrics.image.i3d import I3DFeatures
from probseq.metrics.image.inception import INCEPTION_SHA256, InceptionFeatures, distance_name
from probseq.metrics.image.inception_score import InceptionScore, inception_score
from probseq.metrics.image.intervals import (
    Interval,
    frechet_interval,
    inception_interval,
    kernel_interval,
)
from probseq.metrics.image.lpips import LPIPS, Diversity, lpips_diversity
from probseq.metrics.image.memorisation import Memorisation, Nearest, memorisation, nearest
from probseq.metrics.image.precision_recall import (
    PrecisionRecall,
    precision_recall,
    precision_recall_intervals,
)
from probseq.metrics.image.psnr import psnr

__all__ = [
    "INCEPTION_SHA256",
    "LPIPS",
    "ClassifierFeatures",
    "Diversity",
    "FeatureExtractor",
    "FeatureMoments",
    "Features",
    "I3DFeatures",
    "InceptionFeatures",
    "InceptionScore",
    "Interval",
    "Memorisation",
    "ModuleFeatures",
    "Nearest",
    "PrecisionRecall",
    "RandomConvolution",
    "SmallClassifier",
    "check_torch_fidelity",
    "distance_name",
    "extract_features",
    "frechet_distance",
    "frechet_interval",
    "inception_interval",
    "inception_score",
    "kernel_interval",
    "lpips_diversity",
    "memorisation",
    "nearest",
    "precision_recall",
    "precision_recall_intervals",
    "psnr",
    "torch_fidelity_metrics",
]
