from .attention import SparseGPAttention
from .beyond.process import QueryProcess
from .beyond.residual import ResidualSparseGPAttention
from .beyond.spec import ResidualSGPAConfig
from .objective import (
    LaplaceLikelihood,
    NegativeELBO,
    RegressionModel,
    categorical_log_likelihood,
    kl_annealing,
    negative_elbo,
)
from .prediction import RegressionPrediction, predict_regression
from .spec import CIFAR10, CIFAR100, COLA, IMDB, SGPAConfig
from .standard import StandardSparseGPAttention

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "COLA",
    "IMDB",
    "LaplaceLikelihood",
    "NegativeELBO",
    "QueryProcess",
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
