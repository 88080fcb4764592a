"""The autoregressive prior: order, cache, loss, samples."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from pseudovideo.priors import AutoregressiveConfig, AutoregressivePrior


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small_prior(
    grid: tuple[int, int, int] = (2, 2, 3), codebook_size: int = 5, *, trained: bool = True
) -> AutoregressivePrior:
    torch.manual_seed(0)
    config = AutoregressiveConfig(
        codebook_size=codebook_size, grid=grid, dim=24, depth=3, num_heads=4
    )
    prior = AutoregressivePrior(config)
    if trained:  # Fresh weights hardly tell tokens and places apart.
        with torch.no_grad():
            for weight in (prior.start, prior.embedding.weight, *prior.positions.parameters()):
                weight.mul_(40.0)
            prior.head.weight.normal_(std=0.5)
            prior.norm.bias.uniform_(-0.5, 0.5)
    return prior


def random_tokens(prior: AutoregressivePrior, n: int, seed: int = 1) -> Tensor:
    shape = (n, *prior.grid.shape)
    return torch.randint(prior.grid.codebook_size, shape, generator=seeded(seed))


# Logits and loss


def test_logits_are_those_of_the_network_written_out() -> None:
    prior = small_prior().double()
    tokens = random_tokens(prior, 2)
    expected = []
    for video in tokens:
        x, before = [], prior.start
        for t in range(2):
            for r in range(2):
                for c in range(3):
                    place = prior.positions
                    x.append(before + place.time[t] + place.rows[r] + place.columns[c])
                    before = prior.embedding.weight[video[t, r, c]]
        h = torch.stack(x)[None]
        for block in prior.blocks:
            h = block(h, causal=True)
        expected.append(prior.norm(h[0]) @ prior.head.weight.T)
    torch.testing.assert_close(prior(tokens), torch.stack(expected))


def test_a_token_changes_the_logits_of_later_tokens_only() -> None:
    prior = small_prior().double()
    tokens = random_tokens(prior, 1)
    logits = prior(tokens)
    for i in range(12):
        other = tokens.flatten(1).clone()
        other[0, i] = (other[0, i] + 1) % 5
        changed = (prior(other.view_as(tokens)) != logits).any(-1)[0]
        assert not changed[: i + 1].any()
        assert changed[i + 1 :].all()


def test_the_loss_is_the_mean_negative_log_probability_in_nats() -> None:
    prior = small_prior().double()
    tokens = random_tokens(prior, 3)
    total = 0.0
    for row, video in zip(prior(tokens).tolist(), tokens.flatten(1).tolist(), strict=True):
        for logits, token in zip(row, video, strict=True):
            total -= logits[token] - math.log(math.fsum(map(math.exp, logits)))
    assert prior.loss(tokens).item() == pytest.approx(total / 36, rel=1e-12)


def test_probabilities_of_all_grids_sum_to_one() -> None:
    prior = small_prior((1, 2, 2), 3).double()
    every = torch.cartesian_prod(*4 * [torch.arange(3)]).view(81, 1, 2, 2)
    log_p = prior(every).log_softmax(-1).gather(-1, every.flatten(1)[..., None]).sum((1, 2))
    assert log_p.exp().sum().item() == pytest.approx(1.0, abs=1e-12)


def test_before_training_every_token_costs_log_k() -> None:
    prior = small_prior(codebook_size=7, trained=False)
    assert prior.loss(random_tokens(prior, 4)).item() == pytest.approx(math.log(7), rel=1e-6)


def test_the_loss_takes_any_integers_and_batches_are_stacks_of_singles() -> None:
    prior = small_prior().double()
    tokens = random_tokens(prior, 4)
    assert torch.equal(prior.loss(tokens.short()), prior.loss(tokens))
    torch.testing.assert_close(prior(tokens), torch.cat([prior(one[None]) for one in tokens]))


# Sampling


@torch.no_grad()
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
def test_cached_logits_are_the_full_logits(dtype: torch.dtype, tolerance: float) -> None:
    prior = small_prior().to(dtype)
    tokens = random_tokens(prior, 3)
    flat = tokens.flatten(1)
    full = prior(tokens)
    for logits in (prior._cached(flat), prior._recomputed(flat)):
        found = torch.stack([step.clone() for step in logits], dim=1)
        torch.testing.assert_close(found, full, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.5}, {"temperature": 0.0}, {"top_k": 3}, {"top_p": 0.7}]
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_samples_with_a_cache_are_those_without(
    options: dict[str, Any], dtype: torch.dtype
) -> None:
    prior = small_prior(codebook_size=11).to(dtype)
    cached = prior.sample_tokens(6, generator=seeded(3), **options)
    plain = prior.sample_tokens(6, generator=seeded(3), cache=False, **options)
    assert torch.equal(cached, plain)


def test_samples_come_as_often_as_the_prior_says() -> None:
    prior = small_prior((1, 1, 2), 3).double()
    every = torch.cartesian_prod(torch.arange(3), torch.arange(3)).view(9, 1, 1, 2)
    with torch.no_grad():
        log_p = prior(every).log_softmax(-1).gather(-1, every.flatten(1)[..., None]).sum((1, 2))
    drawn = prior.sample_tokens(20_000, generator=seeded(4)).flatten(1)
    found = (3 * drawn[:, 0] + drawn[:, 1]).bincount(minlength=9) / 20_000
    expected = log_p.exp()
    assert ((found - expected).abs() <= 5 * (expected * (1 - expected) / 20_000).sqrt()).all()
    assert expected.max() < 0.9  # A point mass would prove little.


def test_temperature_zero_takes_the_most_likely_token_each_time() -> None:
    prior = small_prior().double()
    flat = torch.zeros(1, 12, dtype=torch.int64)
    with torch.no_grad():
        for i in range(12):
            flat[0, i] = prior(flat.view(1, 2, 2, 3))[0, i].argmax()
    assert torch.equal(prior.sample_tokens(1, temperature=0.0), flat.view(1, 2, 2, 3))


def test_weights_that_change_between_calls_change_samples() -> None:
    prior = small_prior()
    before = prior.sample_tokens(4, temperature=0.0)
    with torch.no_grad():
        prior.head.weight.neg_()
    assert not torch.equal(prior.sample_tokens(4, temperature=0.0), before)


def test_samples_may_be_learned_from() -> None:
    prior = small_prior()
    prior.loss(prior.sample_tokens(2, generator=seeded(5))).backward()
    assert prior.embedding.weight.grad is not None


# Learning, saving, refusals


def test_autocast_does_not_change_the_samples() -> None:
    prior = small_prior()
    plain = prior.sample_tokens(6, generator=seeded(3))
    with torch.autocast("cpu", torch.bfloat16):
        for cache in (True, False):
            assert torch.equal(prior.sample_tokens(6, generator=seeded(3), cache=cache), plain)


def test_it_learns_what_follows_what() -> None:
    torch.manual_seed(8)
    prior = small_prior((2, 1, 4), 6, trained=False)
    first = torch.randint(6, (256, 1), generator=seeded(9))
    tokens = ((first + torch.arange(8)) % 6).view(256, 2, 1, 4)
    optimizer = torch.optim.Adam(prior.parameters(), lr=1e-2)
    order = torch.randperm(256, generator=seeded(10)).view(8, 32)
    for step in range(60):
        optimizer.zero_grad()
        prior.loss(tokens[order[step % 8]]).backward()
        optimizer.step()
    # Only the first token is free: log 6 of 8 tokens.
    assert prior.loss(tokens).item() < math.log(6) / 8 + 0.1
    drawn = prior.sample_tokens(50, generator=seeded(11)).flatten(1)
    share = ((drawn.diff(dim=1) % 6) == 1).double().mean()
    assert share > 0.9
