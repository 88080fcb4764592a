"""Intervals as wide as the stream has shown: adaptive conformal inference.

Adaptive conformal inference (Gibbs and Candès 2021) on the logarithm of the reach: the share of
misses tends to 5 %. Not in the papers.
"""

import math

from ohsvgp.integrations.live.stream_state import StreamState

# Probability of the intervals, and the deviations that a Gaussian has within.
LEVEL, DEVIATIONS = 0.95, 1.959963984540054
# Of reaches: steps of their logarithm, and bounds.
_RATE, _MIN_REACH, _MAX_REACH = 0.2, 0.7, 4.0


def judge_intervals(state: StreamState, stamp: float, value: float, tolerance: float) -> None:
    """Widen or narrow the reach of the horizons that have forecast a stamp.

    Stamps within ``tolerance`` are the same.
    """
    reach, end = list(state.reach), stamp + tolerance
    for k, lines, at, low, high in [row for row in state.pending if row[2] <= end]:
        if at >= stamp - tolerance:
            missed = not low <= value <= high
            # log reach ← log reach + rate/√h (missed − (1 − level)): errors h lines ahead overlap.
            change = math.exp(_RATE / math.sqrt(max(lines, 1.0)) * (missed - (1.0 - LEVEL)))
            reach[int(k)] = min(max(_MIN_REACH, reach[int(k)] * change), _MAX_REACH)
    state.reach = reach
    state.pending = [row for row in state.pending if row[2] > end]
