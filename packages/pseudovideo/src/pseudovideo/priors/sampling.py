"""Draws from logits."""

import math

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from probseq.checks import check_counts

# Below it logits overflow when they are divided.
_LEAST_TEMPERATURE = 1e-6


def draw(
    logits: Float[Tensor, "*b K"],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Int64[Tensor, "*b"]:
    """Draw a token from softmax(logits / temperature), the unlikely ones left out where asked.

    One uniform number a draw, through the inverse of the distribution function: many times faster
    on a CPU than `torch.multinomial`, which takes a number for each token of the codebook.
    Temperature 0 gives the most likely token, the lowest among equals. `top_k` leaves only so many
    of the most likely tokens, then `top_p` the smallest set of these whose mass reaches it; equals
    are left out from the highest token on. The generator is on the logits' device.
    """
    check_options(temperature=temperature, top_k=top_k, top_p=top_p)
    if temperature == 0:
        return logits.argmax(dim=-1)
    values = (logits.float() if logits.dtype.itemsize < 4 else logits) / temperature
    if top_k is not None and top_k < values.shape[-1]:
        least = values.topk(top_k, dim=-1).values[..., -1:]
        values = values.masked_fill(~_largest(values, least, top_k), -torch.inf)
    probabilities = values.softmax(dim=-1)
    if top_p is not None and top_p < 1:
        falling = probabilities.sort(dim=-1, descending=True).values
        # A token stays while those before it don't reach top_p; the first always does.
        count = (falling.cumsum(dim=-1) - falling < top_p).sum(dim=-1, keepdim=True)
        least = falling.gather(-1, count - 1)
        probabilities = probabilities * _largest(probabilities, least, count)
    return _inverse(probabilities, generator)


def check_options(*, temperature: float, top_k: int | None, top_p: float | None) -> None:
    """Refuse what `draw` would not understand, before anything is computed."""
    if not (temperature == 0 or _LEAST_TEMPERATURE <= temperature < math.inf):
        raise ValueError(
            f"temperature must be 0 or at least {_LEAST_TEMPERATURE:g} and finite, "
            f"got {temperature}"
        )
    if top_k is not None:
        check_counts(top_k=top_k)
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1, got {top_p}")


def _largest(values: Tensor, least: Tensor, count: Tensor | int) -> Tensor:
    """Mark the `count` largest, `least` being the last of them; of equals the first ones."""
    above, equal = values > least, values == least
    room = count - above.sum(dim=-1, keepdim=True)
    return above | (equal & (equal.cumsum(dim=-1) <= room))


def _inverse(probabilities: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return the first token at which the distribution function passes a uniform number."""
    mass = probabilities.cumsum(dim=-1)
    total = mass[..., -1:]
    uniform = torch.rand(total.shape, dtype=mass.dtype, device=mass.device, generator=generator)
    uniform = total * uniform
    # Rounded up to the total it would pass no token.
    uniform = torch.minimum(uniform, torch.nextafter(total, torch.zeros_like(total)))
    # Logits that are not numbers have no such token: an index past the last would be the result.
    return torch.searchsorted(mass, uniform, right=True)[..., 0].clamp_(max=mass.shape[-1] - 1)
