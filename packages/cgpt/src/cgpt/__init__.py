"""Correlated Gaussian process attention, full and sparse (Bui et al. 2024).

Example:
    >>> import torch, cgpt
    >>> model = cgpt.vision_transformer(
    ...     cgpt.CIFAR10, image_size=32, patch_size=4, channels=3, num_classes=10
    ... ).eval()
    >>> cgpt.predict_probabilities(model, torch.zeros(2, 3, 32, 32), num_samples=10).shape
    torch.Size([2, 10])
"""

from importlib.metadata import version

from cgpt.analysis import mean_cosine_similarity, token_cosine_similarity
from cgpt.attention import CorrelatedGPAttention
from cgpt.builders import (
    CIFAR10,
    CIFAR10_SPARSE,
    COLA,
    COLA_SPARSE,
    CGPTConfig,
    text_transformer,
    vision_transformer,
)
from cgpt.objective import PenalisedLoss, alpha_schedule, penalised_loss
from cgpt.sparse_attention import SparseCorrelatedGPAttention
from probseq.transformers import predict_probabilities

__all__ = [
    "CIFAR10",
    "CIFAR10_SPARSE",
    "COLA",
    "COLA_SPARSE",
    "CGPTConfig",
    "CorrelatedGPAttention",
    "PenalisedLoss",
    "SparseCorrelatedGPAttention",
    "__version__",
    "alpha_schedule",
    "mean_cosine_similarity",
    "penalised_loss",
    "predict_probabilities",
    "text_transformer",
    "token_cosine_similarity",
    "vision_transformer",
]

__version__ = version("cgpt-transformer")
