"""The one place where Monte Carlo samples are folded into the batch."""

from collections.abc import Callable

from einops import repeat
from jaxtyping import Shaped
from torch import Tensor

from probseq.checks import check_counts
from probseq.transformers.outputs import TransformerOutput


def repeat_samples(
    x: Shaped[Tensor, " batch *rest"], num_samples: int
) -> Shaped[Tensor, " folded *rest"]:
    """Fold ``num_samples`` copies of a batch into the batch axis, sample-major.

    ``(S * batch, ...)``; ``result.unflatten(0, (S, -1))[s]`` is copy ``s`` of ``x``.
    """
    check_counts(num_samples=num_samples)
    return repeat(x, "batch ... -> (samples batch) ...", samples=num_samples)


def call_on_copies(
    model: Callable[[Tensor], TransformerOutput], inputs: Tensor, num_samples: int
) -> TransformerOutput:
    """Call a model that draws for each row on S copies of a batch; logits are ``(S, batch, ...)``.

    For models whose draws begin with the first layer; others take ``num_samples`` and compute once
    what comes before.
    """
    logits, penalty = model(repeat_samples(inputs, num_samples))
    return TransformerOutput(logits.unflatten(0, (num_samples, -1)), penalty)
