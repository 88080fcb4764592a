import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from probseq.metrics import Predictions, accuracy, class_predictions
from probseq.transformers import Predictor, TransformerOutput, active_dropout


class Noisy(nn.Module):
    """Logits that depend on the inputs, and on draws where samples are asked for."""

    def forward(self, x, *, generator=None, num_samples=None):
        if num_samples is None:
            return TransformerOutput(x, x.new_zeros(()))
        noise = torch.randn((num_samples, *x.shape), generator=generator)
        return TransformerOutput(x + noise, x.new_zeros(()))


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x, *, generator=None, num_samples=None):
        assert num_samples is None
        return TransformerOutput(self.dropout(x), x.new_zeros(()))


def predict(model, seed, **options):
    found = Predictor(class_predictions, **options).predict(
        model.eval(), inputs(), device=torch.device("cpu"), seed=seed
    )
    return Predictions(*found, torch.zeros(9, dtype=torch.int64))


def inputs():
    return torch.randn(9, 3, generator=torch.Generator().manual_seed(0))


def test_a_deterministic_prediction_is_the_softmax_in_any_batch_size():
    whole, single = predict(Noisy(), 0), predict(Noisy(), 0, tokens=65_536)
    torch.testing.assert_close(whole.log_probs.exp(), inputs().softmax(-1))
    torch.testing.assert_close(whole.scores[:, 0], -inputs().double().logsumexp(-1))
    torch.testing.assert_close(single.log_probs, whole.log_probs)


def test_scores_count_over_batches_of_unequal_sizes():
    labels = inputs().argmax(1)
    labels[-1] = (labels[-1] + 1) % 3
    batches = [(inputs()[:5], labels[:5]), (inputs()[5:], labels[5:])]
    measure = lambda x, y: {"accuracy": accuracy(x.exp(), y)}  # noqa: E731
    found = Predictor(class_predictions).score(measure, Noisy(), batches)
    assert found == {"accuracy": pytest.approx(8 / 9)}


def test_a_sampled_prediction_is_the_mean_of_the_samples_softmax():
    found = predict(Noisy(), 5, num_samples=4)
    draws = inputs() + torch.randn((4, 9, 3), generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(found.log_probs.exp(), draws.softmax(-1).mean(0))
    torch.testing.assert_close(found.scores[:, 0], -draws.double().logsumexp(-1).mean(0))


def test_monte_carlo_dropout_draws_a_mask_for_each_sample_and_input():
    model = Dropping().eval()
    log_probs, scores = Predictor(class_predictions, num_samples=2000, dropout=True).predict(
        model, torch.ones(2, 2), device=torch.device("cpu"), seed=0
    )
    # Each logit is 0 or 2 with equal chances: the mean softmax is ½, the mean energy known.
    torch.testing.assert_close(log_probs.exp(), torch.full((2, 2), 0.5), atol=0.05, rtol=0)
    energies = [math.log(2), 2 + math.log(2), 2 * math.log(1 + math.exp(2))]
    expected = -(energies[0] + energies[1] + energies[2]) / 4
    found = scores[:, 0]
    torch.testing.assert_close(found, torch.full((2,), expected).double(), atol=0.1, rtol=0)
    assert found[0] != found[1]
    assert not model.dropout.training


@pytest.mark.parametrize(("dropout", "model"), [(False, Noisy()), (True, Dropping())])
def test_the_seed_decides_all_draws_and_the_global_generator_is_left_alone(dropout, model):
    state = torch.get_rng_state()
    first, second, other = (
        predict(model, seed, num_samples=4, dropout=dropout).log_probs for seed in (1, 1, 2)
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_only_dropout_is_active_and_weights_are_shared():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5), nn.BatchNorm1d(2)).eval()
    dropping = active_dropout(model)
    assert [module.training for module in dropping] == [False, True, False]
    assert not any(module.training for module in model)
    for one, other in zip(
        model.state_dict(keep_vars=True).values(),
        dropping.state_dict(keep_vars=True).values(),
        strict=True,
    ):
        assert one is other


@torch.no_grad()
def test_threads_predict_without_dropout_while_another_draws():
    model, x = nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 64)).eval(), torch.ones(1, 64)
    plain, dropping = model(x), active_dropout(model)
    with ThreadPoolExecutor(8) as pool:
        draws = pool.map(lambda _: dropping(x), range(400))
        answers = pool.map(lambda _: model(x), range(400))
        assert all(torch.equal(answer, plain) for answer in answers)
        assert not any(torch.equal(draw, plain) for draw in draws)
