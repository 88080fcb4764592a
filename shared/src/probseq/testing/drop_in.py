"""The tests of a method's module beside the attention of a library's model."""

# The name of a test is its docstring.
# ruff: noqa: D102

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from probseq.testing.attention import check
from probseq.testing.instruments import constant_noise
from probseq.transformers.adapters import deviations, penalty, remove_attention
from probseq.transformers.drawing import sample_predictions

__all__ = ["DropInSuite"]


class DropInSuite:
    """Inherit, name the class ``Test...``, and write ``model``, ``inputs`` and ``replace``.

    The method's module must take its noise from ``torch.randn``: the tests replace it by constants.

    Attributes:
        layers: attention modules that the model has.
    """

    layers: int = 2

    def model(self) -> nn.Module:
        """Return a new model in evaluation mode, in float32, with fresh weights."""
        raise NotImplementedError

    def inputs(self) -> dict[str, Any]:
        """Return the model's arguments for three examples, padded where it knows padding."""
        raise NotImplementedError

    def replace(self, model: nn.Module, **options: Any) -> nn.Module:
        """Call `replace_attention`, with ``layers`` and ``calibration``; the deviation shows."""
        raise NotImplementedError

    def silence(self, process: nn.Module) -> None:
        """Make a method's module deviate by zero."""
        raise NotImplementedError

    def at_prior(self, model: nn.Module) -> nn.Module:
        """Call `replace_attention` so that all modules are at their priors."""
        raise NotImplementedError

    def new(self, seed: int = 0) -> nn.Module:
        """Return a model whose weights are drawn from a seed."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self.model().eval()

    def changed(self, layers: Any = "all") -> nn.Module:
        """Return a model with deviations."""
        return self.replace(self.new(), layers=layers, calibration=self.inputs())

    def run(self, model: nn.Module) -> Tensor:
        """Return the first tensor that a model returns, which may be in float64."""
        dtype = next(model.parameters()).dtype
        return first_tensor(model(**{name: _cast(x, dtype) for name, x in self.inputs().items()}))

    @pytest.mark.parametrize("layers", ["last", "all"])
    @torch.no_grad()
    def test_a_deviation_of_zero_leaves_outputs_as_they_were(self, layers: Any) -> None:
        # In float64: how much float32 rounds depends on the processor.
        model = self.new().double()
        expected = self.run(model)
        inputs = {name: _cast(value, torch.float64) for name, value in self.inputs().items()}
        self.replace(model, layers=layers, calibration=inputs)
        processes = list(deviations(model).values())
        count = 1 if layers == "last" else self.layers
        check(len(processes) == count, f"{len(processes)} deviations")
        check(not torch.allclose(self.run(model), expected), "no deviation")
        for process in processes:
            self.silence(process)
        assert_close(self.run(model), expected, rtol=0.0, atol=1e-6)

    @torch.no_grad()
    def test_predictions_in_evaluation_mode_are_draws(self) -> None:
        model = self.changed("last")
        check(not torch.equal(self.run(model), self.run(model)), "two calls are equal")
        seeds = [torch.Generator().manual_seed(seed) for seed in (0, 0, 1)]
        first, same, other = (
            first_tensor(sample_predictions(model, num_samples=2, generator=seed, **self.inputs()))
            for seed in seeds
        )
        check(torch.equal(first, same), "a generator does not repeat itself")
        check(not torch.equal(first, other), "generators are ignored")
        check(not torch.equal(first[0], first[1]), "samples are equal")

    @torch.no_grad()
    def test_samples_in_one_batch_are_those_of_single_calls(self) -> None:
        model = self.changed().double()
        inputs: dict[str, Any] = {
            name: _cast(value, torch.float64) for name, value in self.inputs().items()
        }
        for noise in (0.0, 1.0):
            with constant_noise(noise):
                together = first_tensor(sample_predictions(model, num_samples=3, **inputs))
                alone = first_tensor(model(**inputs))
            check(together.shape == (3, *alone.shape), f"shape {tuple(together.shape)}")
            for sample in together:
                assert_close(sample, alone)

    @torch.no_grad()
    def test_what_was_removed_leaves_the_model_to_the_last_bit(self) -> None:
        model = self.new()
        keys, modules, expected = list(model.state_dict()), str(model), self.run(model)
        for _ in range(2):
            self.replace(model, layers="all", calibration=self.inputs())
            remove_attention(model)
        check(list(model.state_dict()) == keys, "other keys")
        check(str(model) == modules, "other modules")
        check(torch.equal(self.run(model), expected), "other outputs")

    @torch.no_grad()
    def test_weights_load_and_keep_their_names(self) -> None:
        first, second = self.changed(), self.replace(self.new(1), layers="all", calibration=None)
        old = self.new().state_dict()
        check(old.keys() <= first.state_dict().keys(), "weights were renamed")
        second.load_state_dict(first.state_dict())
        copied = copy.deepcopy(first)
        with constant_noise(1.0):
            expected = self.run(first)
            for other in (second, copied):
                assert_close(self.run(other), expected, rtol=0.0, atol=0.0)
        remove_attention(copied)
        check(len(deviations(first)) == self.layers, "a copy shares its hooks")

    def test_training_the_deviation_alone_leaves_all_else_as_it_was(self) -> None:
        model = self.changed().train()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        trained = [p for process in deviations(model).values() for p in process.parameters()]
        for parameter in trained:
            parameter.requires_grad_(True)
        (self.run(model).square().mean() + penalty(model)).backward()
        check(
            all(p.grad is not None and bool(p.grad.isfinite().all()) for p in trained), "gradient"
        )
        torch.optim.SGD(trained, lr=1e-3).step()
        for name, value in model.state_dict().items():
            changes = ".deviation." in name and not torch.equal(value, before[name])
            check(torch.equal(value, before[name]) or changes, f"{name} has changed")
        check(any(not torch.equal(v, before[n]) for n, v in model.state_dict().items()), "no step")

    def test_the_penalty_at_the_prior_is_zero(self) -> None:
        assert_close(penalty(self.at_prior(self.new())), torch.zeros(()))
        check(bool(penalty(self.changed()) > 0.0), "no penalty away from it")

    def test_what_cannot_be_is_refused_and_changes_nothing(self) -> None:
        model = self.new()
        text, expected = str(model), self.run(model)
        shapes = {name: None for name in self.inputs()}
        for options, message in (
            ({"layers": [self.layers]}, "layers must be among"),
            ({"layers": ["nothing"]}, "layers must be among"),
            ({"layers": [-1, self.layers - 1]}, "layers must name each module once"),
            ({"layers": []}, "layers must be 'last', 'all', indices or names"),
            ({"calibration": shapes}, "calibration must be a batch"),
        ):
            with pytest.raises(ValueError, match=message):
                self.replace(model, **{"layers": "last", "calibration": self.inputs(), **options})
            check(str(model) == text, "the model was changed")
            check(torch.equal(self.run(model), expected), "the model was changed")
        self.replace(model, layers="last", calibration=self.inputs())
        text = str(model)
        with pytest.raises(ValueError, match="has a deviation already"):
            self.replace(model, layers="all", calibration=self.inputs())
        check(str(model) == text, "the model was changed")


def _cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value.to(dtype) if value.is_floating_point() else value


def first_tensor(outputs: Any) -> Tensor:
    """Return the first floating tensor in what a model returns."""
    if isinstance(outputs, Tensor):
        return outputs
    values = outputs.values() if isinstance(outputs, Mapping) else outputs
    return next(first_tensor(value) for value in values if value is not None)
