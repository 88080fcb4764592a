"""What an online Gaussian process remembers of the stream."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ohsvgp.core import Posterior, Site, posterior
from ohsvgp.inducing import Inducing
from ohsvgp.saved import fresh
from ohsvgp.whitening import Whitening

__all__ = ["OnlineState", "UpdateInfo"]


class UpdateInfo(NamedTuple):
    """What an update did.

    Attributes:
        energy: F of the new data in nats, shape (*b): an estimate of their log evidence given all
            before. A lower bound as long as the inducing set stays (``core.online_bound``); where
            it moved and the model's ``alpha`` is above 0, an energy of power EP, no bound.
        lost_information: nats of old knowledge that the new inducing set cannot hold, shape (*b).
        unexplained: nats that the new observations lose because the inducing variables do not
            explain all of f at them (``core.Bound``), shape (*b).
        rank: number of whitened directions in use, the least over a batch.
        jitter_used: largest relative jitter that a factorisation took.
        n_new: number of new points.
        t_end: end of the window, in the units of the stamps; number of points seen for inputs
            that are not times.
    """

    energy: Tensor
    lost_information: Tensor
    unexplained: Tensor
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
        known: moments of q(v), where they have been computed.
    """

    inducing: Inducing
    whitening: Whitening
    site: Site
    hyperparameters: Tensor
    length: float
    count: int
    known: Posterior | None = None

    @cached_property
    def moments(self) -> Posterior:
        """Of q(v); factorised once per state."""
        return posterior(self.site) if self.known is None else self.known

    def kept(
        self, restore: Callable[[dict[str, Tensor]], Inducing], old: "OnlineState | None"
    ) -> "OnlineState":
        """This state with every tensor ``fresh``: as it would come back from a file.

        Args:
            restore: makes an inducing set of its tensors, ``Basis.restore``.
            old: the state before, whose tensors are fresh. Its set stays the same object if it is
                this one's, which tells that it did not move.
        """
        inducing = self.inducing
        if old is None or inducing is not old.inducing:
            tensors = inducing.tensors().items()
            inducing = restore({name: fresh(tensor) for name, tensor in tensors})
        whitening = self.whitening
        if old is None or whitening is not old.whitening:
            whitening = Whitening(**{k: fresh(v) for k, v in whitening.tensors().items()})
        return replace(
            self,
            inducing=inducing,
            whitening=whitening,
            site=Site(*map(fresh, self.site)),
        )

    def to_tensors(self) -> dict[str, dict[str, Tensor]]:
        """Groups of tensors that ``from_tensors`` reads."""
        return {
            "inducing": self.inducing.tensors(),
            "whitening": self.whitening.tensors(),
            "site": self.site._asdict(),
            "hyperparameters": {"": self.hyperparameters},
            "length": {"": torch.tensor(self.length, dtype=torch.float64)},
            "count": {"": torch.tensor(self.count)},
        }

    @classmethod
    def from_tensors(
        cls,
        groups: Mapping[str, dict[str, Tensor]],
        restore: Callable[[dict[str, Tensor]], Inducing],
    ) -> "OnlineState | None":
        """The state of ``to_tensors``; None of groups that hold none.

        Args:
            groups: fresh tensors, those of ``to_tensors`` among them.
            restore: makes an inducing set of its tensors, ``Basis.restore``.
        """
        if "site" not in groups:
            return None
        return cls(
            restore(groups["inducing"]),
            Whitening(**groups["whitening"]),
            Site(**groups["site"]),
            groups["hyperparameters"][""],
            float(groups["length"][""]),
            int(groups["count"][""]),
        )
