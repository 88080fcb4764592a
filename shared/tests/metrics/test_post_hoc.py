import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from probseq.metrics import fit_temperature, held_out_nll, mean_log_probs, scale_log_probs


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
    fitted = fit_temperature(log_probs, labels)
    assert fitted == pytest.approx(np.exp(best.x), rel=1e-5)
    assert fitted == pytest.approx(scale, rel=0.2)


def test_scaling_is_softmax_of_logits_over_temperature():
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    scaled = scale_log_probs(logits.log_softmax(-1), 2.5).exp()
    torch.testing.assert_close(scaled, (logits / 2.5).softmax(-1))
    torch.testing.assert_close(scale_log_probs(logits.log_softmax(-1), 1.0), logits.log_softmax(-1))


def test_predictions_without_an_optimum_end_at_the_bounds_with_a_warning():
    logits = torch.eye(3)
    for labels, bound in ((torch.arange(3), 0.05), (torch.tensor([1, 2, 0]), 20.0)):
        with pytest.warns(UserWarning, match=f"the temperature {bound:g} is a bound of the search"):
            assert fit_temperature(logits.log_softmax(-1), labels) == bound


def test_a_temperature_of_predictions_that_have_none_is_one():
    assert fit_temperature(torch.full((4, 3), 1 / 3).log(), torch.tensor([0, 1, 2, 0])) == 1.0


def test_temperatures_are_found_to_round_off_by_few_passes_over_the_data(monkeypatch):
    passes, softmax = [], torch.Tensor.softmax
    generator = torch.Generator().manual_seed(0)
    logits = 30.0 * torch.randn(400, 9, generator=generator).double()
    labels = torch.multinomial((logits / 30).softmax(-1), 1, generator=generator)[:, 0]
    monkeypatch.setattr(
        torch.Tensor, "softmax", lambda own, axis: (passes.append(1), softmax(own, axis))[1]
    )
    inverse = torch.tensor(
        1.0 / fit_temperature((logits / 3).log_softmax(-1), labels), dtype=torch.float64
    )
    assert len(passes) < 20
    inverse.requires_grad_()
    loss = torch.nn.functional.cross_entropy(inverse * (logits / 3), labels)
    (slope,) = torch.autograd.grad(loss, inverse)
    assert abs(float(slope)) < 1e-10


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
        fit_temperature(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    with pytest.raises(ValueError, match="temperature must be positive"):
        scale_log_probs(torch.zeros(1, 3), 0.0)


def test_the_loss_of_a_half_is_at_the_temperature_of_the_other():
    log_probs, labels = overconfident(2, 3.0)
    halves = [(log_probs[k::2], labels[k::2]) for k in (0, 1)]
    plain = [negative_log_likelihood(*half, 1.0) for half in halves]
    assert held_out_nll(log_probs, labels, tempered=False) == pytest.approx(sum(plain) / 2)
    chosen = [fit_temperature(*half) for half in halves[::-1]]
    crossed = [negative_log_likelihood(*half, t) for half, t in zip(halves, chosen, strict=True)]
    found = held_out_nll(log_probs, labels, tempered=True)
    assert found == pytest.approx(sum(crossed) / 2, rel=1e-5)
    assert found < sum(plain) / 2
    with pytest.raises(ValueError, match="N at least 2"):
        held_out_nll(log_probs[:1], labels[:1], tempered=False)
    with pytest.raises(ValueError, match="labels"):
        held_out_nll(log_probs, labels + 5, tempered=False)


@pytest.mark.usefixtures("plain_calls")
def test_whole_numbers_are_no_log_probabilities():
    with pytest.raises(ValueError, match="log_probs must be a floating-point tensor"):
        held_out_nll(torch.zeros(4, 3).long(), torch.tensor([0, 1, 2, 0]), tempered=False)
