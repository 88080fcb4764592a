"""An exponential moving average of the weights beside the weights that are trained."""

import contextlib
from collections.abc import Generator

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from probseq.checks import check_floating, check_not_negative, check_shares, check_whole


class WeightAverage:
    """Moving average of a model's parameters, in float32.

    After the optimizer step number n, counted from 0: a <- d_n a + (1 - d_n) θ with d_n =
    min(decay, (1 + n) / (10 + n)), where 0 < decay < 1. A fixed decay of .9999 would leave a run of
    a thousand steps with nine tenths of its initial weights; this one keeps a few of the last steps
    at first. Buffers are not averaged: the model's own stand beside the averaged parameters,
    because running statistics and codebooks are averages already, and counts have no average.

    Example:
        >>> model = torch.nn.Linear(2, 1)
        >>> average = WeightAverage(model, 0.999)
        >>> average.update(0)  # after each optimizer step
        >>> with average.applied():  # the average's output; then training may go on
        ...     output = model(torch.ones(4, 2))
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        check_shares(decay=decay)
        self._decay = decay
        # A tensor shared by two modules comes once, under its first name, as in the checkpoints.
        self._parameters = dict(model.named_parameters())
        self._averages = {
            name: parameter.detach().to(torch.float32, copy=True)
            for name, parameter in self._parameters.items()
        }

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the parameters after the optimizer step number `step`, counted from 0."""
        check_whole(step=step)
        check_not_negative(step=step)
        decay = min(self._decay, (1 + step) / (10 + step))
        current = [parameter.detach().float() for parameter in self._parameters.values()]
        get_ema_multi_avg_fn(decay)(list(self._averages.values()), current, None)

    @contextlib.contextmanager
    def applied(self) -> Generator[None]:
        """Put the averages into the model for a while; what was there comes back, bit for bit."""
        trained = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
        self.apply()
        try:
            yield
        finally:
            self._set(trained)

    def apply(self) -> None:
        """Put the averages into the model for good."""
        self._set(self._averages)

    def state_dict(self) -> dict[str, Tensor]:
        """Copy the averages, by the parameters' names, laid out as files have them."""
        return {
            name: average.clone(memory_format=torch.contiguous_format)
            for name, average in self._averages.items()
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on with stored averages."""
        mine, theirs = (
            {(name, tuple(entry.shape)) for name, entry in entries.items()}
            for entries in (self._averages, state)
        )
        if mine != theirs:
            raise ValueError(
                "state must have the names and shapes of this model's parameters; "
                f"they differ in {sorted(mine ^ theirs)}"
            )
        check_floating(**{f"state {name}": entry for name, entry in state.items()})
        for name, average in self._averages.items():
            average.copy_(state[name])

    @torch.no_grad()
    def _set(self, values: dict[str, Tensor]) -> None:
        for name, parameter in self._parameters.items():
            parameter.copy_(values[name])
