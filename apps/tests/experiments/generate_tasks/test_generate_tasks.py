"""Tasks of tokenizers, priors and classifiers against what they should compute, by hand."""

import math

import pytest
import torch
from generate_runs import (
    LEVELS,
    images,
    make_prior_task,
    make_tokenizer_task,
    settings,
    tokens,
    train,
)
from torch import nn

from probseq_apps.data.generation import load_generation_data, to_unit
from probseq_apps.experiments.generate_tasks import ClassifierTask, numbered
from probseq_apps.training.loop import fit
from probseq_apps.training.runs import read_metrics
from pseudovideo.corruptions import PseudoVideoConfig


class Watched(nn.Module):
    """Notes what it is called with."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def forward(self, videos, *, step, generator):
        self.calls.append((step, videos, generator))
        return {"loss": torch.ones((), requires_grad=True), "reconstruction": torch.zeros(())}


def call(task, model, batch, progress=0.0):
    return task.loss(model, batch, progress=progress, generator=torch.Generator())


@pytest.mark.parametrize("total", [3, 49, 99_991, 10_000_019])
def test_step_and_epoch_are_exact_whatever_the_quotient_rounds_to(monkeypatch, total):
    seen = []
    monkeypatch.setattr(
        "probseq_apps.experiments.generate_tasks.pseudo_videos",
        lambda images, config, *, seed, epoch, index: seen.append(epoch) or images[:, None],
    )
    config = settings(steps=total)
    task, model = make_tokenizer_task(config), Watched()
    batch = (torch.zeros(1, 1, 16, 16, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64))
    generator = torch.Generator().manual_seed(total)
    steps = {0, 1, total - 1, *torch.randint(total, (200,), generator=generator).tolist()}
    steps |= {step - step % 5 for step in steps}  # first steps of epochs
    for step in steps:
        call(task, model, batch, progress=step / total)
        assert model.calls[-1][0] == step
        assert seen[-1] == step // 5


def test_videos_end_with_the_image_and_their_noise_is_that_of_run_epoch_and_image():
    pictures, _ = images()
    order = torch.tensor([5, 2, 9])

    def videos(chosen, *, step=0, seed=0):
        config, model = settings(seed=seed), Watched()
        call(make_tokenizer_task(config), model, (pictures[chosen], chosen), progress=step / 18)
        return model.calls[0][1]

    found = videos(order)
    assert found.shape == (3, 4, 1, 16, 16)
    assert torch.equal(found[:, -1], pictures[order].float() / 127.5 - 1)
    assert torch.equal(found, videos(order.flip(0)).flip(0))
    assert torch.equal(found, videos(order, step=4))
    assert not torch.equal(found, videos(order, step=5))
    assert not torch.equal(found, videos(order, seed=1))


def test_the_generator_and_the_parts_are_passed_on():
    model, generator = Watched(), torch.Generator()
    task = make_tokenizer_task(settings())
    batch = numbered(images()[0][:2])
    loss, parts = task.loss(model, batch, progress=0.0, generator=generator)
    assert model.calls[0][2] is generator
    assert loss.requires_grad
    assert list(parts) == ["reconstruction"]


def test_the_tokenizers_score_is_the_mean_of_each_last_frames_psnr():
    task = make_tokenizer_task(settings())
    pictures = images()[1][:7]
    task.model.eval()
    batches = zip(*(part.split(4) for part in numbered(pictures)), strict=True)
    with torch.no_grad():
        found = task.score(task.model, batches)
        again = task.score(task.model, [numbered(pictures)])
    # Noise in validation depends on the image's number alone.
    assert found == pytest.approx(again, abs=1e-5)
    seen = []
    inner = task.model.tokenizer.reconstruct
    task.model.tokenizer.reconstruct = lambda videos: (
        seen.append((videos, inner(videos))) or seen[-1][1]
    )
    task.score(task.model, [numbered(pictures)])
    [(videos, decoded)] = seen
    expected = 0.0
    for video, frames in zip(videos.double(), decoded.double(), strict=True):
        error = float(((video[-1] - frames[-1]) ** 2).mean())
        expected += 10 * math.log10(4 / error) / 7
    assert found == pytest.approx(expected, abs=1e-5)
    assert torch.equal(videos[:, -1], to_unit(pictures))


def test_noise_of_validation_is_not_that_of_training(monkeypatch):
    seeds = []
    monkeypatch.setattr(
        "probseq_apps.experiments.generate_tasks.pseudo_videos",
        lambda images, config, *, seed, index, epoch=0: seeds.append(seed) or images[:, None],
    )
    task, batch = make_tokenizer_task(settings()), numbered(images()[0][:3])
    task.model.tokenizer.reconstruct = lambda videos: videos
    call(task, Watched(), batch)
    task.score(task.model, [batch])
    assert seeds[0] != seeds[1]


def test_an_image_that_comes_back_to_the_bit_leaves_the_score_finite():
    task = make_tokenizer_task(settings())
    task.model.tokenizer.reconstruct = lambda videos: videos
    assert task.score(task.model, [numbered(images()[1][:3])]) == 100.0


def test_a_tokenizer_of_another_length_is_refused():
    from probseq_apps.experiments.generate_tasks import TokenizerTask

    objective = make_tokenizer_task(settings()).model
    with pytest.raises(ValueError, match="videos must have num_frames=4 as the tokenizer, got 8"):
        TokenizerTask(objective, PseudoVideoConfig(num_frames=8), settings(), 70)


def test_a_tokenizer_learns_digits(tmp_path):
    options = {"steps": 60, "ema_decay": None, "learning_rate": 5e-3, "validate_every": 4}
    train("tokenizer", tmp_path / "run", **options)
    rows = read_metrics(tmp_path / "run")
    scores = [row["score"] for row in rows if row["score"] is not None]
    # Means of the patches alone would give about 13 dB.
    assert scores[-1] > max(scores[0] + 1, 13)
    assert rows[-1]["parts"]["reconstruction"] < 0.5 * rows[0]["parts"]["reconstruction"]


@pytest.mark.parametrize("kind", ["autoregressive", "masked"])
def test_a_prior_learns_the_tokens_of_digits(tmp_path, kind):
    train(kind, tmp_path / "run", steps=80, learning_rate=1e-2)
    rows = read_metrics(tmp_path / "run")
    # Their tokens by frequency have 1.3 nats; evenly distributed ones log 8 = 2.1.
    grids = tokens(images()[0]).long()
    shares = torch.bincount(grids.flatten(), minlength=LEVELS) / grids.numel()
    entropy = float(torch.special.entr(shares).sum())
    assert -rows[-1]["score"] < entropy - 0.1
    assert rows[-1]["parts"] == {}


def test_the_autoregressive_score_is_the_mean_over_tokens_of_all_batches():
    task = make_prior_task("autoregressive")
    with torch.no_grad():
        # Logits are 0 before training.
        task.model.prior.head.weight.normal_(generator=torch.Generator().manual_seed(0))
    task.model.eval()
    grids = tokens(images()[1][:7])
    with torch.no_grad():
        found = task.score(task.model, ((part,) for part in grids.split(4)))
        log_probs = task.model.prior(grids.long()).double().log_softmax(-1)
    flat = grids.long().flatten(1)
    expected = (
        sum(float(log_probs[i, j, flat[i, j]]) for i in range(7) for j in range(flat.shape[1]))
        / flat.numel()
    )
    assert found == pytest.approx(expected, abs=1e-5)


def test_the_masked_score_is_the_same_with_the_same_global_seed():
    task = make_prior_task("masked")
    task.model.eval()
    scores = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        with torch.no_grad():
            scores.append(task.score(task.model, [(tokens(images()[1]),)]))
    assert scores[0] == scores[1] != scores[2]


def test_a_masked_prior_draws_its_masks_from_the_runs_generator():
    task = make_prior_task("masked")
    batch = (tokens(images()[0][:8]),)
    losses = []
    for seed in (0, 0, 1):
        generator = torch.Generator().manual_seed(seed)
        losses.append(task.loss(task.model, batch, progress=0.0, generator=generator).loss.item())
    assert losses[0] == losses[1] != losses[2]


def test_a_classifier_learns_digits(tmp_path):
    torch.manual_seed(0)
    data = load_generation_data("digits")
    task = ClassifierTask(
        nn.Sequential(nn.Flatten(), nn.Linear(256, 32), nn.GELU(), nn.Linear(32, 10))
    )
    result = fit(
        task,
        (data.train, data.labels.train),
        (data.validation, data.labels.validation),
        settings(steps=150, batch_size=64, ema_decay=None, select="best"),
        tmp_path / "run",
        progress=False,
    )
    assert result.best_score > 0.9
    with torch.no_grad():
        logits = task.model(data.validation.float() / 127.5 - 1)
    right = sum(
        int(row.argmax() == label)
        for row, label in zip(logits, data.labels.validation, strict=True)
    )
    assert result.best_score == pytest.approx(right / len(logits))
    rows = read_metrics(tmp_path / "run")
    assert 0.5 < rows[-1]["parts"]["accuracy"] <= 1.0
