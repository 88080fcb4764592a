"""The numerical core goes through torch.compile(fullgraph=True) with equal results.

In a process of its own, because the shape checks of the test suite cannot be traced; in one
process for everything, because starting it is what takes the time.
"""

import subprocess
import sys

import pytest

PROGRAM = """
import warnings
import torch
from torch.testing import assert_close
from probseq.errors import CholeskyError, JitterWarning
from probseq.gaussians import gauss_kl
from probseq.kernels import RBF, Exponential, Matern12, Matern32, Matern52
from probseq.linalg import safe_cholesky
from probseq.transformers import rbf_matrix

generator = torch.Generator().manual_seed(0)

def compiled(function):
    return torch.compile(function, fullgraph=True, backend="aot_eager")

def value_and_gradients(function, *leaves, inputs):
    value = function(*inputs)
    return value, *torch.autograd.grad(value.sin().sum(), leaves)

# safe_cholesky: as it is, and with one member that needs a thousand times the jitter.
root = torch.randn(3, 4, 4, generator=generator, dtype=torch.float64)
matrix = root @ root.mT
hard = matrix.clone()
hard[1] = 1 - 1e-6 * torch.eye(4, dtype=torch.float64)
cholesky = compiled(safe_cholesky)
for matrices, warned in ((matrix, 0), (hard, 1)):
    results = []
    for function in (safe_cholesky, cholesky):
        leaf = matrices.clone().requires_grad_()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            results.append(value_and_gradients(function, leaf, inputs=(leaf,)))
        assert sum(w.category is JitterWarning for w in caught) == warned, caught
    assert_close(results[1], results[0])
for bad, message in ((float("nan"), "1 NaN"), (-1.0, "not positive definite")):
    broken = matrix.clone()
    broken[2, 1, 1] = bad
    try:
        cholesky(broken)
    except CholeskyError as error:
        assert message in str(error), error
    else:
        raise AssertionError("no error")

# Kernels.
x = torch.randn(2, 5, 3, generator=generator, requires_grad=True)
for kernel_type in (RBF, Matern12, Matern32, Matern52, Exponential):
    kernel = kernel_type(3, batch_shape=(2,))
    leaves = [x, *kernel.parameters()]
    assert_close(
        value_and_gradients(compiled(kernel), *leaves, inputs=(x, x)),
        value_and_gradients(kernel, *leaves, inputs=(x, x)),
    )

# The same tensor twice.
leaf = x.detach().requires_grad_()
for function in (rbf_matrix, compiled(rbf_matrix)):
    results.append(value_and_gradients(function, leaf, inputs=(leaf, leaf)))
assert_close(results[-1], results[-2])

# Factorisation and divergence.
kernel = RBF(3, batch_shape=(2,))
z = torch.randn(2, 4, 3, generator=generator)
q_mu = torch.randn(2, 4, generator=generator, requires_grad=True)
q_sqrt = torch.randn(2, 4, 4, generator=generator, requires_grad=True)

def bound(q_mu, q_sqrt):
    L = safe_cholesky(kernel(z, z))
    return kernel(z, x).sum() - gauss_kl(q_mu, q_sqrt, L).sum()

assert_close(
    value_and_gradients(compiled(bound), q_mu, q_sqrt, inputs=(q_mu, q_sqrt)),
    value_and_gradients(bound, q_mu, q_sqrt, inputs=(q_mu, q_sqrt)),
)
"""


@pytest.mark.slow
def test_cholesky_kernels_and_conditioning_compile_into_one_graph():
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
