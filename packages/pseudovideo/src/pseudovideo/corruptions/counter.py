"""Normal numbers without a state: each is a hash of where it stands.

The noise of a video then depends on (seed, epoch, index) and on nothing else: not on the order of
a batch, its size, the number of workers or the device. The hash is the finaliser of splitmix64
(Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators"), in int64 arithmetic
that wraps around.
"""

import math

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from probseq.checks import check_counts, check_whole

_WORD = 1 << 64
_GOLDEN = 0x9E3779B97F4A7C15
# (shift, multiplier) of the two rounds, then a last shift.
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT, _HALF = 31, 1 << 32


def counter_normal(
    index: Int64[Tensor, " b"], count: int, *, seed: int, epoch: int
) -> Float32[Tensor, "b count"]:
    """Return standard normal numbers, a row for each index, on its device.

    A 64-bit hash of (seed, epoch, index, place) gives two uniform numbers of 32 bits, and Box and
    Muller's transform two normal ones, of absolute value up to 6.8. Seed and epoch, the pass over
    the data, are any integers. They are float32 whatever precision is computed in; devices may
    differ in the last digit, as their logarithms do.
    """
    check_counts(count=count)
    check_whole(seed=seed, epoch=epoch)
    if index.dtype != torch.int64 or index.ndim != 1:
        raise ValueError(
            f"index must be int64 of shape (b,), got {index.dtype} of shape {tuple(index.shape)}"
        )
    stream = _mix_integer(_mix_integer(seed + _GOLDEN) + epoch * _GOLDEN)
    keys = _mix(index * _signed(_GOLDEN) + _signed(stream))
    pairs = (count + 1) // 2
    # Places are hashed before they meet the key: streams of two keys are no shifts of each other.
    positions = _mix(torch.arange(1, pairs + 1, device=index.device) * _signed(_GOLDEN))
    hashed = _mix(keys[:, None] ^ positions)
    radius, angle = (_uniform(words) for words in (hashed >> 32, hashed))
    radius = radius.log_().mul_(-2).sqrt_()
    angle = angle.mul_(2 * math.pi)
    normals = torch.cat([angle.cos().mul_(radius), angle.sin_().mul_(radius)], dim=-1)
    return normals[:, :count]


def _uniform(words: Tensor) -> Tensor:
    """Return (k + ½)/2³² of the lower 32 bits k: never 0; 1 where float32 rounds up."""
    return (words & (_HALF - 1)).to(torch.float32).add_(0.5).mul_(1 / _HALF)


def _mix(words: Tensor) -> Tensor:
    for shift, multiplier in _ROUNDS:
        words = (words ^ _shifted(words, shift)).mul_(_signed(multiplier))
    return words.bitwise_xor_(_shifted(words, _LAST_SHIFT))


def _shifted(words: Tensor, shift: int) -> Tensor:
    """Shift logically to the right: int64's own fills with the sign."""
    return (words >> shift).bitwise_and_((1 << (64 - shift)) - 1)


def _mix_integer(word: int) -> int:
    word %= _WORD
    for shift, multiplier in _ROUNDS:
        word = (word ^ (word >> shift)) * multiplier % _WORD
    return word ^ (word >> _LAST_SHIFT)


def _signed(word: int) -> int:
    return word - _WORD if word >= _WORD // 2 else word
