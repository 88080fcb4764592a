"""Predictive class probabilities from S Monte Carlo samples in one batched pass."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd  # pyright: ignore[reportPrivateUsage]

from probseq.checks import check_counts
from probseq.transformers.outputs import TransformerOutput
from probseq.transformers.sampling import call_on_copies

# Tokens, samples included, that go through a model at once.
_TOKENS_AT_ONCE = 65_536
_Model = TypeVar("_Model", bound=nn.Module)


@torch.no_grad()
def predict_probabilities(
    model: Callable[..., TransformerOutput],
    *inputs: Tensor,
    num_samples: int = 10,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "batch classes"]:
    """Predictive class probabilities: the mean of the samples' softmax, S samples in one batch.

    The transformer is in evaluation mode; inputs are images, or tokens and mask.
    """
    check_counts(num_samples=num_samples)
    logits = model(*inputs, num_samples=num_samples, generator=generator).logits
    return logits.softmax(-1).mean(0)


def active_dropout(model: _Model) -> _Model:
    """Return a model with the weights of another, whose layers of dropout are active in eval mode.

    Predictions are Monte Carlo dropout then (Gal and Ghahramani 2016). The given model is not
    touched: threads may predict with it meanwhile. Parameters and buffers are the same tensors in
    both, until one is converted; modules are copies.
    """
    tensors: dict[int, Any] = {id(each): each for each in (*model.parameters(), *model.buffers())}
    dropping = copy.deepcopy(model, tensors)
    for module in dropping.modules():
        if isinstance(module, _DropoutNd):
            module.training = True
    return dropping


def has_dropout(model: nn.Module) -> bool:
    """Return whether a model has anything that :func:`active_dropout` makes active."""
    return any(isinstance(each, _DropoutNd) and each.p > 0 for each in model.modules())


@dataclass(frozen=True)
class Predictor:
    """Predicts in batches that fit a model, with Monte Carlo samples where it draws."""

    # Makes tensors with a row for each input of outputs (samples, inputs, outputs)
    reduce: Callable[[Tensor], tuple[Tensor, ...]]
    # Gives raw inputs the form that the model takes
    prepare: Callable[[Tensor], Tensor] = lambda inputs: inputs
    # Monte Carlo samples S, which run as one batch; None for a model that draws nothing
    num_samples: int | None = None
    dropout: bool = False  # these are draws of dropout, which stays active
    tokens: int = 1  # most tokens of an input, for the size of the batches

    def _batch(
        self, model: nn.Module, inputs: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, ...]:
        """Predict one raw batch on the model's device; dropout, if any, is active in it."""
        prepared, samples = self.prepare(inputs), self.num_samples
        if samples is None:
            return self.reduce(model(prepared, generator=generator).logits[None])
        if not self.dropout:
            return self.reduce(model(prepared, generator=generator, num_samples=samples).logits)
        # Copies of the inputs, not `num_samples`: the dropout behind the embedding draws too.
        call = partial(model, generator=generator)
        return self.reduce(call_on_copies(call, prepared, samples).logits)

    def score(
        self,
        measure: Callable[[Tensor, Tensor], Mapping[str, Tensor]],
        model: nn.Module,
        batches: Iterable[Sequence[Tensor]],
    ) -> dict[str, float]:
        """Measure the first of the reduced predictions on a whole set of inputs and targets."""
        model = active_dropout(model) if self.dropout else model
        outputs = [(self._batch(model, inputs)[0], targets) for inputs, targets in batches]
        measured = measure(*map(torch.cat, zip(*outputs, strict=True)))
        return {name: float(value) for name, value in measured.items()}

    @torch.no_grad()
    def penalty(
        self, model: nn.Module, inputs: Tensor, *, device: torch.device, seed: int
    ) -> float:
        """Return a model's penalty on a whole set, in nats an input: for SGPA its KL divergence."""
        generator, total = torch.Generator(device).manual_seed(seed), 0.0
        for chunk in inputs.split(max(1, _TOKENS_AT_ONCE // self.tokens)):
            penalty = model(self.prepare(chunk.to(device)), generator=generator).penalty
            total += len(chunk) * float(penalty)
        return total / len(inputs)

    @torch.no_grad()
    def predict(
        self,
        model: nn.Module,
        inputs: Tensor,
        *,
        device: torch.device,
        seed: int,
        progress: Callable[[int], object] | None = None,
    ) -> tuple[Tensor, ...]:
        """Predict a whole set, on the CPU; the global random generators are left as they were.

        The model is in eval mode, on the device. The seed is of all draws; dropout takes them from
        torch's global generator. `progress` is called after each batch with the number of its
        inputs.
        """
        model = active_dropout(model) if self.dropout else model
        chunks: list[tuple[Tensor, ...]] = []
        size = max(1, _TOKENS_AT_ONCE // (self.tokens * (self.num_samples or 1)))
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            generator = torch.Generator(device).manual_seed(seed)
            for chunk in inputs.split(size):
                outputs = self._batch(model, chunk.to(device), generator)
                chunks.append(tuple(tensor.cpu() for tensor in outputs))
                if progress is not None:
                    progress(len(chunk))
        return tuple(map(torch.cat, zip(*chunks, strict=True)))
