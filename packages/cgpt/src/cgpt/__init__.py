"""Correlated Gaussian process attention, full and sparse (Bui et al. 2024).

Arguments that are out of range, or of a wrong shape or dtype, raise a ``ValueError`` that names
them, and covariances that cannot be factorised a ``CholeskyError``.

Example:
    >>> import torch, cgpt
    >>> from probseq.transformers import predict_probabilities, vision_transformer
    >>> model = vision_transformer(
    ...     *cgpt.CIFAR10, image_size=32, patch_size=4, channels=3, num_classes=10
    ... ).eval()
    >>> predict_probabilities(model, torch.zeros(2, 3, 32, 32), num_samples=10).shape
    torch.Size([2, 10])
"""

from importlib.metadata import version

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

__version__ = version("cgpt-transformer")
