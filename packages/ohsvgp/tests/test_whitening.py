"""Factors of inducing covariances, by Cholesky and by eigenvalues."""

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from ohsvgp import Gaussian, LegS, OnlineGP
from ohsvgp.bases import AdamSteps, RandomSubset
from ohsvgp.whitening import whiten
from probseq.errors import CholeskyError, JitterWarning
from probseq.kernels import RBF


def spd(values: list[float], seed: int = 0) -> Tensor:
    """A matrix with these eigenvalues."""
    generator = torch.Generator().manual_seed(seed)
    n = len(values)
    Q = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64)).Q
    K = Q @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ Q.mT
    return (K + K.mT) / 2


@pytest.mark.parametrize("method", ["chol", "eig"])
def test_whitened_variables_have_unit_covariance(method: Any) -> None:
    K = torch.stack([spd([3.0, 1.0, 0.2]), spd([40.0, 2.0, 1.0], 1)])
    white = whiten(K, method=method, rel_jitter=1e-14)
    unit = white.matrix @ K @ white.matrix.mT
    torch.testing.assert_close(unit, torch.eye(3, dtype=K.dtype).expand(2, 3, 3))
    assert white.rank.tolist() == [3, 3]


def test_cholesky_adds_the_stated_jitter_and_says_so() -> None:
    K = spd([3.0, 1.0, 0.2])
    white = whiten(K, rel_jitter=1e-5)
    added = torch.linalg.inv(white.matrix.mT @ white.matrix) - K
    torch.testing.assert_close(
        added, 1e-5 * 1.4 * torch.eye(3, dtype=K.dtype), rtol=1e-6, atol=1e-12
    )
    assert math.isclose(float(white.jitter), 1.4e-5, rel_tol=1e-6)
    assert math.isclose(float(white.relative_jitter), 1e-5, rel_tol=1e-6)
    # 1e-8 in double precision, 1e-6 in single.
    assert math.isclose(float(whiten(K).relative_jitter), 1e-8, rel_tol=1e-3)
    assert math.isclose(float(whiten(K.float()).relative_jitter), 1e-6, rel_tol=0.3)


def test_jitter_grows_only_where_it_must_and_warns() -> None:
    K = torch.stack([spd([3.0, 1.0, 0.2]), spd([3.0, 1.0, -3e-6])])
    with pytest.warns(JitterWarning, match="1 of 2 matrices"):
        white = whiten(K)
    assert math.isclose(float(white.relative_jitter[0]), 1e-8, rel_tol=1e-3)
    assert math.isclose(float(white.relative_jitter[1]), 1e-5, rel_tol=1e-3)


def test_jitter_beyond_a_ten_thousandth_raises() -> None:
    with pytest.warns(JitterWarning, match="up to 1e-04"):
        whiten(spd([3.0, 1.0, -1e-4]))
    for start in (None, 1e-5, 1e-4):
        with pytest.raises(CholeskyError, match="relative jitter of 1e-04"):
            whiten(spd([3.0, 1.0, -2e-4]), rel_jitter=start)


@pytest.mark.parametrize("method", ["chol", "eig"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_covariances_that_are_not_finite_raise_at_once(bad: float, method: Any) -> None:
    K = spd([3.0, 1.0, 0.2])
    K[1, 0] = K[0, 1] = bad
    with pytest.raises(CholeskyError, match="must be finite"):
        whiten(K, method=method)


def test_half_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="float32 or float64"):
        whiten(torch.eye(2, dtype=torch.float16))


def test_eigenvalues_below_the_threshold_are_dropped_and_nothing_is_added() -> None:
    K = spd([3.0, 1.0, 1e-12, 0.0])
    white = whiten(K, method="eig", rel_jitter=1e-8)
    assert int(white.rank) == 2
    assert float(white.jitter) == 0.0
    # RᵀR is the pseudo-inverse on the directions that stay.
    torch.testing.assert_close(
        white.matrix.mT @ white.matrix, torch.linalg.pinv(K, rtol=1e-8, hermitian=True)
    )
    dropped = white.matrix[:2]
    assert float(dropped.abs().max()) == 0.0


def test_gradients_by_eigenvalues_are_right_where_eigenvalues_are_equal() -> None:
    K = spd([3.0, 1.0, 1.0, 1e-6, 1e-6]).requires_grad_()

    def pseudo_inverse(K: Tensor) -> Tensor:
        R = whiten(0.5 * (K + K.mT), method="eig", rel_jitter=1e-4).matrix
        return R.mT @ R

    # Central differences: the dropped directions turn, and the kept ones may.
    assert torch.autograd.gradcheck(pseudo_inverse, K, eps=1e-5)


def test_inducing_points_far_apart_are_learned_by_eigenvalues() -> None:
    # K_uu of the two points is the identity to the last bit.
    gp = OnlineGP(
        RBF(1),
        Gaussian(0.1),
        RandomSubset(2, learn=AdamSteps(steps=2)),
        whitening="eig",
    )
    gp.update([0.0, 100.0], [1.0, -1.0])
    assert bool(gp.predict([0.0, 50.0]).mean.isfinite().all())


@pytest.mark.parametrize("M", [6, 8])
def test_models_by_eigenvalues_agree_with_those_by_cholesky_where_well_conditioned(M: int) -> None:
    t = torch.linspace(0, 10, 60, dtype=torch.float64)
    laws = []
    for method in ("chol", "eig"):
        gp = OnlineGP(
            RBF(1, lengthscale=0.5), Gaussian(0.01), LegS(M), whitening=method, rel_jitter=1e-12
        )
        energies = [gp.update(t[part], t[part].sin()).energy for part in torch.arange(60).split(20)]
        law = gp.predict(torch.linspace(-1, 12, 30))
        laws.append((torch.stack(energies), law.mean, law.variance))
    for by_cholesky, by_eigenvalues in zip(*laws, strict=True):
        torch.testing.assert_close(by_cholesky, by_eigenvalues, rtol=1e-8, atol=1e-8)


def test_models_by_eigenvalues_stand_a_covariance_of_low_rank() -> None:
    t = torch.linspace(0, 1, 60, dtype=torch.float64)
    gp = OnlineGP(RBF(1, lengthscale=2.0), Gaussian(0.01), LegS(30), whitening="eig")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        info = gp.update(t, t.sin())
    assert 3 <= info.rank < 15
    assert info.jitter_used == 0.0
    law = gp.predict(t)
    assert float((law.mean - t.sin()).abs().max()) < 0.02
    assert float(law.variance.min()) > 0


def test_the_threshold_of_eigenvalues_is_a_share_of_the_mean_variance() -> None:
    """Between j/2 times the largest, where the threshold is, and j times it."""
    for small, rank in ((9e-5, 2), (4e-5, 1)):
        K = torch.diag(torch.tensor([1.0, small], dtype=torch.float64))
        assert int(whiten(K, method="eig", rel_jitter=1e-4).rank) == rank


def test_the_rank_of_a_batch_is_the_least_of_its_members() -> None:
    t = torch.linspace(0, 5, 20, dtype=torch.float64)
    scales = torch.tensor([0.3, 3.0], dtype=torch.float64)[:, None, None]

    def rank(kernel: RBF) -> int:
        gp = OnlineGP(kernel, Gaussian(0.01), LegS(15), whitening="eig")
        return gp.update(t, t.sin()).rank

    alone = [rank(RBF(1, lengthscale=scale)) for scale in scales]
    assert alone[1] < alone[0]
    assert rank(RBF(1, batch_shape=(2,), lengthscale=scales)) == alone[1]
