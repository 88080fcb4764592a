import numpy as np
import pytest
import sklearn.metrics
import torch

from probseq.metrics import coverage_calibration_error, mae, rmse

LEVELS = np.arange(0.05, 1.0, 0.1)


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("shape", [(50,), (10, 5)])
def test_errors_equal_sklearn(shape):
    mean, targets = draw(*shape, seed=1), draw(*shape, seed=2)
    expected = sklearn.metrics.root_mean_squared_error(targets.flatten(), mean.flatten())
    assert float(rmse(mean, targets)) == pytest.approx(expected, rel=1e-12)
    expected = sklearn.metrics.mean_absolute_error(targets.flatten(), mean.flatten())
    assert float(mae(mean, targets)) == pytest.approx(expected, rel=1e-12)


def loop_coverage(samples, targets):
    """Eq. 4.20 with numpy's quantiles."""
    total = 0.0
    for level in LEVELS:
        low = np.quantile(samples, (1 - level) / 2, axis=0)
        high = np.quantile(samples, (1 + level) / 2, axis=0)
        total += abs(np.mean((low <= targets) & (targets <= high)) - level)
    return total / len(LEVELS)


@pytest.mark.parametrize("num_samples", [2, 7, 100])
@pytest.mark.parametrize("spread", [0.3, 1.0, 3.0])
def test_coverage_error_equals_numpys_quantiles(num_samples, spread):
    samples, targets = spread * draw(num_samples, 40, seed=1), draw(40, seed=2)
    expected = loop_coverage(samples.numpy(), targets.numpy())
    assert float(coverage_calibration_error(samples, targets)) == pytest.approx(expected, rel=1e-9)


def test_coverage_error_of_exact_predictions_vanishes_and_of_wrong_ones_does_not():
    targets = draw(4_000, seed=1)
    samples = draw(400, 4_000, seed=2)
    exact = float(coverage_calibration_error(samples, targets))
    # 1/S from the quantiles, sqrt(c(1-c)/N) < 0.008 from the targets.
    assert exact < 0.01
    for spread in (0.5, 2.0):
        assert float(coverage_calibration_error(spread * samples, targets)) > 0.1
    assert float(coverage_calibration_error(samples + 2, targets)) > 0.1


def test_float32_predictions_are_scored_in_float64():
    mean, targets = draw(50, seed=1), draw(50, seed=2)
    low = rmse(mean.float(), targets.float())
    assert low.dtype == torch.float64
    assert float(low) == pytest.approx(float(rmse(mean, targets)), rel=1e-6)
