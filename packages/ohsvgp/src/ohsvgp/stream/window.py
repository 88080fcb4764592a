"""End of the window of a stream."""

import math
import re


def growth_factor(rebase: str) -> float | None:
    """Return the window's growth by a rebase policy "task", "manual" or "grow:" with a factor.

    It is None for "task", infinity for "manual", else the factor.
    """
    if rebase == "task":
        return None
    if rebase == "manual":
        return math.inf
    factor = re.fullmatch(r"grow:(\d+(?:\.\d*)?)", rebase)
    if factor is None or not float(factor[1]) > 1:
        raise ValueError(
            f'rebase must be "task", "manual" or "grow:" with a factor above 1, got {rebase!r}'
        )
    return float(factor[1])


def next_length(
    growth: float | None, old: float | None, last: float | None, end: float | None
) -> float:
    """Return the window's length after an update; it never shrinks.

    All times are since t0: the last new stamp, None without any, and the end that a user asks for.
    """
    if end is not None and end < 0:
        raise ValueError(f"t_end must not lie before t0, got {-end:g} units of time before it")
    floor = max(old or 0.0, end or 0.0)
    if last is None:
        if old is None and end is None:
            raise ValueError("t must hold at least one stamp at first, or give t_end")
        return floor
    if growth is None or (old is None and (end is not None or math.isinf(growth))):
        return max(floor, last)
    return floor if math.isinf(growth) or last <= (old or 0.0) else max(floor, growth * last)
