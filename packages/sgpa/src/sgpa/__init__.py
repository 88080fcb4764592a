"""Sparse Gaussian process attention (Chen and Li 2023; thesis chapter 3).

Example:
    >>> import torch, sgpa
    >>> model = sgpa.vision_transformer(
    ...     sgpa.CIFAR10, image_size=32, patch_size=4, channels=3, num_classes=10
    ... ).eval()
    >>> sgpa.predict_probabilities(model, torch.zeros(2, 3, 32, 32), num_samples=10).shape
    torch.Size([2, 10])
"""

from importlib.metadata import version

from probseq.transformers import predict_probabilities
from sgpa.attention import SparseGPAttention
from sgpa.builders import (
    CIFAR10,
    CIFAR100,
    COLA,
    IMDB,
    SGPAConfig,
    text_transformer,
    vision_transformer,
)
from sgpa.objective import (
    LaplaceLikelihood,
    NegativeELBO,
    categorical_log_likelihood,
    kl_annealing,
    negative_elbo,
)
from sgpa.prediction import RegressionPrediction, predict_regression
from sgpa.standard import StandardSparseGPAttention

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "COLA",
    "IMDB",
    "LaplaceLikelihood",
    "NegativeELBO",
    "RegressionPrediction",
    "SGPAConfig",
    "SparseGPAttention",
    "StandardSparseGPAttention",
    "__version__",
    "categorical_log_likelihood",
    "kl_annealing",
    "negative_elbo",
    "predict_probabilities",
    "predict_regression",
    "text_transformer",
    "vision_transformer",
]

__version__ = version("sgpa")
