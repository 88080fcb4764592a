from .attention import KernelEigenPairAttention, Penalties
from .builders import (
    CIFAR10,
    CIFAR100,
    COLA,
    IMDB,
    KEPSVGPConfig,
    predict_probabilities,
    text_transformer,
    vision_transformer,
)
from .objective import NegativeELBO, negative_elbo
from .spectrum import LayerSpectrum, attention_spectrum

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "COLA",
    "IMDB",
    "KEPSVGPConfig",
    "KernelEigenPairAttention",
    "LayerSpectrum",
    "NegativeELBO",
    "Penalties",
    "attention_spectrum",
    "negative_elbo",
    "predict_probabilities",
    "text_transformer",
    "vision_transformer",
]

__version__: str
