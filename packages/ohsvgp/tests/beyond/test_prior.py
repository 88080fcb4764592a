import pytest

from ohsvgp.beyond.prior import make_prior
from ohsvgp.likelihoods import NegativeBinomial, StudentT


def test_names_and_numbers_make_a_prior_that_keeps_its_digits():
    kernel, likelihood = make_prior(
        kernel="matern32", likelihood="student-t", lengthscale=0.1, noise=0.01, dim=2
    )
    assert kernel.lengthscale.flatten().tolist() == pytest.approx([0.1, 0.1], abs=1e-15)
    assert isinstance(likelihood, StudentT)
    assert likelihood.scale.item() == pytest.approx(0.1, abs=1e-15)
    assert isinstance(make_prior(likelihood="negative-binomial")[1], NegativeBinomial)
