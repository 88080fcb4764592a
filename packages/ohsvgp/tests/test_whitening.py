"""Factors of inducing covariances."""

import math

import pytest
import torch
from torch import Tensor

from ohsvgp.whitening import whiten
from probseq.errors import CholeskyError, JitterWarning


def spd(values: list[float], seed: int = 0) -> Tensor:
    """A matrix with these eigenvalues."""
    generator = torch.Generator().manual_seed(seed)
    n = len(values)
    Q = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64)).Q
    K = Q @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ Q.mT
    return (K + K.mT) / 2


def test_whitened_variables_have_unit_covariance() -> None:
    K = torch.stack([spd([3.0, 1.0, 0.2]), spd([40.0, 2.0, 1.0], 1)])
    white = whiten(K, rel_jitter=1e-14)
    unit = white.matrix @ K @ white.matrix.mT
    torch.testing.assert_close(unit, torch.eye(3, dtype=K.dtype).expand(2, 3, 3))


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


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_covariances_that_are_not_finite_raise_at_once(bad: float) -> None:
    K = spd([3.0, 1.0, 0.2])
    K[1, 0] = K[0, 1] = bad
    with pytest.raises(CholeskyError, match="must be finite"):
        whiten(K)
