"""What the training loop asks of a method: a model, a loss and a validation score."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn


class LossParts(NamedTuple):
    """The loss of one batch and what it is made of.

    Attributes:
        loss: what is minimised: a mean over the batch's examples, with gradient.
        parts: detached scalars for the log and for the message when the loss is not finite; the
            same names at each step.
    """

    loss: Float[Tensor, ""]
    parts: dict[str, Tensor]


@runtime_checkable
class Players(Protocol):
    """A model of several networks with losses of their own: their gradients are no one vector."""

    @property
    def networks(self) -> Sequence[nn.Module]:
        """The networks; all parameters that are trained are in one of them."""
        ...


@runtime_checkable
class Task(Protocol):
    """A model with its objective, as `fit` trains it."""

    model: nn.Module

    def loss(
        self,
        model: nn.Module,
        batch: tuple[Tensor, ...],
        *,
        progress: float,
        generator: torch.Generator,
    ) -> LossParts:
        """Compute the objective of one batch.

        Args:
            model: `self.model`, or the wrapper of it that must be called in its place, once.
            batch: one tensor for each tensor of the training data, on the model's device.
            progress: steps done divided by all steps, for annealing.
            generator: source of noise on the batch's device; part of each checkpoint.
        """
        ...

    def score(self, model: nn.Module, batches: Iterable[tuple[Tensor, ...]]) -> float:
        """Score the model on the whole validation set; higher is better.

        Called in eval mode without gradients, and with the same global seed each time.

        Args:
            model: the model to score.
            batches: the validation data in its order, cut into batches of unequal sizes: count
                over all of them, a mean of their means is something else.
        """
        ...
