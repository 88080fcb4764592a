"""Intervals as wide as the stream has shown: adaptive conformal inference.

After each line that an interval missed its reach grows by a fifth, after each that it held it
shrinks by a hundredth, but not below the model's. This is adaptive conformal inference (Gibbs and
Candès 2021) on the logarithm of the reach: the share of misses tends to 5 %. Not in the papers.
"""

import math

import torch
from torch import Tensor

from ohsvgp.beyond.forecasts import Forecast
from ohsvgp.integrations.live.stream_state import StreamState

# Probability of the intervals.
LEVEL = 0.95
# Of reaches: steps of their logarithm, and the largest, at which tails are still numbers.
_RATE, _MAX_REACH = 0.2, 4.0


def judge_intervals(position: StreamState, stamp: float, value: float, tolerance: float) -> None:
    """Widen or narrow the reach of the horizons that have forecast a stamp, in place.

    Stamps within ``tolerance`` are the same.
    """
    for k, at, low, high in position.pending:
        if abs(at - stamp) <= tolerance:
            missed = not low <= value <= high
            # log reach ← log reach + rate (missed − (1 − level)).
            change = math.exp(_RATE * (missed - (1.0 - LEVEL)))
            reach = position.reach[int(k)] * change
            position.reach[int(k)] = min(max(1.0, reach), _MAX_REACH)
    position.pending = [row for row in position.pending if row[1] > stamp + tolerance]


def widened_interval(
    position: StreamState, ahead: Forecast, horizon: int, *, widen: bool
) -> tuple[Tensor, Tensor]:
    """Return the ends of the interval of each horizon, shape (horizon,) each.

    Without ``widen`` the intervals are the model's; reaches are filled up for the horizon.
    """
    position.reach += [1.0] * (horizon - len(position.reach))
    if not widen or max(position.reach) == 1.0:
        return ahead.interval(LEVEL)
    reach = torch.tensor(position.reach[:horizon], dtype=torch.float64)
    # The tail probability that a Gaussian has beyond reach times the ends of its interval.
    half = torch.special.ndtri(reach.new_tensor(0.5 * (1.0 - LEVEL)))
    tails = torch.special.ndtr(reach * half)
    ends = ahead.quantile(torch.cat([tails, 1 - tails])).unflatten(0, (2, -1))
    low, high = ends.diagonal(dim1=-2, dim2=-1)
    return low, high
