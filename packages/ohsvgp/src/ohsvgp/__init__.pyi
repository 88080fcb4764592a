from .bases import (
    AdamSteps,
    Cosine,
    Fading,
    FouT,
    LagT,
    LegS,
    LegT,
    Path,
    PivotedCholesky,
    RandomSubset,
    RecurrentFeatures,
    UniformGrid,
    VariationalFourier,
)
from .beyond.forecasts import ExtrapolationWarning, Forecast, forecast
from .beyond.means import Level, Regressors, Seasonal, Trend
from .exact import ExactGP, exact_posterior
from .hyperparameters import FitInfo, Refit
from .information_loss import LostInformationWarning
from .likelihoods import Bernoulli, Gaussian, NegativeBinomial, Poisson, StudentT
from .mismatch import PriorMismatchWarning
from .online import OnlineGP
from .state import UpdateInfo
from .tasks import Task
from .vae import OnlineSVGPVAE

__all__ = [
    "AdamSteps",
    "Bernoulli",
    "Cosine",
    "ExactGP",
    "ExtrapolationWarning",
    "Fading",
    "FitInfo",
    "Forecast",
    "FouT",
    "Gaussian",
    "LagT",
    "LegS",
    "LegT",
    "Level",
    "LostInformationWarning",
    "NegativeBinomial",
    "OnlineGP",
    "OnlineSVGPVAE",
    "Path",
    "PivotedCholesky",
    "Poisson",
    "PriorMismatchWarning",
    "RandomSubset",
    "RecurrentFeatures",
    "Refit",
    "Regressors",
    "Seasonal",
    "StudentT",
    "Task",
    "Trend",
    "UniformGrid",
    "UpdateInfo",
    "VariationalFourier",
    "exact_posterior",
    "forecast",
]

__version__: str
