import itertools
import math

import pytest
import torch
from torch import Tensor

from pseudovideo.priors import masked as masked_module
from pseudovideo.priors.masked import MaskedConfig, MaskedPrior, draw_masks, unmasking_schedule


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small_prior(
    grid: tuple[int, int, int] = (2, 2, 3), codebook_size: int = 5, *, depth: int = 2, dim: int = 16
) -> MaskedPrior:
    torch.manual_seed(0)
    config = MaskedConfig(codebook_size=codebook_size, grid=grid, dim=dim, depth=depth, num_heads=2)
    prior = MaskedPrior(config)
    with torch.no_grad():  # At the start all tokens look alike; here they shall matter.
        for weight in (prior.embedding.weight, prior.mask, *prior.positions.parameters()):
            weight.mul_(50.0)
        prior.head.weight.mul_(2.0)
    return prior


def random_tokens(prior: MaskedPrior, n: int, seed: int = 1) -> Tensor:
    shape = (n, *prior.grid.shape)
    return torch.randint(prior.grid.codebook_size, shape, generator=seeded(seed))


# Masks of training


def drawn_masks(tokens: Tensor, seed: int) -> Tensor:
    return draw_masks(tokens, seeded(seed))


def test_every_sequence_has_the_number_of_masks_of_its_own_ratio() -> None:
    tokens = torch.zeros(500, 24, dtype=torch.int64)
    masked = drawn_masks(tokens, 3)
    ratios = torch.rand(500, 1, generator=seeded(3)).double().flatten().tolist()
    expected = [max(1, math.ceil(24 * math.cos(math.pi * u / 2))) for u in ratios]
    assert masked.sum(1).tolist() == expected
    assert min(expected) == 1
    assert max(expected) == 24


def test_masked_places_are_chosen_evenly_and_in_all_pairs() -> None:
    masked = drawn_masks(torch.zeros(60_000, 6, dtype=torch.int64), 5)
    two = masked[masked.sum(1) == 2].double()
    pairs = (two.T @ two)[torch.triu_indices(6, 6, offset=1).unbind()]
    share = 1 / 15
    error = (share * (1 - share) / len(two)) ** 0.5
    assert len(two) > 3000
    assert ((pairs / len(two) - share).abs() < 4.5 * error).all()


# The network


def test_masked_tokens_are_not_looked_at_and_all_others_are() -> None:
    prior = small_prior().double()
    tokens = random_tokens(prior, 3).flatten(1)
    masked = drawn_masks(tokens, 2)
    logits = prior(tokens, masked)
    others = (tokens + 1) % 5
    torch.testing.assert_close(
        prior(torch.where(masked, others, tokens), masked), logits, rtol=0, atol=0
    )
    unmasked = torch.zeros_like(masked)
    before = prior(tokens, unmasked)
    for place in (0, 5, 11):
        changed = tokens.clone()
        changed[:, place] = others[:, place]
        moved = (prior(changed, unmasked) - before).abs().amax(dim=(0, 2))
        assert (moved > 1e-6).all()  # every place sees every other: no order in it


def test_logits_at_places_are_those_of_the_full_pass() -> None:
    prior = small_prior().double()
    tokens = random_tokens(prior, 4).flatten(1)
    masked = drawn_masks(tokens, 2)
    places = torch.tensor([[3, 0], [11, 5], [7, 7], [2, 1]])
    full = prior(tokens, masked)
    expected = torch.stack([full[i, places[i]] for i in range(4)])
    torch.testing.assert_close(prior(tokens, masked, places), expected, rtol=0, atol=1e-12)


def test_a_batch_is_a_stack_of_singles_in_any_order() -> None:
    prior = small_prior().double()
    tokens = random_tokens(prior, 5).flatten(1)
    masked = drawn_masks(tokens, 2)
    full = prior(tokens, masked)
    singles = torch.cat([prior(tokens[i : i + 1], masked[i : i + 1]) for i in range(5)])
    torch.testing.assert_close(full, singles, rtol=0, atol=1e-12)
    order = torch.tensor([3, 1, 4, 0, 2])
    torch.testing.assert_close(prior(tokens[order], masked[order]), full[order])


# The loss


def test_loss_is_the_mean_over_masked_tokens_alone() -> None:
    prior = small_prior().double()
    tokens = random_tokens(prior, 4)
    kept: list[Tensor] = []
    handle = prior.head.register_forward_hook(lambda _module, _args, out: kept.append(out))
    loss = prior.loss(tokens, generator=seeded(7))
    handle.remove()
    (logits,) = kept
    masked = drawn_masks(tokens.flatten(1), 7)
    terms = [
        torch.logsumexp(logits[i, j], 0) - logits[i, j, tokens.flatten(1)[i, j]]
        for i in range(4)
        for j in range(12)
        if masked[i, j]
    ]
    assert 4 <= len(terms) < 48
    torch.testing.assert_close(loss, torch.stack(terms).mean(), rtol=1e-12, atol=0)
    (gradient,) = torch.autograd.grad(loss, logits)
    received = gradient.abs().sum(-1)
    assert (received[~masked] == 0).all()
    assert (received[masked] > 0).all()


def test_every_parameter_learns() -> None:
    prior = small_prior()
    prior.loss(random_tokens(prior, 8), generator=seeded(7)).backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in prior.parameters())


# Sampling


@pytest.mark.parametrize(
    ("num_tokens", "num_steps"), [(1, 1), (1, 18), (16, 18), (16, 12), (64, 18), (576, 12), (7, 7)]
)
def test_schedule_is_the_cosine_and_each_step_shows_a_token(
    num_tokens: int, num_steps: int
) -> None:
    left = unmasking_schedule(num_tokens, num_steps)
    steps = min(num_steps, num_tokens)
    assert len(left) == steps
    before = num_tokens
    for step, count in enumerate(left, start=1):
        cosine = math.floor(num_tokens * math.sin(math.pi / 2 * (1 - step / steps)) + 1e-9)
        assert count == min(cosine, before - 1)
        before = count
    assert left[-1] == 0


@pytest.mark.parametrize("num_steps", [1, 5, 12, 18])
def test_sampling_takes_one_pass_a_step_and_never_changes_a_kept_token(num_steps: int) -> None:
    prior = small_prior()
    calls: list[tuple[Tensor, Tensor, Tensor]] = []
    handle = prior.register_forward_pre_hook(
        lambda _module, args: calls.append(tuple(a.clone() for a in args))
    )
    passes: list[int] = []
    prior.blocks[0].register_forward_hook(lambda *_: passes.append(1))
    final = prior.sample_tokens(40, num_steps=num_steps, generator=seeded(1)).flatten(1)
    handle.remove()
    left = unmasking_schedule(12, num_steps)
    assert len(calls) == len(passes) == len(left) == min(num_steps, 12)
    for (tokens, masked, places), count in zip(calls, [12, *left], strict=False):
        assert (masked.sum(1) == count).all()
        assert (tokens[~masked] == final[~masked]).all()
        assert (torch.zeros_like(masked).scatter(1, places, True) == masked).all()
    assert final.min() >= 0
    assert final.max() < 5


@pytest.mark.parametrize("choice", [0.0, 0.3, 1.0])
def test_sampling_at_temperature_zero_is_the_loop_that_keeps_the_largest_confidence(
    choice: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    prior = small_prior().double()
    noise = torch.randn(12, generator=seeded(4), dtype=torch.float64)  # in the place of Gumbels
    calls: list[tuple[Tensor, Tensor, Tensor]] = []
    hook = prior.register_forward_pre_hook(
        lambda _module, args: calls.append(tuple(a.clone() for a in args))
    )
    monkeypatch.setattr(masked_module, "_gumbel", lambda *_, **__: noise[calls[-1][2]])
    drawn = prior.sample_tokens(2, num_steps=5, temperature=0.0, choice_temperature=choice)
    hook.remove()
    tokens = [0] * 12
    masked = [True] * 12
    for step, left in enumerate(unmasking_schedule(12, 5), start=1):
        assert calls[step - 1][1].tolist() == [masked, masked]
        logits = prior(torch.tensor([tokens]), torch.tensor([masked]))[0].log_softmax(-1)
        confidence = logits.amax(-1) + choice * (1 - step / 5) * noise
        surest = sorted((i for i in range(12) if masked[i]), key=lambda i: -confidence[i].item())
        for i in surest[: sum(masked) - left]:
            tokens[i], masked[i] = int(logits[i].argmax()), False
    assert drawn.flatten(1).tolist() == [tokens, tokens]


def law_of_sampling(
    prior: MaskedPrior, *, temperature: float, choice: float
) -> dict[tuple[int, ...], float]:
    """Probabilities of three tokens of K = 3 in three steps, by enumeration.

    At step s all open places draw; place i is the one that stays with probability
    softmax_i(log p_i(x_i) / (τ(1 − s/3))), by the law of the largest Gumbel.
    """

    def rest(fixed: dict[int, int], step: int) -> dict[tuple[int, ...], float]:
        if len(fixed) == 3:
            return {tuple(fixed[i] for i in range(3)): 1.0}
        tokens = torch.tensor([[fixed.get(i, 0) for i in range(3)]])
        masked = torch.tensor([[i not in fixed for i in range(3)]])
        logits = prior(tokens, masked)[0]
        sure, drawn = logits.log_softmax(-1), (logits / temperature).softmax(-1)
        places = [i for i in range(3) if i not in fixed]
        stays: dict[tuple[int, int], float] = {}
        for x in itertools.product(range(3), repeat=len(places)):
            chance = math.prod(drawn[i, k].item() for i, k in zip(places, x, strict=True))
            confidence = torch.stack([sure[i, k] for i, k in zip(places, x, strict=True)])
            shares = (confidence / (choice * max(1 - step / 3, 1e-9))).softmax(0).tolist()
            for i, k, share in zip(places, x, shares, strict=True):
                stays[i, k] = stays.get((i, k), 0.0) + chance * share
        law: dict[tuple[int, ...], float] = {}
        for (i, k), weight in stays.items():
            for x, chance in rest({**fixed, i: k}, step + 1).items():
                law[x] = law.get(x, 0.0) + weight * chance
        return law

    with torch.no_grad():
        return rest({}, 1)


@pytest.mark.slow
def test_frequencies_of_samples_are_the_law_of_the_algorithm() -> None:
    prior = small_prior((1, 1, 3), 3).double()
    law = law_of_sampling(prior, temperature=0.8, choice=3.0)
    assert abs(sum(law.values()) - 1) < 1e-12
    n = 40_000
    drawn = prior.sample_tokens(
        n, num_steps=3, temperature=0.8, choice_temperature=3.0, generator=seeded(8)
    )
    counts = torch.bincount(drawn.flatten(1) @ torch.tensor([9, 3, 1]), minlength=27).double()
    expected = n * torch.tensor([law[x] for x in itertools.product(range(3), repeat=3)])
    seen = expected > 5
    chi_squared = ((counts - expected) ** 2 / expected)[seen].sum()
    degrees = int(seen.sum()) - 1
    assert degrees >= 10
    assert chi_squared < degrees + 4 * (2 * degrees) ** 0.5


def test_noise_from_an_exact_zero_is_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "exponential_", lambda self, generator=None: self.zero_())
    for dtype in (torch.float32, torch.float64):
        noise = masked_module._gumbel(torch.zeros(3, dtype=dtype), generator=None)
        assert noise.isfinite().all()


# Chance, storage, refusals


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 3}, "num_heads must divide dim=16, got 3"),
        ({"grid": (2, 2)}, r"shape of the grid must be \(time, height, width\)"),
    ],
)
def test_settings_that_make_no_prior_are_refused(changes: dict[str, object], message: str) -> None:
    settings = {"codebook_size": 5, "grid": (1, 2, 2), "dim": 16, "depth": 1, "num_heads": 2}
    with pytest.raises(ValueError, match=message):
        MaskedPrior(MaskedConfig(**{**settings, **changes}))


@pytest.mark.parametrize(
    ("n", "options", "message"),
    [
        (0, {}, "n must be a whole number of at least 1, got 0"),
        (1, {"num_steps": 0}, "num_steps must be a whole number of at least 1, got 0"),
        (1, {"temperature": -1.0}, "temperature"),
        (1, {"temperature": math.nan}, "temperature"),
        (1, {"choice_temperature": -0.1}, "choice_temperature must be finite and not negative"),
        (1, {"choice_temperature": math.nan}, "choice_temperature must be finite and not negative"),
    ],
)
def test_bad_options_of_sampling_are_refused(
    n: int, options: dict[str, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        small_prior().sample_tokens(n, **options)


def test_one_step_at_temperature_zero_is_the_argmax_of_the_masked_logits() -> None:
    prior = small_prior()
    tokens = torch.zeros(3, 12, dtype=torch.int64)
    expected = prior(tokens, torch.ones(3, 12, dtype=torch.bool)).argmax(-1)
    drawn = prior.sample_tokens(3, num_steps=1, temperature=0.0, generator=seeded(1))
    assert torch.equal(drawn.flatten(1), expected)
    assert len(set(expected[0].tolist())) > 1
