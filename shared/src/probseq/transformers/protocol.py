"""The seam between the backbone and the methods: what every attention module must accept."""

from collections.abc import Callable, Iterator
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from probseq.checks import check_counts, check_floating
from probseq.transformers.outputs import AttentionOutput


class TokenMap:
    r"""The map from the previous block's attention output to this block's attention input.

    The tokens have gone through it before they reach the attention module. A module whose global
    inducing inputs live where the previous attention layer wrote (thesis Eq. 3.16, the map
    :math:`G_\phi`) sends them through the same map. Others ignore it. Caches look at the parameters
    of its ``modules``, which the function calls.
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
        """True if any module of the map is in training mode, where dropout makes it random."""
        return any(submodule.training for module in self.modules for submodule in module.modules())

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters on which the map depends."""
        for module in self.modules:
            yield from module.parameters()


@runtime_checkable
class AttentionModule(Protocol):
    """Interface that the backbone asks of an attention module."""

    stochastic: bool  # whether a forward pass draws samples, in training and in evaluation

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


def check_tokens(
    x: Tensor, mask: Tensor | None, dim: int, weight: Tensor, *, half: bool = False
) -> None:
    """Refuse tokens or a mask that an attention module cannot take.

    The mask is true at real tokens. For ``weight``, the module's first one, and ``half`` see
    :func:`check_dtype`; the weight is ``x`` where a layer stands in its place that has none.
    """
    if x.ndim != 3 or x.shape[-1] != dim or 0 in x.shape:
        raise ValueError(
            f"x must have shape (batch, tokens, {dim}), all at least 1, got {tuple(x.shape)}"
        )
    check_dtype("x", x, weight, half=half)
    if mask is not None and (mask.shape != x.shape[:2] or mask.dtype != torch.bool):
        raise ValueError(
            f"mask must be boolean of shape (batch, tokens)={tuple(x.shape[:2])}, true at real "
            f"tokens, got {mask.dtype} of shape {tuple(mask.shape)}"
        )


def check_dtype(name: str, x: Tensor, weight: Tensor, *, half: bool = False) -> None:
    """Refuse inputs, of a caller's name, and parameters whose dtypes do not go together.

    Inputs have the dtype of the parameters; under autocast, which casts both, half precision may
    meet float32. ``half``: the module works with parameters in half precision. What factorises
    covariances or sums kernels does not: float32 is the least that holds their digits.
    """
    check_floating(**{name: x})
    allowed = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
    if weight.dtype not in (allowed if half else allowed[:2]):
        raise ValueError(
            f"parameters must be float32 or float64, got {weight.dtype}: keep the module in "
            "float32 and call it inside torch.autocast"
        )
    cast = torch.is_autocast_enabled(x.device.type) and torch.float64 not in (x.dtype, weight.dtype)
    if x.dtype != weight.dtype and not cast:
        raise ValueError(
            f"{name} must be {weight.dtype} as the module's parameters are, got {x.dtype}: convert "
            "one of them, or call the module inside torch.autocast for half precision"
        )


def check_num_samples(num_samples: int | None) -> None:
    """Refuse sample counts below one."""
    if num_samples is not None:
        check_counts(num_samples=num_samples)
