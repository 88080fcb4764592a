"""Predictive distributions of numbers: Monte Carlo samples under a Laplace likelihood."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from probseq_apps.data.molecules import trim_tokens
from probseq_apps.experiments.methods import MethodSpec
from probseq_apps.experiments.regress_model import RegressionModel
from probseq_apps.experiments.sampling import sample_outputs
from probseq_apps.experiments.stored import load_groups, save_groups

# Tokens, samples included, that go through the model at once.
_TOKENS_AT_ONCE = 65_536


class NumberPredictions(NamedTuple):
    """What a model says about a test set, in the targets' own unit.

    The predictive distribution of target n is the mixture (1/S) Σ_s Laplace(samples[s, n], scale).

    Attributes:
        samples: function values f, one row a Monte Carlo sample.
        scale: b of the likelihood.
        targets: true values.
    """

    samples: Float[Tensor, "s n"]
    scale: Float[Tensor, ""]
    targets: Float[Tensor, " n"]


class NumberPredictor:
    """Predicts as a method does.

    Args:
        method: says whether predictions are sampled, and how.
        num_samples: Monte Carlo samples S of methods that sample; they run as one batch.
        tokens: tokens of the longest input, for the size of the batches.
        mean: of the training targets, which the model knows standardised.
        std: their standard deviation.
    """

    def __init__(
        self, method: MethodSpec, *, num_samples: int, tokens: int, mean: float, std: float
    ) -> None:
        self._method, self._mean, self._std = method, mean, std
        self._num_samples = num_samples if method.sampled else 1
        self._batch_size = max(1, _TOKENS_AT_ONCE // (tokens * self._num_samples))

    def batch(
        self,
        model: RegressionModel,
        tokens: Float[Tensor, "n t w"],
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "s n"]:
        """Function values for one batch on the model's device, in the targets' unit.

        Args:
            model: in eval mode.
            tokens: padded inputs.
            generator: source of the attention modules' draws; dropout draws from the global one.
        """
        outputs = sample_outputs(
            self._method,
            model,
            trim_tokens(tokens),
            num_samples=self._num_samples,
            generator=generator,
        )
        return self._mean + self._std * outputs[..., 0].double()

    def predict(
        self,
        model: RegressionModel,
        tokens: Float[Tensor, "n t w"],
        targets: Float[Tensor, " n"],
        *,
        device: torch.device,
        seed: int,
        progress: tqdm | None = None,
    ) -> NumberPredictions:
        """Predict a whole set; the global random generators are left as they were.

        Args:
            model: in eval mode on the device.
            tokens: padded inputs on any device.
            targets: true values.
            device: where to compute.
            seed: of all draws.
            progress: bar that counts inputs.
        """
        parts: list[Tensor] = []
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), torch.no_grad():
            torch.manual_seed(seed)
            generator = torch.Generator(device).manual_seed(seed)
            for chunk in tokens.split(self._batch_size):
                parts.append(self.batch(model, chunk.to(device), generator).cpu())
                if progress is not None:
                    progress.update(len(chunk))
            scale = self._std * model.likelihood.scale.double().cpu()
        return NumberPredictions(torch.cat(parts, 1), scale, targets.cpu())


def save_number_predictions(path: Path, sets: Mapping[str, NumberPredictions]) -> None:
    """Write predictions as plain arrays named `SET/FIELD`, all or nothing."""
    save_groups(path, {name: predictions._asdict() for name, predictions in sets.items()})


def load_number_predictions(path: Path) -> dict[str, NumberPredictions]:
    """Read what `save_number_predictions` wrote."""
    return {name: NumberPredictions(**fields) for name, fields in load_groups(path).items()}
