"""Predictive distributions: Monte Carlo samples in batches."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn
from tqdm import tqdm

from probseq.transformers import repeat_samples
from probseq_apps.baselines.backbone import active_dropout
from probseq_apps.data.parts import Part
from probseq_apps.engine import log
from probseq_apps.engine.config import derive_seed
from probseq_apps.settings.methods import Method

# Tokens, samples included, that go through the model at once.
_TOKENS_AT_ONCE = 65_536

# Made when it is needed: all corruptions of CIFAR-10 are two gigabytes.
TestSet: TypeAlias = Callable[[], Part]


@dataclass(frozen=True)
class Predictor:
    """Predicts as a method does.

    Attributes:
        method: says whether predictions are sampled, and how.
        prepare: gives a raw batch the form that the model takes.
        reduce: makes tensors with a row for each input of outputs (samples, inputs, outputs).
        num_samples: Monte Carlo samples S of methods that sample; they run as one batch.
        tokens: most tokens of an input, for the size of the batches.
    """

    method: Method
    prepare: Callable[[Tensor], Tensor]
    reduce: Callable[[Tensor], tuple[Tensor, ...]]
    num_samples: int
    tokens: int

    def batch(
        self, model: nn.Module, inputs: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, ...]:
        """Predict one raw batch on the model's device; dropout draws from the global generator."""
        return self.reduce(self._outputs(model, self.prepare(inputs), generator))

    def predict(
        self,
        model: nn.Module,
        inputs: Tensor,
        *,
        device: torch.device,
        seed: int,
        bar: tqdm | None = None,
    ) -> tuple[Tensor, ...]:
        """Predict a whole set; the global random generators are left as they were."""
        samples = self.num_samples if self.method.sampled else 1
        parts: list[tuple[Tensor, ...]] = []
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), torch.no_grad():
            torch.manual_seed(seed)
            generator = torch.Generator(device).manual_seed(seed)
            for chunk in inputs.split(max(1, _TOKENS_AT_ONCE // (self.tokens * samples))):
                found = self.batch(model, chunk.to(device), generator)
                parts.append(tuple(tensor.cpu() for tensor in found))
                if bar is not None:
                    bar.update(len(chunk))
        return tuple(map(torch.cat, zip(*parts, strict=True)))

    def sets(
        self, model: nn.Module, sets: Mapping[str, TestSet], *, device: torch.device, seed: int
    ) -> dict[str, tuple[Tensor, ...]]:
        """Predict sets by name; their targets come behind the predictions."""
        found: dict[str, tuple[Tensor, ...]] = {}
        with log.bar(total=None, unit=" inputs") as bar:
            for name, make in sets.items():
                bar.set_description_str(f"predicting {name}")
                part, own = make(), derive_seed(seed, f"predict {name}")
                predicted = self.predict(model, part.inputs, device=device, seed=own, bar=bar)
                found[name] = (*predicted, part.targets.cpu())
        return found

    def _outputs(
        self, model: nn.Module, inputs: Tensor, generator: torch.Generator | None
    ) -> Float[Tensor, "s n outputs"]:
        if not self.method.sampled:
            return model(inputs, generator=generator).logits[None]
        samples = self.num_samples
        if not self.method.test_dropout:
            return model(inputs, generator=generator, num_samples=samples).logits
        # Copies of the inputs, not `num_samples`: the dropout behind the embedding draws too.
        with active_dropout(model):
            copies = repeat_samples(inputs, samples)
            return model(copies, generator=generator).logits.unflatten(0, (samples, -1))
