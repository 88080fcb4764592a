"""State of an online Gaussian process."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ohsvgp.core import Posterior, Site, posterior
from ohsvgp.inducing import Inducing
from ohsvgp.whitening import Whitening


class UpdateInfo(NamedTuple):
    """Result of an update."""

    # F of the new data in nats, shape (*b): an estimate of their log evidence given all before. A
    # lower bound as long as the inducing set stays (``core.online_bound``); where it moved and the
    # model's ``alpha`` is above 0, an energy of power EP, no bound
    energy: Tensor
    # nats of old knowledge that the new inducing set cannot hold, shape (*b)
    lost_information: Tensor
    # nats that the new observations lose because the inducing variables do not explain all of f at
    # them (``core.OnlineBound``), shape (*b)
    unexplained: Tensor
    jitter_used: float  # largest relative jitter that a factorisation took
    n_new: int  # number of new points
    # end of the window, in the units of the stamps; number of points seen for inputs that are not
    # times
    t_end: float | np.datetime64


@dataclass(frozen=True, eq=False)
class OnlineState:
    """Posterior on whitened inducing variables; everything an update or a prediction needs."""

    inducing: Inducing  # the inducing set u
    whitening: Whitening  # of its K_uu, under ``hyperparameters``
    site: Site  # what the data leave on v = R u
    # The kernel's raw parameters when the whitening was made, as one vector
    hyperparameters: Tensor
    length: float  # end of the window minus t0
    count: int  # number of points absorbed
    computed_moments: Posterior | None = None  # those of q(v), where they have been computed

    @cached_property
    def moments(self) -> Posterior:
        """Return the moments of q(v), factorised once per state."""
        return posterior(self.site) if self.computed_moments is None else self.computed_moments


def contiguous_copy(tensor: Tensor) -> Tensor:
    """Return a copy in row-major order at an aligned address, as it would come from a file.

    BLAS and LAPACK round in other ways for other strides and alignments: only a state in this one
    form predicts the same bits before and after it has been saved.
    """
    # Not contiguous(): that leaves odd strides of dimensions of size 1.
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def canonical(
    state: OnlineState, restore: Callable[[dict[str, Tensor]], Inducing], old: OnlineState | None
) -> OnlineState:
    """Return the state with a ``contiguous_copy`` of every tensor, as it would come from a file.

    Its set stays the object of the state before if it is the same, which tells that it did not
    move.
    """
    inducing, whitening = state.inducing, state.whitening
    if old is None or inducing is not old.inducing:
        tensors = inducing.tensors().items()
        inducing = restore({name: contiguous_copy(tensor) for name, tensor in tensors})
    if old is None or whitening is not old.whitening:
        tensors = whitening._asdict().items()
        whitening = Whitening(**{name: contiguous_copy(tensor) for name, tensor in tensors})
    site = Site(*map(contiguous_copy, state.site))
    return replace(state, inducing=inducing, whitening=whitening, site=site)
