"""Losses of tokenizers, priors and classifiers against what they should compute, by hand."""

import pytest
import torch
from generate_runs import LEVELS, VIDEOS, images, make_prior, settings, tokens, train
from torch import nn

from probseq_apps.data.images import load_generation_data
from probseq_apps.engine.fit import fit
from probseq_apps.engine.log import read_metrics
from probseq_apps.engine.trainer import Step
from probseq_apps.experiments.reference import classifier_accuracy, classifier_loss, numbered
from probseq_apps.experiments.token_models import prior_loss, tokenizer_loss


class Watched(nn.Module):
    """Notes what it is called with."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def forward(self, videos, *, step, generator):
        self.calls.append((step, videos, generator))
        return {"loss": torch.ones((), requires_grad=True), "reconstruction": torch.zeros(())}


def test_videos_end_with_the_image_and_their_noise_is_that_of_run_epoch_and_image():
    pictures, _ = images()
    order = torch.tensor([5, 2, 9])

    def videos(chosen, *, epoch=0, seed=0):
        model, step = Watched(), Step(5 * epoch, epoch, 0.0, torch.Generator())
        tokenizer_loss(VIDEOS, seed, model, (pictures[chosen], chosen), step)
        return model.calls[0][1]

    found = videos(order)
    assert found.shape == (3, 4, 1, 16, 16)
    assert torch.equal(found[:, -1], pictures[order].float() / 127.5 - 1)
    assert torch.equal(found, videos(order.flip(0)).flip(0))
    assert not torch.equal(found, videos(order, epoch=1))
    assert not torch.equal(found, videos(order, seed=1))


def test_step_generator_and_parts_are_passed_on():
    model, generator = Watched(), torch.Generator()
    batch = numbered(images()[0][:2])
    loss, parts = tokenizer_loss(VIDEOS, 0, model, batch, Step(7, 1, 0.4, generator))
    assert model.calls[0][0] == 7
    assert model.calls[0][2] is generator
    assert loss.requires_grad
    assert list(parts) == ["reconstruction"]


def test_a_tokenizer_learns_digits(tmp_path):
    options = {"steps": 60, "ema_decay": None, "learning_rate": 5e-3}
    objective = train("tokenizer", tmp_path / "run", **options)
    rows = read_metrics(tmp_path / "run")
    assert rows[-1]["parts"]["reconstruction"] < 0.5 * rows[0]["parts"]["reconstruction"]
    held_out = images()[1].float() / 127.5 - 1
    with torch.no_grad():
        decoded = objective.tokenizer.reconstruct(held_out[:, None].expand(-1, 4, -1, -1, -1))
    # Means of the patches alone would give about 13 dB.
    assert 10 * torch.log10(4 / (decoded[:, -1] - held_out).square().mean()) > 12


@pytest.mark.parametrize("kind", ["autoregressive", "masked"])
def test_a_prior_learns_the_tokens_of_digits(tmp_path, kind):
    prior = train(kind, tmp_path / "run", steps=80, learning_rate=1e-2)
    # Their tokens by frequency have 1.3 nats; evenly distributed ones log 8 = 2.1.
    grids = tokens(images()[0]).long()
    shares = torch.bincount(grids.flatten(), minlength=LEVELS) / grids.numel()
    entropy = float(torch.special.entr(shares).sum())
    torch.manual_seed(0)
    with torch.no_grad():
        assert float(prior.loss(tokens(images()[1]))) < entropy - 0.1
    assert read_metrics(tmp_path / "run")[-1]["parts"] == {}


def test_the_autoregressive_loss_is_the_mean_over_all_tokens():
    prior, grids = make_prior("autoregressive"), tokens(images()[1][:7])
    with torch.no_grad():
        # Logits are 0 before training.
        prior.head.weight.normal_(generator=torch.Generator().manual_seed(0))
        found = prior_loss(prior, (grids,), Step(0, 0, 0.0, torch.Generator())).loss
        log_probs = prior(grids.long()).double().log_softmax(-1)
    flat = grids.long().flatten(1)
    expected = -sum(
        float(log_probs[i, j, flat[i, j]]) for i in range(7) for j in range(flat.shape[1])
    )
    assert float(found) == pytest.approx(expected / flat.numel(), abs=1e-5)


def test_a_masked_prior_draws_its_masks_from_the_runs_generator():
    prior, batch = make_prior("masked"), (tokens(images()[0][:8]),)
    losses = []
    for seed in (0, 0, 1):
        step = Step(0, 0, 0.0, torch.Generator().manual_seed(seed))
        losses.append(prior_loss(prior, batch, step).loss.item())
    assert losses[0] == losses[1] != losses[2]


def test_a_classifier_learns_digits(tmp_path):
    torch.manual_seed(0)
    data = load_generation_data("digits")
    model = nn.Sequential(nn.Flatten(), nn.Linear(256, 32), nn.GELU(), nn.Linear(32, 10))
    result = fit(
        model,
        (data.train, data.labels.train),
        settings(steps=150, batch_size=64, ema_decay=None, select="best"),
        tmp_path / "run",
        loss=classifier_loss,
        score=classifier_accuracy,
        held_out=(data.validation, data.labels.validation),
    )
    assert result.best_score > 0.9
    with torch.no_grad():
        logits = model(data.validation.float() / 127.5 - 1)
    right = sum(
        int(row.argmax() == label)
        for row, label in zip(logits, data.labels.validation, strict=True)
    )
    assert result.best_score == pytest.approx(right / len(logits))
    rows = read_metrics(tmp_path / "run")
    assert 0.5 < rows[-1]["parts"]["accuracy"] <= 1.0
