"""Kernel-eigen-pair sparse variational GP attention (Chen et al. 2024).

Example:
    >>> import torch, kepsvgp
    >>> model = kepsvgp.vision_transformer(
    ...     kepsvgp.CIFAR10, image_size=32, patch_size=4, channels=3, num_classes=10
    ... ).eval()
    >>> kepsvgp.predict_probabilities(model, torch.zeros(2, 3, 32, 32), num_samples=10).shape
    torch.Size([2, 10])
"""

from importlib.metadata import version

from kepsvgp.attention import KernelEigenPairAttention, Penalties
from kepsvgp.builders import (
    CIFAR10,
    CIFAR100,
    COLA,
    IMDB,
    KEPSVGPConfig,
    text_transformer,
    vision_transformer,
)
from kepsvgp.objective import NegativeELBO, negative_elbo
from kepsvgp.spectrum import LayerSpectrum, attention_spectrum
from probseq.transformers.prediction import predict_probabilities

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
    "__version__",
    "attention_spectrum",
    "negative_elbo",
    "predict_probabilities",
    "text_transformer",
    "vision_transformer",
]

__version__ = version("kepsvgp")
