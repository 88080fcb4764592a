from .analysis import mean_cosine_similarity, token_cosine_similarity
from .attention import CorrelatedGPAttention
from .builders import (
    CIFAR10,
    CIFAR10_SPARSE,
    COLA,
    COLA_SPARSE,
    CGPTConfig,
    predict_probabilities,
    text_transformer,
    vision_transformer,
)
from .objective import PenalisedLoss, alpha_schedule, penalised_loss
from .sparse_attention import SparseCorrelatedGPAttention

__all__ = [
    "CIFAR10",
    "CIFAR10_SPARSE",
    "COLA",
    "COLA_SPARSE",
    "CGPTConfig",
    "CorrelatedGPAttention",
    "PenalisedLoss",
    "SparseCorrelatedGPAttention",
    "alpha_schedule",
    "mean_cosine_similarity",
    "penalised_loss",
    "predict_probabilities",
    "text_transformer",
    "token_cosine_similarity",
    "vision_transformer",
]

__version__: str
