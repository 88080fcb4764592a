from .attention import SparseGPAttention
from .builders import (
    CIFAR10,
    CIFAR100,
    COLA,
    IMDB,
    SGPAConfig,
    predict_probabilities,
    text_transformer,
    vision_transformer,
)
from .objective import (
    LaplaceLikelihood,
    NegativeELBO,
    categorical_log_likelihood,
    kl_annealing,
    negative_elbo,
)
from .prediction import RegressionPrediction, predict_regression
from .standard import StandardSparseGPAttention

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
    "categorical_log_likelihood",
    "kl_annealing",
    "negative_elbo",
    "predict_probabilities",
    "predict_regression",
    "text_transformer",
    "vision_transformer",
]

__version__: str
