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
from .estimators import OnlineGPRegressor
from .exact import ExactGP, exact_posterior
from .forecasts import ExtrapolationWarning, Forecast
from .hyperparameters import FitInfo, Refit
from .layers import HiPPOLayer, MaternLayer
from .likelihoods import Bernoulli, Gaussian, NegativeBinomial, Poisson, StudentT
from .lost import LostInformationWarning
from .means import Level, Regressors, Seasonal, Trend
from .online import OnlineGP
from .outputs import MultiOutputGP
from .river import RiverForecaster, RiverRegressor
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
    "HiPPOLayer",
    "LagT",
    "LegS",
    "LegT",
    "Level",
    "LostInformationWarning",
    "MaternLayer",
    "MultiOutputGP",
    "NegativeBinomial",
    "OnlineGP",
    "OnlineGPRegressor",
    "OnlineSVGPVAE",
    "Path",
    "PivotedCholesky",
    "Poisson",
    "RandomSubset",
    "RecurrentFeatures",
    "Refit",
    "Regressors",
    "RiverForecaster",
    "RiverRegressor",
    "Seasonal",
    "StudentT",
    "Task",
    "Trend",
    "UniformGrid",
    "UpdateInfo",
    "VariationalFourier",
    "exact_posterior",
]

__version__: str
