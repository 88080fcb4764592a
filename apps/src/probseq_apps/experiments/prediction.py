"""Predictive distributions: the mean over Monte Carlo samples, in batches, and their files."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from tqdm import tqdm

from probseq.metrics import energy_score
from probseq_apps.experiments.methods import MethodSpec
from probseq_apps.experiments.sampling import sample_outputs
from probseq_apps.experiments.stored import load_groups, save_groups

# Tokens, samples included, that go through the model at once.
_TOKENS_AT_ONCE = 65_536


class Predictions(NamedTuple):
    """What a model says about a test set; all that metrics and post-hoc methods need.

    Attributes:
        log_probs: logarithm of the mean over samples of the softmax.
        energy: −logsumexp of the logits, mean over samples.
        labels: true classes; those of another data set for out-of-distribution inputs.
    """

    log_probs: Float[Tensor, "n c"]
    energy: Float[Tensor, " n"]
    labels: Int64[Tensor, " n"]


class _Batch(NamedTuple):
    log_probs: Float[Tensor, "n c"]
    energy: Float[Tensor, " n"]


class Predictor:
    """Predicts as a method does.

    Args:
        method: says whether predictions are sampled, and how.
        prepare: gives a raw batch the form that the model takes.
        num_samples: Monte Carlo samples S of methods that sample; they run as one batch.
        tokens: tokens of one input, for the size of the batches.
    """

    def __init__(
        self,
        method: MethodSpec,
        *,
        prepare: Callable[[Tensor], Tensor],
        num_samples: int,
        tokens: int,
    ) -> None:
        self._method, self._prepare = method, prepare
        self._num_samples = num_samples if method.sampled else 1
        self._batch_size = max(1, _TOKENS_AT_ONCE // (tokens * self._num_samples))

    def batch(
        self, model: nn.Module, inputs: Tensor, generator: torch.Generator | None = None
    ) -> _Batch:
        """Predict one raw batch on the model's device.

        Args:
            model: transformer in eval mode.
            inputs: images as bytes, or tokens.
            generator: source of the attention modules' draws; dropout draws from the global one.
        """
        logits = sample_outputs(
            self._method,
            model,
            self._prepare(inputs),
            num_samples=self._num_samples,
            generator=generator,
        ).float()
        samples, classes = len(logits), logits.shape[-1]
        log_probs = torch.logsumexp(logits.log_softmax(-1), 0) - math.log(samples)
        energy = energy_score(logits.reshape(-1, classes)).unflatten(0, (samples, -1)).mean(0)
        return _Batch(log_probs, energy)

    def predict(
        self,
        model: nn.Module,
        inputs: Tensor,
        labels: Int64[Tensor, " n"],
        *,
        device: torch.device,
        seed: int,
        progress: tqdm | None = None,
    ) -> Predictions:
        """Predict a whole set; the global random generators are left as they were.

        Args:
            model: transformer in eval mode on the device.
            inputs: images as bytes, or tokens, on any device.
            labels: true classes.
            device: where to compute.
            seed: of all draws.
            progress: bar that counts inputs.
        """
        parts: list[_Batch] = []
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), torch.no_grad():
            torch.manual_seed(seed)
            generator = torch.Generator(device).manual_seed(seed)
            for chunk in inputs.split(self._batch_size):
                part = self.batch(model, chunk.to(device), generator)
                parts.append(_Batch(*(tensor.cpu() for tensor in part)))
                if progress is not None:
                    progress.update(len(chunk))
        log_probs, energy = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        return Predictions(log_probs, energy, labels.cpu())


def save_predictions(path: Path, sets: Mapping[str, Predictions]) -> None:
    """Write predictions as plain arrays named `SET/FIELD`, all or nothing."""
    save_groups(path, {name: predictions._asdict() for name, predictions in sets.items()})


def load_predictions(path: Path) -> dict[str, Predictions]:
    """Read what `save_predictions` wrote."""
    return {name: Predictions(**fields) for name, fields in load_groups(path).items()}
