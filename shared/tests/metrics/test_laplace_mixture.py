import pytest
import torch
from torch.distributions import Categorical, Laplace, MixtureSameFamily

from probseq.metrics import (
    COVERAGE_LEVELS,
    LaplaceMixture,
    coverage_calibration_error,
    evaluate_numbers,
)

TARGETS = torch.randn(30, generator=torch.Generator().manual_seed(99), dtype=torch.float64)


def mixture(*scales):
    generator = torch.Generator().manual_seed(0)
    draws = [torch.randn(4, 30, generator=generator, dtype=torch.float64) for _ in scales]
    samples = [0.5 * TARGETS + draw for draw in draws]
    return LaplaceMixture(samples, [torch.tensor(s, dtype=torch.float64) for s in scales])


def reference(found):
    """The predictive distribution, with torch.distributions."""
    locations = torch.cat(list(found.samples)).mT
    scales = torch.cat([scale.expand(4) for scale in found.scales]).expand_as(locations)
    return MixtureSameFamily(
        Categorical(torch.ones_like(locations)), Laplace(locations, scales), validate_args=False
    )


MIXTURES = [mixture(0.8), mixture(0.8, 0.3, 1.5)]


@pytest.mark.parametrize("found", MIXTURES)
def test_mean_variance_and_density_are_those_of_the_mixture(found):
    expected = reference(found)
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.variance, expected.variance)
    torch.testing.assert_close(found.log_prob(TARGETS), expected.log_prob(TARGETS))


@pytest.mark.parametrize("found", MIXTURES)
def test_the_coverage_is_that_of_the_mixtures_quantiles(found):
    torch.manual_seed(0)
    draws, levels = reference(found).sample((20_000,)), (0.2, 0.5, 0.8)
    for level, share in zip(levels, found.coverage(TARGETS, levels), strict=True):
        low, high = draws.quantile(0.5 - level / 2, 0), draws.quantile(0.5 + level / 2, 0)
        expected = ((low <= TARGETS) & (high >= TARGETS)).double().mean().item()
        # A target at an interval's end may fall on either side.
        assert share == pytest.approx(expected, abs=1.5 / 30)
    assert found.coverage(TARGETS, (0.0, 1.0)) == [0.0, 1.0]
    sampled = float(coverage_calibration_error(draws, TARGETS))
    assert found.coverage_error(TARGETS) == pytest.approx(sampled, abs=0.01)


def test_right_distributions_cover_as_often_as_they_say():
    scale = torch.tensor(2.0, dtype=torch.float64)
    torch.manual_seed(0)
    centre = torch.randn(1, 20_000, dtype=torch.float64)
    found, targets = LaplaceMixture([centre], [scale]), Laplace(centre[0], scale).sample()
    error = 5 * 0.5 / 20_000**0.5
    assert found.coverage(targets, COVERAGE_LEVELS) == pytest.approx(COVERAGE_LEVELS, abs=error)
    assert found.coverage_error(targets) < 0.01


def test_a_deterministic_models_variance_tells_nothing_apart():
    draws = torch.randn(2, 2, 1, 30, generator=torch.Generator().manual_seed(0)).double()
    names = ("test", "ood/other")
    for count, known in ((1, False), (2, True)):  # two of them differ
        sets = {
            name: (LaplaceMixture(list(own[:count]), [torch.tensor(0.5)] * count), TARGETS)
            for name, own in zip(names, draws, strict=True)
        }
        found = evaluate_numbers(sets)
        assert found["test/mae"] == pytest.approx(
            (draws[0, :count].mean(0) - TARGETS).abs().mean().item()
        )
        assert (found["ood/other/variance/auroc"] is not None) == known
