"""The seam between the backbone and the methods: what every attention module must accept."""

from collections.abc import Callable, Iterator
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from probseq.transformers.outputs import AttentionOutput


class TokenMap:
    r"""The map from the previous block's attention output to this block's attention input.

    The tokens have gone through it before they reach the attention module. A module whose global
    inducing inputs live where the previous attention layer wrote (thesis Eq. 3.16, the map
    :math:`G_\phi`) sends them through the same map. Others ignore it.

    Args:
        function: the map, ``(..., dim) -> (..., dim)``.
        modules: the modules that it calls; caches look at their parameters.
    """

    def __init__(
        self, function: Callable[[Tensor], Tensor], modules: tuple[nn.Module, ...]
    ) -> None:
        self.function = function
        self.modules = modules

    def __call__(self, inputs: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        """Send ``inputs`` through the map."""
        return self.function(inputs)

    @property
    def training(self) -> bool:
        """Whether any part of the map is in training mode, where dropout makes it random."""
        return any(part.training for module in self.modules for part in module.modules())

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters on which the map depends."""
        for module in self.modules:
            yield from module.parameters()


@runtime_checkable
class AttentionModule(Protocol):
    """What the backbone asks of an attention module.

    Attributes:
        stochastic: whether a forward pass draws samples, in training and in evaluation.
    """

    stochastic: bool

    def __call__(
        self,
        x: Float[Tensor, "batch tokens dim"],
        mask: Bool[Tensor, "batch tokens"] | None = None,
        *,
        token_map: TokenMap | None = None,
        generator: torch.Generator | None = None,
        num_samples: int | None = None,
    ) -> AttentionOutput:
        """Attend.

        Args:
            x: tokens, already normalised by the block.
            mask: true at real tokens, false at padding; ``None`` means all are real.
            token_map: see :class:`TokenMap`; ``None`` in the first block.
            generator: source of the random draws.
            num_samples: draw this many samples and fold them into the batch, sample-major; only
                given to stochastic modules.
        """
        ...


def check_tokens(x: Tensor, mask: Tensor | None, dim: int) -> None:
    """Refuse tokens or a mask of the wrong shape or type.

    Raises:
        ValueError: ``x`` is not ``(batch, tokens, dim)``, is empty or not of a floating dtype, or
            ``mask`` is not a boolean ``(batch, tokens)``.
    """
    if x.ndim != 3 or x.shape[-1] != dim or 0 in x.shape:
        raise ValueError(
            f"x must have shape (batch, tokens, {dim}), all at least 1, got {tuple(x.shape)}"
        )
    if not x.is_floating_point():
        raise ValueError(f"x must be of a floating dtype, got {x.dtype}: convert it")
    if mask is not None and (mask.shape != x.shape[:2] or mask.dtype != torch.bool):
        raise ValueError(
            f"mask must be boolean of shape (batch, tokens)={tuple(x.shape[:2])}, true at real "
            f"tokens, got {mask.dtype} of shape {tuple(mask.shape)}"
        )


def check_num_samples(num_samples: int | None) -> None:
    """Refuse sample counts below one.

    Raises:
        ValueError: ``num_samples`` is neither ``None`` nor at least 1.
    """
    if num_samples is not None and num_samples < 1:
        raise ValueError(f"num_samples must be None or at least 1, got {num_samples!r}")
