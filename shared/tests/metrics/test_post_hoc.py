import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from probseq.metrics import mean_log_probs, scale_log_probs, search_temperature
from probseq.metrics.post_hoc import is_bound


def overconfident(seed, scale):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(400, 5, generator=generator)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    return (scale * logits).log_softmax(-1), labels


def negative_log_likelihood(log_probs, labels, temperature):
    scaled = log_probs.double().numpy() / temperature
    scaled = scaled - np.log(np.exp(scaled).sum(-1, keepdims=True))
    return -scaled[np.arange(len(labels)), labels.numpy()].mean()


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
def test_the_temperature_minimises_the_validation_nll(scale):
    log_probs, labels = overconfident(0, scale)
    best = minimize_scalar(
        lambda log_t: negative_log_likelihood(log_probs, labels, np.exp(log_t)),
        bounds=(-3, 3),
        method="bounded",
        options={"xatol": 1e-10},
    )
    fitted = search_temperature(log_probs, labels)
    assert fitted == pytest.approx(np.exp(best.x), rel=1e-5)
    assert fitted == pytest.approx(scale, rel=0.2)


def test_scaling_is_softmax_of_logits_over_temperature():
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    scaled = scale_log_probs(logits.log_softmax(-1), 2.5).exp()
    torch.testing.assert_close(scaled, (logits / 2.5).softmax(-1))
    torch.testing.assert_close(scale_log_probs(logits.log_softmax(-1), 1.0), logits.log_softmax(-1))


def test_predictions_without_an_optimum_end_at_the_bounds():
    logits = torch.eye(3)
    for labels, bound in ((torch.arange(3), 0.05), (torch.tensor([1, 2, 0]), 20.0)):
        found = search_temperature(logits.log_softmax(-1), labels)
        assert found == bound
        assert is_bound(found)


def test_a_temperature_of_predictions_that_have_none_is_one():
    assert search_temperature(torch.full((4, 3), 1 / 3).log(), torch.tensor([0, 1, 2, 0])) == 1.0


def test_an_ensemble_is_the_mean_of_the_members_softmax():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 7, 4, generator=generator, dtype=torch.float64)
    combined = mean_log_probs(list(logits.log_softmax(-1)))
    torch.testing.assert_close(combined.exp(), logits.softmax(-1).mean(0))


def test_a_member_that_excludes_a_class_does_not_exclude_it_for_all():
    sure = torch.tensor([[0.0, -1e4]], dtype=torch.float64)
    unsure = torch.tensor([[0.5, 0.5]], dtype=torch.float64).log()
    expected = torch.tensor([[0.75, 0.25]], dtype=torch.float64)
    torch.testing.assert_close(mean_log_probs([sure, unsure]).exp(), expected)


def test_what_are_no_predictions_is_refused():
    with pytest.raises(ValueError, match="members must hold"):
        mean_log_probs([])
    with pytest.raises(ValueError, match="members must have the shape"):
        mean_log_probs([torch.zeros(2, 3), torch.zeros(3, 3)])
    with pytest.raises(ValueError, match="log_probs must not be empty"):
        search_temperature(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    with pytest.raises(ValueError, match="temperature must be positive"):
        scale_log_probs(torch.zeros(1, 3), 0.0)


@pytest.mark.usefixtures("plain_calls")
def test_whole_numbers_are_no_log_probabilities():
    with pytest.raises(ValueError, match="log_probs must be a floating-point tensor"):
        search_temperature(torch.zeros(4, 3).long(), torch.tensor([0, 1, 2, 0]))
