from .attention import SparseGPAttention
from .regression import LaplaceLikelihood, RegressionModel, RegressionPrediction, predict_regression
from .spec import CIFAR10, CIFAR100, COLA, IMDB, SGPAConfig
from .standard import StandardSparseGPAttention

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "COLA",
    "IMDB",
    "LaplaceLikelihood",
    "RegressionModel",
    "RegressionPrediction",
    "SGPAConfig",
    "SparseGPAttention",
    "StandardSparseGPAttention",
    "predict_regression",
]

__version__: str
