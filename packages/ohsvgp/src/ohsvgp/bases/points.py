"""Inducing points: function values at inputs that are chosen anew when data come.

With fewer candidates (old inducing points and new inputs) than M there are fewer inducing points,
all of them, until there are enough.
"""

import copy
import math
from abc import abstractmethod
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from ohsvgp.bases.base import Advance, Basis
from ohsvgp.bases.learning import AdamSteps, learn_nodes
from ohsvgp.bases.pivoted import pivots
from ohsvgp.inducing import Inducing, PointFunctional

# Share of the inducing points that stay when new inputs come: 0.7 in the code of Bui et al. 2017.
_SHARE_OF_OLD = 0.7


class PointBasis(Basis):
    """Inducing points for inputs of any dimension, learned after their choice if asked for."""

    def __init__(self, num_inducing: int, *, learn: AdamSteps | None = None) -> None:
        super().__init__(num_inducing)
        self.learn = learn

    @abstractmethod
    def choose(
        self, step: Advance, old: Float[Tensor, "*b m d"], new: Float[Tensor, "n d"]
    ) -> Float[Tensor, "*c k d"]:
        """Return at most ``num_inducing`` of the old inducing points and the new inputs."""

    def advance(self, step: Advance) -> Inducing:
        """Choose points from the old ones and the new inputs; the old set without new inputs."""
        if step.inputs.shape[0] == 0 and step.previous is not None:
            return step.previous
        if step.inputs.shape[0] == 0:
            raise ValueError(
                f"inputs must hold at least one point for {type(self).__name__} to start from, "
                "got none: inducing points are chosen among them"
            )
        return PointFunctional(self.choose(step, self._nodes(step), step.inputs))

    def refine(
        self, inducing: Inducing, objective: Callable[[Inducing], Tensor], step: Advance
    ) -> Inducing:
        """Move the points by Adam on the online bound of the new data, if ``learn`` says so."""
        if self.learn is None or inducing is step.previous:
            return inducing
        if not isinstance(inducing, PointFunctional):
            raise TypeError(f"inducing must be points, got {type(inducing).__name__}")
        # Where nothing sets a scale, as for lines, the unit of the inputs.
        scale = torch.nan_to_num(step.kernel.resolution, posinf=1.0)
        # Not torch.broadcast_shapes, which imports sympy: seconds in the first call of a process.
        nodes = torch.broadcast_tensors(inducing.nodes[..., :1, :1], scale[..., :1])[0]
        # Each kernel of a batch gets points of its own.
        start = inducing.nodes.expand(*nodes.shape[:-2], *inducing.nodes.shape[-2:])
        return learn_nodes(start, scale, objective, self.learn)

    def without_learning(self) -> "PointBasis":
        """Return the rule of choice without Adam."""
        twin = copy.copy(self)
        twin.learn = None
        return twin

    def _nodes(self, step: Advance) -> Tensor:
        """Return the old inducing points; an empty set at first."""
        if step.previous is None:
            return step.inputs[:0]
        if not isinstance(step.previous, PointFunctional) or step.previous.weights is not None:
            raise ValueError(
                f"previous must be a set of points for {type(self).__name__}, "
                f"got {type(step.previous).__name__}"
            )
        return step.previous.nodes


class RandomSubset(PointBasis):
    """Random old inducing points and random new inputs: OSGPR and OSVGP of Bui et al. 2017.

    Of M points, ⌊0.7 M⌋ are old and the others new, as in the authors' code (the thesis only says
    "by sampling from the old inducing locations and the new data inputs"); fewer new inputs than
    that all become inducing points, so that one new point replaces one old point. The share does
    not follow the number of points seen: the authors' doesn't either, and forgetting is part of
    the method.

    ``learn`` learns the points by Adam on the online bound, as Bui et al. do.
    """

    def choose(
        self, step: Advance, old: Float[Tensor, "*b m d"], new: Float[Tensor, "n d"]
    ) -> Float[Tensor, "*b k d"]:
        """Sample ⌊0.7 M⌋ or more of the old points, and new ones up to M."""
        M, n = self.num_inducing, new.shape[0]
        stay = min(old.shape[-2], max(math.floor(_SHARE_OF_OLD * M), M - n))
        added = min(n, M - stay)
        new = new[_sample(n, added, step)].expand(*old.shape[:-2], added, new.shape[-1])
        return torch.cat([old[..., _sample(old.shape[-2], stay, step), :], new], dim=-2)


class PivotedCholesky(PointBasis):
    """Pivots of the kernel matrix of old inducing points and new inputs: OVC (Maddox et al. 2021).

    Greedy: each point is the one about which those before tell least. With ``learn`` the pivots
    are only the start (OVC-optZ). Points about which the others tell everything are not taken:
    there may be fewer than M even among more candidates.

    ``learn`` learns the points by Adam on the online bound.
    """

    def choose(
        self, step: Advance, old: Float[Tensor, "*b m d"], new: Float[Tensor, "n d"]
    ) -> Float[Tensor, "*c k d"]:
        """Return up to M pivots; each kernel of a batch picks its own."""
        pool = torch.cat([old, new.expand(*old.shape[:-2], *new.shape)], dim=-2)
        index = pivots(step.kernel, pool, self.num_inducing)
        pool = pool.expand(*index.shape[:-1], *pool.shape[-2:])
        return pool.gather(-2, index[..., None].expand(*index.shape, pool.shape[-1]))


def _sample(size: int, count: int, step: Advance) -> Tensor:
    """Sample indices of ``count`` of ``size`` things, without replacement, in increasing order."""
    device = step.inputs.device
    order = torch.randperm(size, generator=step.generator, device=device)
    return order[:count].sort().values
