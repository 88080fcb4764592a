from .attention import SparseGPAttention
from .beyond.causal import CausalSparseGPAttention
from .beyond.causal_features import CausalFeatureAttention
from .calibrated import Calibrated, Candidate, load_calibrated
from .calibration import calibrate
from .drop_in import replace_attention
from .objective import (
    LaplaceLikelihood,
    NegativeELBO,
    RegressionModel,
    categorical_log_likelihood,
    kl_annealing,
    negative_elbo,
)
from .prediction import RegressionPrediction, predict_regression
from .process import CausalNoise, QueryProcess
from .residual import ResidualSparseGPAttention
from .spec import CIFAR10, CIFAR100, COLA, IMDB, ResidualSGPAConfig, SGPAConfig
from .standard import StandardSparseGPAttention
from .tuning import tune_deviation

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "COLA",
    "IMDB",
    "Calibrated",
    "Candidate",
    "CausalFeatureAttention",
    "CausalNoise",
    "CausalSparseGPAttention",
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
    "calibrate",
    "categorical_log_likelihood",
    "kl_annealing",
    "load_calibrated",
    "negative_elbo",
    "predict_regression",
    "replace_attention",
    "tune_deviation",
]

__version__: str
