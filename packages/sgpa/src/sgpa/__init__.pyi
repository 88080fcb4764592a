from .attention import SparseGPAttention
from .beyond.calibrated import Calibrated, Candidate, load_calibrated
from .beyond.calibration import calibrate
from .beyond.drop_in import replace_attention
from .beyond.process import QueryProcess
from .beyond.residual import ResidualSparseGPAttention
from .beyond.spec import ResidualSGPAConfig
from .beyond.tuning import tune_deviation
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
    "Calibrated",
    "Candidate",
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
