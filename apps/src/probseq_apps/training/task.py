"""What the training loop asks of its caller: a loss, and a score of held-out data."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

Batch: TypeAlias = tuple[Tensor, ...]


class LossParts(NamedTuple):
    """The loss of one batch and what it is made of.

    Attributes:
        loss: what is minimised: a mean over the batch's examples, with gradient.
        parts: scalars for the log and for the message when the loss is not finite; the same names
            at each step.
    """

    loss: Float[Tensor, ""]
    parts: Mapping[str, Tensor]

    @classmethod
    def of(cls, parts: Mapping[str, Tensor]) -> "LossParts":
        """Split off the part named `loss`."""
        return cls(parts["loss"], {name: part for name, part in parts.items() if name != "loss"})


class Step(NamedTuple):
    """Where the training is when it asks for a loss.

    Attributes:
        number: optimizer steps done.
        epoch: passes over the data done.
        progress: steps done divided by all steps, for annealing.
        generator: source of noise on the batch's device; part of each checkpoint.
    """

    number: int
    epoch: int
    progress: float
    generator: torch.Generator


# The loss of a model on one batch: one tensor for each tensor of the training data, on the model's
# device. Under torchrun or `compile` the model comes wrapped and must be called, once.
Loss: TypeAlias = Callable[[Any, Batch, Step], LossParts]

# A score of a model on all held-out data, the higher the better, in eval mode, without gradients
# and with the same global seed each time. Batches are of unequal sizes: count over all of them.
Score: TypeAlias = Callable[[Any, Iterable[Batch]], float]


@runtime_checkable
class Players(Protocol):
    """A model of several networks with losses of their own: their gradients are no one vector."""

    @property
    def networks(self) -> Sequence[nn.Module]:
        """The networks; all parameters that are trained are in one of them."""
        ...
