from .attention import SparseGPAttention
from .objective import (
    LaplaceLikelihood,
    NegativeELBO,
    RegressionModel,
    categorical_log_likelihood,
    kl_annealing,
    negative_elbo,
)
from .prediction import RegressionPrediction, predict_regression
from .residual import ResidualSparseGPAttention
from .spec import CIFAR10, CIFAR100, COLA, IMDB, ResidualSGPAConfig, SGPAConfig
from .standard import StandardSparseGPAttention

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "COLA",
    "IMDB",
    "LaplaceLikelihood",
    "NegativeELBO",
    "RegressionModel",
    "RegressionPrediction",
    "ResidualSGPAConfig",
    "ResidualSparseGPAttention",
    "SGPAConfig",
    "SparseGPAttention",
    "StandardSparseGPAttention",
    "categorical_log_likelihood",
    "kl_annealing",
    "negative_elbo",
    "predict_regression",
]

__version__: str
