"""An associative scan in place of a loop over time."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class Steps(NamedTuple):
    """What steps of time do to a site (G, h): (TᵀGT + Q, Tᵀh + b)."""

    transition: Float[Tensor, "t 1 h m m"]  # T, shape (t, 1, H, M, M): sequences share it
    precision: Float[Tensor, "t b h m m"]  # Q, shape (t, B, H, M, M)
    shift: Float[Tensor, "t b h m s"]  # b, one column a channel, shape (t, B, H, M, s)


def scan(steps: Steps) -> Steps:
    """Return, for every i, what the steps up to i do together.

    Their Q and b are the site of a sequence that began with none. Steps compose, in the order of
    time, to a step,

        (T₁, Q₁, b₁) ∘ (T₂, Q₂, b₂) = (T₁T₂, T₂ᵀQ₁T₂ + Q₂, T₂ᵀb₁ + b₂),

    and ∘ is associative: pairs of neighbours are composed, their results scanned, and what ends
    between pairs filled in. These are less than 2t compositions, in 2 log₂ t rounds.
    """
    if len(steps.transition) < 2:
        return steps
    first, second = _take(steps, slice(0, None, 2)), _take(steps, slice(1, None, 2))
    pairs = len(second.transition)
    at_second = scan(_compose(_take(first, slice(pairs)), second))
    later = _take(first, slice(1, None))
    between = _compose(_take(at_second, slice(len(later.transition))), later)
    at_first = [torch.cat([x[:1], y]) for x, y in zip(first, between, strict=True)]
    return Steps(*map(_interleave, at_first, at_second))


def _take(steps: Steps, places: slice) -> Steps:
    return Steps(*(tensor[places] for tensor in steps))


def _compose(before: Steps, after: Steps) -> Steps:
    T = after.transition
    return Steps(
        before.transition @ T,
        T.mT @ before.precision @ T + after.precision,
        T.mT @ before.shift + after.shift,
    )


def _interleave(first: Tensor, second: Tensor) -> Tensor:
    """Return first[0], second[0], first[1], …; ``first`` may have one more."""
    pairs = torch.stack([first[: len(second)], second], 1).flatten(0, 1)
    return torch.cat([pairs, first[len(second) :]])
