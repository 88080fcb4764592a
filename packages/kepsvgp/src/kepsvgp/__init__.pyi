from .attention import KernelEigenPairAttention, Penalties
from .objective import NegativeELBO, negative_elbo
from .spec import CIFAR10, CIFAR100, COLA, IMDB, KEPSVGPConfig
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
]

__version__: str
