"""Online Gaussian processes that learn from a stream without forgetting (thesis chapter 4).

Bad arguments raise a ``ValueError`` that names them, covariances that cannot be factorised a
``CholeskyError``; either leaves a model as it was.

Example:
    >>> import torch
    >>> from ohsvgp import Gaussian, LegS, OnlineGP
    >>> from probseq.kernels import RBF
    >>> gp = OnlineGP(RBF(1), Gaussian(0.01), LegS(20))
    >>> gp.update([0.0, 1.0, 2.0], [0.0, 0.8, 0.9]).n_new
    3
"""

from importlib.metadata import version

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

__version__ = version("ohsvgp")
