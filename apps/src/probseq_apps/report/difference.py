"""Whether our number differs from a paper's by more than both errors allow."""

import math

from scipy import stats

from probseq_apps.report.papers import Value
from probseq_apps.report.summary import LEVEL, Summary

LEGEND = (
    "▲ ours is better, ▼ ours is worse than the paper's by more than both errors allow: Welch's "
    "t-test at 5%; where one of the two has no error, it counts as one more draw with the other's "
    "scatter; where neither has, nothing is marked. — not measured."
)


def differs(paper: Value, ours: Summary) -> bool:
    """Test at the 5% level whether two means differ.

    Two-sided: Welch's t-test if both have an error. If one has none, as a single run or an
    ensemble, it is taken for one more draw with the scatter of the other, for which
    t = (x − m) / (s √(1 + 1/n)) has n − 1 degrees of freedom. Without any error the answer is no.
    What the paper's rounding explains is no difference.

    Args:
        paper: the paper's value.
        ours: our value, in the paper's units.
    """
    if ours.mean is None:
        return False
    distance = abs(ours.mean - paper.mean)
    if distance <= 0.5 * 10.0**-paper.decimals:
        return False
    theirs, own = (paper.error, paper.runs), (ours.standard_error, len(ours.values))
    known = [(error, count) for error, count in (theirs, own) if error is not None and count > 1]
    if not known:
        return False
    if len(known) == 1:
        error, count = known[0]
        # s √(1 + 1/n) with s = error √n.
        return _exceeds(distance, error * math.sqrt(count + 1), float(count - 1))
    total = sum(error**2 for error, _ in known)
    if total == 0.0:
        return True
    # Welch–Satterthwaite.
    freedom = total**2 / sum(error**4 / (count - 1) for error, count in known)
    return _exceeds(distance, math.sqrt(total), freedom)


def _exceeds(distance: float, scale: float, freedom: float) -> bool:
    return scale == 0.0 or 2.0 * float(stats.t.sf(distance / scale, freedom)) < LEVEL
