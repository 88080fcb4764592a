from .attention import KernelEigenPairAttention, Penalties
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
    "Penalties",
    "attention_spectrum",
]

__version__: str
