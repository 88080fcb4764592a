"""What an online Gaussian process remembers of the stream."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ohsvgp.core import Posterior, Site, posterior
from ohsvgp.inducing import Inducing
from ohsvgp.whitening import Whitening
from probseq.kernels import Kernel

__all__ = ["OnlineState", "UpdateInfo"]


class UpdateInfo(NamedTuple):
    """What an update did.

    Attributes:
        bound: online bound F of the new data in nats, shape (*b).
        lost_information: nats of old knowledge that the new inducing set cannot hold, shape (*b).
        rank: number of whitened directions in use, the least over a batch.
        jitter_used: largest relative jitter that a factorisation took.
        n_new: number of new points.
        t_end: end of the window, in the units of the stamps; number of points seen for inputs
            that are not times.
    """

    bound: Tensor
    lost_information: Tensor
    rank: int
    jitter_used: float
    n_new: int
    t_end: float | np.datetime64


@dataclass(frozen=True, eq=False)
class OnlineState:
    """Posterior on whitened inducing variables; everything an update or a prediction needs.

    Attributes:
        inducing: the inducing set u.
        whitening: of its K_uu, under ``hyperparameters``.
        site: what the data leave on v = R u.
        hyperparameters: the kernel's raw parameters when the whitening was made, as one vector.
        length: end of the window minus t0.
        count: number of points absorbed.
    """

    inducing: Inducing
    whitening: Whitening
    site: Site
    hyperparameters: Tensor
    length: float
    count: int

    @cached_property
    def moments(self) -> Posterior:
        """Of q(v); factorised once per state."""
        return posterior(self.site)


def hyperparameters(kernel: Kernel) -> Tensor:
    """The kernel's raw parameters as one vector, detached."""
    return torch.cat([parameter.detach().flatten() for parameter in kernel.parameters()])
