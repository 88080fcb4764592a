"""Inducing points among the stamps, the thinner the older."""

import numpy as np
import torch
from torch import Tensor

from ohsvgp.bases.base import Advance
from ohsvgp.bases.points import PointBasis

# Thinned one at a time up to here, so that none of the least is passed over.
_FEW = 4


class Fading(PointBasis):
    """The latest M/2 stamps, and as many older ones whose distance grows with their age.

    Forecasts need the end of a stream, however long it is; of what lies farther back they need the
    less the older it is. Where there are too many points, the one of the older half goes whose
    neighbours are nearest to each other in units of its age. The set moves with every new stamp:
    ``rebase`` of the model is best "task". Not in the papers.

    M, ``num_inducing``, is at least 4.
    """

    times_only = True

    def __init__(self, num_inducing: int) -> None:
        super().__init__(num_inducing)
        if num_inducing < 4:
            raise ValueError(f"num_inducing must be at least 4, got {num_inducing}")

    def choose(self, step: Advance, old: Tensor, new: Tensor) -> Tensor:
        """Return at most M of the old points and the new stamps, in order."""
        z = np.unique(torch.cat([old, new]).detach().cpu().numpy())
        while (excess := len(z) - self.num_inducing) > 0:
            end = len(z) - self.num_inducing // 2
            score = (z[2 : end + 1] - z[: end - 1]) / (z[-1] - z[1:end])
            order = np.argsort(score, kind="stable")[: 2 * excess] + 1
            # No two neighbours at once: without the one the other is needed.
            apart = order[order % 2 == order[0] % 2]
            z = np.delete(z, order[:1] if excess < _FEW else apart[:excess])
        return torch.from_numpy(z).to(new)[:, None]
