"""Building blocks shared by the probabilistic sequence models of this repository.

The mathematics is plain functions on tensors, in modules to be imported by name:

- ``probseq.kernels``: covariance functions, one set of hyperparameters per head.
- ``probseq.linalg``: the one Cholesky factorisation that everything uses.
- ``probseq.gaussians``: Gaussian conditioning and Kullback-Leibler divergences.
- ``probseq.fourier``: random Fourier features.
- ``probseq.transformers``: the backbones that attention layers plug into.
- ``probseq.metrics``: calibration, selective prediction and out-of-distribution scores.
- ``probseq.calibration``: calibration of any trained classifier, and decisions.
- ``probseq.files``: one store of files and folders, which no crash tears and which know their hash.
- ``probseq.summary``: means over seeds and which differences they support, without torch.
- ``probseq.images``, ``probseq.corruptions``: transforms, augmentation and corruptions of images.
- ``probseq.settings``: the base of all settings, which loads no torch.
- ``probseq.testing``: test suites to inherit from; needs pytest.

Importing ``probseq`` itself is cheap: torch is loaded with the first of the modules above.
"""

from importlib.metadata import version

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

__version__ = version("probseq")
