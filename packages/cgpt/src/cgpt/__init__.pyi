from .analysis import mean_cosine_similarity, token_cosine_similarity
from .attention import CorrelatedGPAttention
from .sparse_attention import SparseCorrelatedGPAttention
from .spec import CIFAR10, CIFAR10_SPARSE, COLA, COLA_SPARSE, CGPTConfig, SCGPTConfig

__all__ = [
    "CIFAR10",
    "CIFAR10_SPARSE",
    "COLA",
    "COLA_SPARSE",
    "CGPTConfig",
    "CorrelatedGPAttention",
    "SCGPTConfig",
    "SparseCorrelatedGPAttention",
    "mean_cosine_similarity",
    "token_cosine_similarity",
]

__version__: str
