"""Random Fourier features against the kernels that they stand for."""

import math

import numpy as np
import pytest
import scipy.stats
import torch

from probseq.fourier import fourier_features, sample_frequencies
from probseq.kernels import RBF, Matern12, Matern32, Matern52

STATIONARY = [RBF, Matern12, Matern32, Matern52]


def make(kernel_type):
    lengthscale = torch.tensor([[[0.5, 2.0]], [[1.5, 1.0]]], dtype=torch.float64)
    outputscale = torch.tensor([1.0, 2.5], dtype=torch.float64)
    return kernel_type(2, batch_shape=(2,), lengthscale=lengthscale, outputscale=outputscale)


@pytest.mark.parametrize("kernel_type", STATIONARY)
def test_inner_products_of_features_converge_to_the_kernel_of_each_head(kernel_type):
    kernel = make(kernel_type)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 2, generator=generator, dtype=torch.float64)
    z = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    count = 40_000
    frequencies = sample_frequencies(kernel, count, generator)
    assert frequencies.shape == (2, count, 2)
    phi_x = fourier_features(kernel, x, frequencies)
    phi_z = fourier_features(kernel, z, frequencies)
    assert phi_x.shape == (2, 6, 2 * count)
    # A mean of F cosines times σ_f²: standard error at most σ_f²/√F. Five of them.
    error = (phi_x @ phi_z.mT - kernel(x, z)).abs() / kernel.outputscale[:, None, None]
    assert error.max() < 5 / math.sqrt(count)


@pytest.mark.parametrize(
    ("kernel_type", "marginal"),
    [
        (RBF, scipy.stats.norm()),
        (Matern12, scipy.stats.t(1)),
        (Matern32, scipy.stats.t(3)),
        (Matern52, scipy.stats.t(5)),
    ],
)
def test_frequencies_have_the_spectral_density_as_marginals(kernel_type, marginal):
    kernel = kernel_type(2, lengthscale=3.0).double()
    frequencies = sample_frequencies(kernel, 20_000, torch.Generator().manual_seed(0))
    for column in frequencies.T.numpy():
        # A wrong scale or number of degrees of freedom gives p-values below 1e-10.
        assert scipy.stats.kstest(column, marginal.cdf).pvalue > 1e-3


def test_matern_frequencies_share_one_chi_square_per_frequency():
    # Independent t's in each dimension would make the kernel a product, not a function of r.
    kernel = Matern32(2).double()
    frequencies = sample_frequencies(kernel, 20_000, torch.Generator().manual_seed(0))
    rank_correlation = scipy.stats.spearmanr(*frequencies.abs().T.numpy()).statistic
    # Independent ones have correlation 0 ± 0.007.
    assert rank_correlation > 0.05


def test_features_equal_a_slow_loop():
    kernel = make(RBF)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 2, generator=generator, dtype=torch.float64)
    frequencies = sample_frequencies(kernel, 4, generator)
    lengthscale, outputscale = kernel.lengthscale.tolist(), kernel.outputscale.tolist()
    expected = np.zeros((2, 3, 8))
    for h in range(2):
        amplitude = math.sqrt(outputscale[h] / 4)
        for i in range(3):
            for f in range(4):
                phase = sum(
                    float(frequencies[h, f, j] * x[h, i, j] / lengthscale[h][0][j])
                    for j in range(2)
                )
                expected[h, i, f] = amplitude * math.cos(phase)
                expected[h, i, 4 + f] = amplitude * math.sin(phase)
    actual = fourier_features(kernel, x, frequencies).detach().numpy()
    np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-13)


def test_gradients_reach_inputs_and_hyperparameters():
    kernel = make(Matern32)
    x = torch.randn(3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    frequencies = sample_frequencies(kernel, 5, torch.Generator().manual_seed(0))
    assert not frequencies.requires_grad
    names = [name for name, _ in kernel.named_parameters()]

    class Features(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.kernel = kernel

        def forward(self, x):
            return fourier_features(self.kernel, x, frequencies)

    def evaluate(x, *values):
        parameters = {f"kernel.{name}": value for name, value in zip(names, values, strict=True)}
        return torch.func.functional_call(Features(), parameters, (x,))

    torch.autograd.gradcheck(evaluate, (x.requires_grad_(), *kernel.parameters()))
