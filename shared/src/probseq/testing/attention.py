"""The tests that every attention module passes; a subclass says only how to make one."""

# The name of a test is its docstring.
# ruff: noqa: D102

import copy
import inspect
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from probseq.errors import JitterWarning
from probseq.testing.instruments import (
    OperatorRecord,
    batch_failure,
    compile_failure,
    constant_noise,
)
from probseq.transformers import AttentionModule, TextTransformer, TransformerConfig

__all__ = ["AttentionSuite"]


class AttentionSuite:
    """Inherit, name the class ``Test...``, and write ``make``.

    A stochastic module must take its noise from ``torch.randn(..., generator=generator)`` or
    ``torch.empty(...).normal_(generator=generator)``: the tests replace it by constants. No
    ``permuted_noises`` are for modules that are not permutation equivariant, no ``long_tokens`` for
    those that are allowed a square matrix, or whose code another suite tests. A process takes long
    to start: let one suite name the ``compile_modules`` of all variants.
    """

    permuted_noises: tuple[float, ...] = (0.0, 1.0)  # under which permuted tokens permute values
    offset: float = 30.0  # distance of tokens from the origin in the test of hard inputs
    log_lengthscale_shifts: tuple[float, ...] = (-3.0, 3.0)  # of the initial ones there
    float32_tol: float = 1e-4  # error that float32 is allowed, relative to the largest value
    bfloat16_tol: float = 0.1  # the same of autocast
    half: bool = False  # parameters may be in half precision; such a module works, others refuse
    long_tokens: int | None = 10_000  # so many need no tensor of a tenth of their square
    compile_imports: str = ""  # statements for a fresh process
    compile_modules: tuple[str, ...] = ()  # expressions of modules there, of width 4 with two heads

    def make(self, dim: int, num_heads: int) -> nn.Module:
        """Return a freshly initialised module, without dropout, for up to 16 tokens at least."""
        raise NotImplementedError

    def build(self, dim: int = 4, num_heads: int = 2, *, seed: int = 0) -> nn.Module:
        """Return a float64 module in evaluation mode with weights drawn from ``seed``."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            module = self.make(dim, num_heads).double().eval()
        message = "the module has no attribute stochastic: whether a forward pass draws"
        assert isinstance(module, AttentionModule), message
        return module

    def tokens(self, *shape: int, seed: int = 1) -> Tensor:
        """Return standard normal tokens in float64."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def noises(self, module: nn.Module) -> tuple[float, ...]:
        """Return constant noises worth trying on ``module``."""
        return (0.0, 1.0) if module.stochastic else (0.0,)

    def test_junk_padding_changes_nothing_at_real_tokens_or_in_the_penalty(self) -> None:
        module, x = self.build(), self.tokens(3, 5, 4)
        junk = 100.0 * self.tokens(3, 4, 4, seed=2)
        mask = torch.arange(9).expand(3, 9) < 5
        for noise in self.noises(module):
            with fixed_noise(noise):
                plain, padded = module(x), module(torch.cat([x, junk], 1), mask)
            assert_close(padded.values[:, :5], plain.values)
            assert_close(padded.penalty, plain.penalty)

    def test_sequences_of_mixed_lengths_equal_each_alone(self) -> None:
        module, lengths = self.build(), (1, 6, 3)
        x = self.tokens(3, 6, 4)
        mask = torch.arange(6) < torch.tensor(lengths)[:, None]
        for noise in self.noises(module):
            with fixed_noise(noise):
                together = module(x, mask)
                alone = [module(x[i : i + 1, :n]) for i, n in enumerate(lengths)]
            for i, n in enumerate(lengths):
                assert_close(together.values[i, :n], alone[i].values[0])
            # The mean over the batch: parts that no sequence enters are in each of them.
            assert_close(together.penalty, torch.stack([a.penalty for a in alone]).mean())

    def test_a_sequence_has_the_same_values_anywhere_in_the_batch(self) -> None:
        module, x = self.build(), self.tokens(4, 5, 4)
        mask = torch.arange(5) < torch.tensor([5, 2, 4, 3])[:, None]
        order = torch.tensor([2, 0, 3, 1])
        for noise in self.noises(module):
            with fixed_noise(noise):
                first, second = module(x, mask), module(x[order], mask[order])
            assert_close(second.values[mask[order]], first.values[order][mask[order]])
            assert_close(second.penalty, first.penalty)

    @pytest.mark.parametrize("pooling", ["mean", "sequence", "cls", "flatten"])
    def test_padding_changes_nothing_in_pooled_logits(self, pooling: Any) -> None:
        config = TransformerConfig(depth=2, dim=4, num_heads=2, hidden_dim=8, pooling=pooling)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = TextTransformer(
                config,
                vocab_size=9,
                max_length=12,
                num_classes=3,
                attention=lambda index: self.make(4, 2),
            )
        model = model.double().eval()
        generator = torch.Generator().manual_seed(3)
        tokens = torch.randint(1, 9, (3, 6), generator=generator)
        mask = torch.arange(6) < torch.tensor([6, 1, 4])[:, None]
        noises = self.noises(model.encoder.attention[0])
        for noise in noises:
            with fixed_noise(noise):
                plain = model(tokens.masked_fill(~mask, 0))
                longer = model(torch.nn.functional.pad(tokens.masked_fill(~mask, 0), (0, 6)))
                junk = model(tokens, mask)
            for other in (longer, junk):
                assert_close(other.logits, plain.logits)
                assert_close(other.penalty, plain.penalty)

    def test_a_sequence_of_nothing_but_padding_stays_finite_and_changes_no_other(self) -> None:
        module = self.build()
        x = self.tokens(3, 5, 4).requires_grad_()
        mask = torch.tensor([5, 0, 3])[:, None] > torch.arange(5)
        for noise in self.noises(module):
            with fixed_noise(noise):
                values, penalty = module(x, mask)
                others = module(x[[0, 2]], mask[[0, 2]]).values
            assert_close(values[[0, 2]][mask[[0, 2]]], others[mask[[0, 2]]])
            loss = values[mask].square().sum() + penalty
            for tensor in (values, penalty, *gradients(loss, x, module)):
                assert bool(tensor.isfinite().all()), f"not finite: {tensor}"

    def test_permuting_tokens_permutes_values(self) -> None:
        module, x = self.build(), self.tokens(2, 6, 4)
        mask = torch.arange(6) < torch.tensor([6, 4])[:, None]
        order = torch.tensor([3, 0, 5, 1, 4, 2])
        if not self.permuted_noises:
            # The flag is a claim too: it must not hide an equivariant module.
            with fixed_noise(0.0):
                plain, permuted = module(x).values, module(x[:, order]).values
            if not module.stochastic:
                assert not torch.allclose(permuted, plain[:, order]), "equivariant after all"
        for noise in self.permuted_noises if module.stochastic else (0.0,):
            with fixed_noise(noise):
                plain = module(x, mask)
                permuted = module(x[:, order], mask[:, order])
            real = mask[:, order]
            assert_close(permuted.values[real], plain.values[:, order][real])
            assert_close(permuted.penalty, plain.penalty)

    @pytest.mark.parametrize(
        ("heads", "batch", "length"), [(1, 3, 4), (2, 1, 4), (4, 3, 1), (1,) * 3]
    )
    def test_a_single_head_sequence_and_token_work(
        self, heads: int, batch: int, length: int
    ) -> None:
        module = self.build(4, heads).train()
        x = self.tokens(batch, length, 4).requires_grad_()
        values, penalty = module(x)
        assert values.shape == x.shape, f"values {tuple(values.shape)}"
        for tensor in (values, *gradients(values.sum() + penalty, x, module)):
            assert bool(tensor.isfinite().all()), f"not finite: {tensor}"

    def test_float32_agrees_with_float64(self) -> None:
        module = self.build(8, 2)
        # Rounded to float32 first, so that both see the same numbers.
        low = copy.deepcopy(module).float()
        high = copy.deepcopy(low).double()
        x = self.tokens(3, 7, 8).float()
        mask = torch.arange(7) < torch.tensor([7, 2, 4])[:, None]
        for noise in self.noises(module):
            with fixed_noise(noise):
                actual, expected = low(x, mask), high(x.double(), mask)
            dtypes = {actual.values.dtype, actual.penalty.dtype}
            assert dtypes == {torch.float32}, f"float32 in, {dtypes} out"
            close(actual.values[mask], expected.values[mask], self.float32_tol)
            close(actual.penalty, expected.penalty, self.float32_tol)

    def test_hard_inputs_give_finite_values_and_gradients_in_float32(self) -> None:
        for shift in self.log_lengthscale_shifts:
            for offset in (0.0, self.offset):
                module = self.build(8, 2).float().train()
                with torch.no_grad():
                    for name, parameter in module.named_parameters():
                        if name.endswith("raw_lengthscale"):
                            parameter += shift
                x = self.tokens(2, 8, 8).float()
                # Duplicates and near duplicates.
                x = torch.cat([x, x[:, :4], x[:, 4:6] + 1e-6], 1) + offset
                x.requires_grad_()
                with warnings.catch_warnings():
                    # More jitter than the default is allowed, and reported by this warning.
                    warnings.simplefilter("ignore", JitterWarning)
                    values, penalty = module(x)
                for tensor in (values, penalty, *gradients(values.sum() + penalty, x, module)):
                    where = f"lengthscales times e^{shift}, offset {offset}"
                    assert bool(tensor.isfinite().all()), f"{where}: not finite"

    def test_gradients_agree_with_finite_differences(self) -> None:
        module = self.build().train()
        x = self.tokens(2, 3, 4).requires_grad_()
        mask = torch.tensor([[True, True, True], [True, False, True]])
        names = [name for name, _ in module.named_parameters()]

        def evaluate(x: Tensor, *values: Tensor) -> tuple[Tensor, Tensor]:
            parameters = dict(zip(names, values, strict=True))
            out = torch.func.functional_call(module, parameters, (x, mask))
            return out.values[mask], out.penalty

        with fixed_noise(1.0):
            torch.autograd.gradcheck(evaluate, (x, *module.parameters()), fast_mode=True)

    def test_a_generator_fixes_the_draws_and_spares_the_global_generator(self) -> None:
        module, x = self.build(), self.tokens(2, 5, 4)
        before = torch.get_rng_state()
        same = [module(x, generator=torch.Generator().manual_seed(s)).values for s in (7, 7, 8)]
        assert torch.equal(before, torch.get_rng_state()), "the global generator was used"
        assert torch.equal(same[0], same[1]), "one seed, two values"
        assert torch.equal(same[0], same[2]) != module.stochastic, "another seed"

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_recomputed_activations_have_the_gradients_of_the_draws(self, reentrant: bool) -> None:
        module, gradients = self.build(), list[list[Tensor | None]]()
        x = self.tokens(2, 5, 4).requires_grad_()

        def call(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
            return module(x, generator=generator).values

        for run in (call, partial(checkpoint, call, use_reentrant=reentrant)):
            with torch.random.fork_rng():
                torch.manual_seed(0)
                run(x).square().sum().backward()
            gradients.append([each.grad for each in (x, *module.parameters())])
            for each in (x, *module.parameters()):
                each.grad = None
        assert_close(gradients[1], gradients[0])
        if module.stochastic:
            with pytest.raises(ValueError, match="generator must be None inside torch"):
                checkpoint(call, x, torch.Generator(), use_reentrant=reentrant)
        with torch.no_grad():
            checkpoint(call, x, torch.Generator(), use_reentrant=reentrant)

    def test_many_samples_equal_many_single_draws_in_distribution(self) -> None:
        module, x = self.build(), self.tokens(2, 2, 4)
        if not module.stochastic:
            return  # Never asked for samples.
        generator = torch.Generator().manual_seed(0)
        single, many = 1000, 4000
        with torch.no_grad():
            # Every sequence of a batch has other noise.
            draws = module(x.repeat(single, 1, 1), generator=generator).values
            out = module(x, generator=generator, num_samples=many)
            expected = module(x, generator=generator)
        assert out.values.shape == (2 * many, 2, 4), f"values {tuple(out.values.shape)}"
        assert_close(out.penalty, expected.penalty)
        # Sample-major: sample s of sequence b is row 2 s + b.
        folded, draws = out.values.view(many, -1), draws.view(single, -1)
        scale = folded.std(0)
        # Five and a half standard errors of the mean and of the covariance of a Gaussian.
        mean_error = (folded.mean(0) - draws.mean(0)).abs() / (
            scale * (1 / single + 1 / many) ** 0.5
        )
        assert bool((mean_error < 5.5).all()), f"means differ by {mean_error.max():.1f} deviations"
        cov, other = folded.T.cov(), draws.T.cov()
        error = (scale[:, None].square() * scale.square() + cov.square()).sqrt()
        error = (cov - other).abs() / (error * (1 / single + 1 / many) ** 0.5)
        assert bool((error < 5.5).all()), f"covariances differ by {error.max():.1f} deviations"
        centred = (folded - folded.mean(0)) / scale
        lagged = (centred[:-1].T @ centred[1:]).abs() / many**0.5
        assert bool((lagged < 5.5).all()), "successive samples depend on one another"

    def test_loading_weights_in_evaluation_mode_takes_effect(self) -> None:
        first, second = self.build(seed=0), self.build(seed=5)
        x = self.tokens(2, 5, 4)
        for context in (torch.enable_grad, torch.no_grad, torch.inference_mode):
            module = copy.deepcopy(first)
            with fixed_noise(1.0), context():
                before = module(x)
                module.load_state_dict(second.state_dict())
                after, expected = module(x), second(x)
            assert not torch.allclose(before.values, after.values), "the test needs two modules"
            assert torch.equal(after.values, expected.values), "values of the old weights"
            assert torch.equal(after.penalty, expected.penalty), "penalty of the old weights"

    def test_no_parameter_is_unused_in_training(self) -> None:
        module = self.build().train()
        x = self.tokens(2, 5, 4)
        values, penalty = module(x)
        (values.square().sum() + penalty).backward()
        for name, parameter in module.named_parameters():
            gradient = parameter.grad
            assert gradient is not None, f"{name} has no gradient: distributed runs hang"
            assert bool(gradient.any()), f"{name} has a zero gradient"

    def test_autocast_keeps_the_algebra_in_float32(self) -> None:
        module = self.build(8, 2).float()
        x = self.tokens(2, 6, 8).float()
        mask = torch.arange(6) < torch.tensor([6, 3])[:, None]
        record = OperatorRecord()
        with fixed_noise(1.0):
            plain = module(x, mask)
            with torch.autocast("cpu", dtype=torch.bfloat16), record:
                low = module(x, mask)
        assert "mm" in record.half or "addmm" in record.half, "the projections stayed in float32"
        roots = {"exp", "exp2", "expm1", "sqrt", "rsqrt"}
        algebra = {n for n in record.half if n.rstrip("_") in roots or n.startswith("linalg")}
        assert not algebra, f"{algebra} in half precision"
        close(low.values[mask].float(), plain.values[mask], self.bfloat16_tol)
        close(low.penalty.float(), plain.penalty, self.bfloat16_tol)

    @pytest.mark.slow
    def test_long_sequences_need_no_square_matrix(self) -> None:
        if self.long_tokens is None:
            return
        module = self.build(2, 1).float().train()
        x = self.tokens(1, self.long_tokens, 2).float().requires_grad_()
        with OperatorRecord() as record:
            values, penalty = module(x)
            (values.sum() + penalty).backward()
        limit = self.long_tokens**2 // 10
        message = "a tensor of {} elements for {} tokens; long_tokens = None allows all pairs"
        assert record.largest < limit, message.format(record.largest, self.long_tokens)

    @pytest.mark.slow
    def test_compiles_into_a_single_graph_with_equal_results(self) -> None:
        if not self.compile_modules:
            return  # Another suite names this module.
        failure = compile_failure(self.compile_imports, self.compile_modules)
        assert failure is None, failure or ""

    @pytest.mark.slow
    def test_a_graph_serves_batches_of_every_size(self) -> None:
        if not self.compile_modules:
            return  # Another suite names this module.
        failure = batch_failure(self.compile_imports, self.compile_modules)
        assert failure is None, failure or ""

    def test_wrong_tokens_and_masks_are_refused_by_name(self) -> None:
        module = self.build()
        # Unwrapped, because shape checks switched on by a test session would refuse first.
        forward = inspect.unwrap(type(module).forward)
        x = self.tokens(2, 5, 4)
        for bad in (x[0], x[None], x[..., :3], x[:0], x[:, :0]):
            with pytest.raises(ValueError, match=r"x must have shape \(batch, tokens, 4\)"):
                forward(module, bad)
        real = torch.ones(2, 5, dtype=torch.bool)
        for mask in (real[:, :4], real[:1], real[0], real[:, None], real.double(), real.long()):
            with pytest.raises(ValueError, match=r"mask must be boolean .*\(2, 5\)"):
                forward(module, x, mask)

    def test_dtypes_that_do_not_go_together_are_refused_by_name(self) -> None:
        module, x = self.build().float(), self.tokens(2, 5, 4)
        forward = inspect.unwrap(type(module).forward)
        for dtype in (torch.float64, torch.bfloat16, torch.float16):
            message = f"x must be torch.float32 as the module's parameters are, got {dtype}"
            with pytest.raises(ValueError, match=message):
                forward(module, x.to(dtype))
        with pytest.raises(ValueError, match=r"x must be torch\.float64 .* got torch\.float32"):
            forward(self.build(), x.float())
        # What autocast does not cast.
        with (
            torch.autocast("cpu", dtype=torch.bfloat16),
            pytest.raises(ValueError, match=r"x must be torch\.float32 .* got torch\.float64"),
        ):
            forward(module, x)
        for dtype in (torch.complex64, torch.int64):
            with pytest.raises(ValueError, match=f"x must be of a floating dtype, got {dtype}"):
                forward(module, x.to(dtype))

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_parameters_in_half_precision_work_or_are_refused_by_name(self, dtype: Any) -> None:
        module, x = self.build(8, 2).float(), self.tokens(2, 5, 8).float()
        mask = torch.arange(5) < torch.tensor([5, 3])[:, None]
        low = copy.deepcopy(module).to(dtype)
        if not self.half:
            message = f"parameters must be float32 or float64, got {dtype}: .* torch.autocast"
            with pytest.raises(ValueError, match=message):
                low(x.to(dtype), mask)
            return
        with fixed_noise(1.0):
            actual, expected = low(x.to(dtype), mask), module(x, mask)
        assert actual.values.dtype == dtype, f"{dtype} in, {actual.values.dtype} out"
        close(actual.values[mask].float(), expected.values[mask], self.bfloat16_tol)


@contextmanager
def fixed_noise(value: float) -> Generator[None]:
    """Replace all noise by a constant, and fail if there is noise that cannot be replaced."""
    before = torch.get_rng_state()
    try:
        with constant_noise(value):
            yield
    finally:
        untouched = torch.equal(torch.get_rng_state(), before)
        assert untouched, "draw noise by torch.randn or normal_ alone"


def gradients(loss: Tensor, x: Tensor, module: nn.Module) -> tuple[Tensor, ...]:
    """Return gradients with respect to tokens and parameters."""
    return torch.autograd.grad(loss, (x, *module.parameters()))


def close(actual: Tensor, expected: Tensor, tol: float) -> None:
    """Compare up to ``tol`` times the largest expected value."""
    expected = expected.to(actual.dtype)
    assert_close(actual, expected, rtol=0.0, atol=tol * float(expected.detach().abs().max()))
