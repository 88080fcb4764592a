import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch.distributions import Categorical, Laplace, MixtureSameFamily

from probseq.metrics import coverage_calibration_error
from probseq_apps.experiments.regress import (
    LEVELS,
    NumberPredictions,
    coverage_error,
    evaluate_numbers,
    interval_coverage,
    log_density,
    predictive_mean,
    predictive_variance,
)


def member(seed, *, samples=4, n=30, scale=0.8, spread=1.0):
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randn(n, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
    draws = torch.randn(samples, n, generator=generator, dtype=torch.float64)
    scale_tensor = torch.tensor(scale, dtype=torch.float64)
    return NumberPredictions(0.5 * targets + spread * draws, scale_tensor, targets)


MEMBERS = [member(0), member(1, scale=0.3), member(2, samples=4, scale=1.5)]


def mixture(members):
    """The predictive distribution, with torch.distributions."""
    locations = torch.cat([m.samples for m in members]).mT
    scales = torch.cat([m.scale.expand(len(m.samples)) for m in members]).expand_as(locations)
    return MixtureSameFamily(
        Categorical(torch.ones_like(locations)), Laplace(locations, scales), validate_args=False
    )


@pytest.mark.parametrize("members", [MEMBERS[:1], MEMBERS])
def test_mean_variance_and_density_are_those_of_the_mixture(members):
    expected = mixture(members)
    torch.testing.assert_close(predictive_mean(members), expected.mean)
    torch.testing.assert_close(predictive_variance(members), expected.variance)
    torch.testing.assert_close(log_density(members), expected.log_prob(members[0].targets))


@pytest.mark.parametrize("members", [MEMBERS[:1], MEMBERS])
def test_the_coverage_is_that_of_the_mixtures_quantiles(members):
    torch.manual_seed(0)
    draws = mixture(members).sample((20_000,))
    targets = members[0].targets
    for level, found in zip(
        (0.2, 0.5, 0.8), interval_coverage(members, (0.2, 0.5, 0.8)), strict=True
    ):
        low, high = draws.quantile(0.5 - level / 2, 0), draws.quantile(0.5 + level / 2, 0)
        expected = ((low <= targets) & (targets <= high)).double().mean().item()
        # A target at an interval's end may fall on either side.
        assert found == pytest.approx(expected, abs=1.5 / 30)
    assert interval_coverage(members, (0.0, 1.0)) == [0.0, 1.0]
    sampled = float(coverage_calibration_error(draws, targets))
    assert coverage_error(members) == pytest.approx(sampled, abs=0.01)


def test_right_distributions_cover_as_often_as_they_say():
    scale = torch.tensor(2.0, dtype=torch.float64)
    torch.manual_seed(0)
    center = torch.randn(1, 20_000, dtype=torch.float64)
    targets = Laplace(center[0], scale).sample()
    found = [NumberPredictions(center, scale, targets)]
    assert interval_coverage(found, LEVELS) == pytest.approx(LEVELS, abs=5 * 0.5 / 20_000**0.5)
    assert coverage_error(found) < 0.01


def test_metrics_agree_with_numpy_and_scikit_learn():
    test, outside = MEMBERS[:1], [member(5, spread=2.0)]
    values = evaluate_numbers({"test": test, "ood/swapped-edges": outside})
    predicted, truth = test[0].samples.mean(0).numpy(), test[0].targets.numpy()
    assert values["test/mae"] == pytest.approx(np.abs(predicted - truth).mean())
    assert values["test/rmse"] == pytest.approx(np.sqrt(((predicted - truth) ** 2).mean()))
    densities = np.exp(-np.abs(test[0].samples.numpy() - truth) / 0.8) / 1.6
    assert values["test/nll"] == pytest.approx(-np.log(densities.mean(0)).mean())
    scores = np.r_[test[0].samples.numpy().var(0), outside[0].samples.numpy().var(0)]
    labels = np.r_[np.zeros(30), np.ones(30)]
    prefix = "ood/swapped-edges/variance"
    assert values[f"{prefix}/auroc"] == pytest.approx(roc_auc_score(labels, scores))
    assert values[f"{prefix}/aupr-out"] == pytest.approx(average_precision_score(labels, scores))
    assert values[f"{prefix}/aupr-in"] == pytest.approx(
        average_precision_score(1 - labels, -scores)
    )


def test_a_deterministic_methods_variance_tells_nothing_apart():
    sets = {"test": [member(0, samples=1)], "ood/swapped-edges": [member(1, samples=1)]}
    values = evaluate_numbers(sets)
    assert values["ood/swapped-edges/variance/auroc"] is None
    # Two such models differ, and more so where they know less.
    pair = {name: [member(seed, samples=1) for seed in (0, 1)] for name in sets}
    assert evaluate_numbers(pair)["ood/swapped-edges/variance/auroc"] == 0.5
