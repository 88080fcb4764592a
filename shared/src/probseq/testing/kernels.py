"""The tests that every kernel passes; a subclass says only how to make it and what it equals."""

# The name of a test is its docstring.
# ruff: noqa: D102

import warnings

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from probseq.errors import JitterWarning
from probseq.kernels import ARDKernel
from probseq.linalg import safe_cholesky

__all__ = ["KernelSuite"]

Array = npt.NDArray[np.float64]


class KernelSuite:
    """Inherit, name the class ``Test...``, and write ``make_kernel`` and ``reference``.

    Further hyperparameters than lengthscale and outputscale are to be fixed in ``random_kernel``.
    """

    offset: float = 30.0  # distance of inputs from the origin in the tests of float32
    float32_rtol: float = 2e-6  # relative error that float32 is allowed
    log_lengthscales: tuple[float, float] = (-3.0, 3.0)  # where values and gradients stay finite

    def make_kernel(self, batch_shape: tuple[int, ...], dim: int) -> ARDKernel:
        """Return a kernel with its hyperparameters at their initial values."""
        raise NotImplementedError

    def reference(self, x: Array, z: Array, lengthscale: Array, outputscale: float) -> float:
        """Return an independent value of k(x, z) at two points of shape (dim,), in float64."""
        raise NotImplementedError

    def random_kernel(self, batch_shape: tuple[int, ...], dim: int, seed: int = 0) -> ARDKernel:
        """Return a float64 kernel with random hyperparameters, distinct in every entry."""
        generator = torch.Generator().manual_seed(seed)
        kernel = self.make_kernel(batch_shape, dim).double()
        for parameter in kernel.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.data = 0.3 * noise
        return kernel

    def inputs(self, *shape: int, seed: int = 1) -> Tensor:
        """Return standard normal inputs in float64."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def test_equals_a_slow_loop_over_pairs_and_heads(self) -> None:
        kernel = self.random_kernel((2,), 3)
        x, z = self.inputs(2, 5, 3), self.inputs(2, 4, 3, seed=2)
        lengthscale = kernel.lengthscale.detach().numpy()
        outputscale = kernel.outputscale.detach().numpy()
        expected = np.zeros((2, 5, 4))
        for h in range(2):
            for i in range(5):
                for j in range(4):
                    expected[h, i, j] = self.reference(
                        x[h, i].numpy(), z[h, j].numpy(), lengthscale[h, 0], float(outputscale[h])
                    )
        np.testing.assert_allclose(kernel(x, z).detach().numpy(), expected, rtol=1e-10)

    def test_is_positive_definite(self) -> None:
        kernel = self.random_kernel((2,), 2)
        x = self.inputs(2, 20, 2)
        gram = kernel(x, x)
        # Eigenvalues are known up to round-off of the largest one.
        eigenvalues = torch.linalg.eigvalsh(gram)
        assert (eigenvalues[..., 0] > -1e-12 * eigenvalues[..., -1]).all()

    def test_diag_is_the_diagonal(self) -> None:
        kernel = self.random_kernel((2,), 3)
        for x in (self.inputs(3, 2, 6, 3), self.inputs(2, 6, 3), self.inputs(6, 3)):
            diagonal = kernel(x, x).diagonal(dim1=-2, dim2=-1)
            torch.testing.assert_close(kernel.diag(x), diagonal)

    def test_a_batch_is_a_stack_of_single_kernels(self) -> None:
        kernel = self.random_kernel((3,), 2)
        x, z = self.inputs(4, 3, 5, 2), self.inputs(3, 6, 2, seed=2)
        batched = kernel(x, z)
        single = self.make_kernel((), 2).double()
        for h in range(3):
            for parameter, stacked in zip(single.parameters(), kernel.parameters(), strict=True):
                parameter.data = stacked.data[h]
            for b in range(4):
                torch.testing.assert_close(batched[b, h], single(x[b, h], z[h]))

    def test_float32_agrees_with_float64_far_from_the_origin(self) -> None:
        kernel = self.random_kernel((2,), 3)
        # Rounded to float32 first, so that both see the same inputs.
        x = (self.inputs(2, 6, 3) + self.offset).float()
        z = (self.inputs(2, 5, 3, seed=2) + self.offset).float()
        expected = kernel(x.double(), z.double())
        actual = kernel.float()(x, z)
        assert actual.dtype == torch.float32
        rtol = self.float32_rtol
        torch.testing.assert_close(actual.double(), expected, rtol=rtol, atol=rtol)

    def test_inputs_of_two_dtypes_are_taken_in_the_wider(self) -> None:
        kernel = self.random_kernel((), 3).float()
        x, z = self.inputs(4, 3).float(), self.inputs(5, 3, seed=2)
        for mixed, wide in ((kernel(x, z), kernel(x.double(), z)), (kernel(z, x).mT, kernel(x, z))):
            torch.testing.assert_close(mixed, wide)

    def test_gradients_agree_with_finite_differences(self) -> None:
        kernel = self.random_kernel((2,), 2)
        # Small inputs: gradcheck's tolerance is absolute, and exponentials of dot products grow.
        x, z = 0.5 * self.inputs(3, 2, 3, 2), 0.5 * self.inputs(2, 4, 2, seed=2)
        names = [name for name, _ in kernel.named_parameters()]

        def evaluate(x: Tensor, z: Tensor, *values: Tensor) -> Tensor:
            parameters = dict(zip(names, values, strict=True))
            return torch.func.functional_call(kernel, parameters, (x, z))

        inputs = (x.requires_grad_(), z.requires_grad_(), *kernel.parameters())
        torch.autograd.gradcheck(evaluate, inputs, fast_mode=True)
        torch.autograd.gradgradcheck(evaluate, inputs, fast_mode=True)

    def test_coincident_points_have_finite_gradients(self) -> None:
        kernel = self.make_kernel((), 2)
        x = self.inputs(4, 2).float()
        x = torch.cat([x, x[:2]]).requires_grad_()
        first = torch.autograd.grad(
            kernel(x, x).sin().sum(), [x, *kernel.parameters()], create_graph=True
        )
        second = torch.autograd.grad(
            torch.stack([g.sin().sum() for g in first]).sum(), [x, *kernel.parameters()]
        )
        assert all(gradient.isfinite().all() for gradient in (*first, *second))

    def test_hard_inputs_give_finite_values_and_factors_in_float32(self) -> None:
        x = self.inputs(16, 2).float()
        # Exact duplicates, near duplicates and an offset.
        x = torch.cat([x, x[:4], x[4:8] + 1e-6]) + self.offset
        for log_lengthscale in self.log_lengthscales:
            kernel = self.make_kernel((), 2)
            kernel.raw_lengthscale.data.fill_(log_lengthscale)
            points = x.clone().requires_grad_()
            gram = kernel(points, points)
            with warnings.catch_warnings():
                # Duplicates may well need more jitter than the default; they must not need all.
                warnings.simplefilter("ignore", JitterWarning)
                safe_cholesky(gram.detach())
            gradients = torch.autograd.grad(gram.sum(), [points, *kernel.parameters()])
            finite = all(tensor.isfinite().all() for tensor in (gram, *gradients))
            assert finite, f"lengthscale e^{log_lengthscale}"

    def test_state_dict_round_trip_gives_equal_values(self) -> None:
        kernel, fresh = self.random_kernel((2,), 3), self.make_kernel((2,), 3).double()
        x = self.inputs(2, 5, 3)
        assert not torch.equal(fresh(x, x), kernel(x, x)), "the test needs two different kernels"
        fresh.load_state_dict(kernel.state_dict())
        assert torch.equal(fresh(x, x), kernel(x, x)), "values differ after loading the state dict"

    def test_autocast_leaves_the_precision_alone(self) -> None:
        kernel = self.make_kernel((), 3)
        x = self.inputs(5, 3).bfloat16()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            actual = kernel(x, x)
        torch.testing.assert_close(actual, kernel(x.float(), x.float()), rtol=0, atol=0)
