"""The one place where Monte Carlo samples are folded into the batch."""

from einops import repeat
from jaxtyping import Shaped
from torch import Tensor

from probseq.checks import check_counts


def repeat_samples(
    x: Shaped[Tensor, " batch *rest"], num_samples: int
) -> Shaped[Tensor, " folded *rest"]:
    """Fold ``num_samples`` copies of a batch into the batch axis, sample-major.

    ``(S * batch, ...)``; ``result.unflatten(0, (S, -1))[s]`` is copy ``s`` of ``x``.
    """
    check_counts(num_samples=num_samples)
    return repeat(x, "batch ... -> (samples batch) ...", samples=num_samples)
