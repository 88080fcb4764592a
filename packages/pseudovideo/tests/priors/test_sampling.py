"""Draws against slow references."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pseudovideo.priors.sampling import draw


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def allowed_slowly(logits: list[float], top_k: int | None, top_p: float | None) -> list[float]:
    """Probabilities after both cuts, by sorting a Python list; equals in order of their index."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    kept = order[:top_k]
    weights = {i: math.exp(logits[i] - logits[order[0]]) for i in kept}
    total = math.fsum(weights.values())
    if top_p is not None:
        mass, short = 0.0, []
        for i in kept:
            short.append(i)
            mass += weights[i] / total
            if mass >= top_p:
                break
        kept = short
    total = math.fsum(weights[i] for i in kept)
    return [weights[i] / total if i in kept else 0.0 for i in range(len(logits))]


def shares(logits: Tensor, n: int = 20_000, **options: Any) -> Tensor:
    rows = logits.expand(n, -1)
    drawn = draw(rows, generator=seeded(0), **options)
    return drawn.bincount(minlength=logits.shape[-1]) / n


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_tokens_come_as_often_as_the_softmax_says(temperature: float) -> None:
    logits = torch.tensor([0.3, -1.2, 1.7, 0.0, -math.inf, 0.9], dtype=torch.float64)
    expected = (logits / temperature).softmax(-1)
    found = shares(logits, temperature=temperature)
    # Five standard errors of a share.
    assert ((found - expected).abs() <= 5 * (expected * (1 - expected) / 20_000).sqrt()).all()
    assert found[4] == 0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(-3, 3), min_size=1, max_size=8),
    st.none() | st.integers(1, 9),
    st.none() | st.floats(0.01, 1.0),
)
def test_cuts_leave_the_tokens_that_a_slow_reference_leaves(
    levels: list[int], top_k: int | None, top_p: float | None
) -> None:
    # Distinct levels sum to no round mass; equal ones are ties.
    logits = [0.7 * level for level in levels]
    expected = torch.tensor(allowed_slowly(logits, top_k, top_p))
    if top_p is not None:  # Not where rounding decides.
        mass = torch.tensor(allowed_slowly(logits, top_k, None)).sort(descending=True).values
        if (mass.cumsum(0) - top_p).abs().min() < 1e-6:
            return
    rows = torch.tensor(logits, dtype=torch.float64).expand(400, -1)
    drawn = draw(rows, top_k=top_k, top_p=top_p, generator=seeded(1))
    found = drawn.bincount(minlength=len(logits)) / 400
    assert (found[expected == 0] == 0).all()
    assert ((found - expected).abs() <= 6 * (expected * (1 - expected) / 400).sqrt() + 1e-6).all()


def test_temperature_zero_and_top_k_one_give_the_most_likely_token_and_the_first_of_equals() -> (
    None
):
    logits = torch.randn(3, 4, 50, generator=seeded(2))
    logits[0, 0] = 1.0
    options: dict[str, Any]
    for options in ({"temperature": 0.0}, {"top_k": 1}, {"top_p": 1e-9}):
        drawn = draw(logits, generator=seeded(3), **options)
        assert torch.equal(drawn, logits.argmax(-1))
        assert drawn[0, 0] == 0


@pytest.mark.parametrize(
    ("top_p", "left"), [(0.25, 1), (0.26, 2), (0.5, 2), (0.51, 3), (0.75, 3), (0.76, 4), (1.0, 4)]
)
def test_top_p_leaves_the_smallest_set_that_reaches_it_the_first_of_equals(
    top_p: float, left: int
) -> None:
    found = shares(torch.zeros(4, dtype=torch.float64), n=2_000, top_p=top_p)
    assert found.nonzero()[:, 0].tolist() == list(range(left))


def test_a_generator_decides_alone_and_moves_on() -> None:
    logits = torch.zeros(200, 10)
    generator = seeded(8)
    first, second = draw(logits, generator=generator), draw(logits, generator=generator)
    assert torch.equal(draw(logits, generator=seeded(8)), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_impossible_tokens_are_never_drawn_whatever_the_uniform_number(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = torch.tensor([-math.inf, 0.0, -math.inf, 1.0, -math.inf], dtype=dtype)
    for uniform, expected in ((0.0, 1), (1.0, 3)):

        def rand(*shape: object, dtype: torch.dtype, value: float = uniform, **_: object) -> Tensor:
            return torch.full((1,), value, dtype=dtype)

        monkeypatch.setattr(torch, "rand", rand)
        assert draw(logits) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, "temperature must be 0 or at least 1e-06 and finite, got -0.1"),
        ({"temperature": 1e-38}, "temperature must be 0 or at least 1e-06 and finite, got 1e-38"),
        ({"temperature": math.nan}, "temperature must be 0 or at least 1e-06 and finite, got nan"),
        ({"top_k": 0}, "top_k must be a whole number of at least 1, got 0"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1, got 0.0"),
        ({"top_p": 1.1}, "top_p must be above 0 and at most 1, got 1.1"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw(torch.zeros(2, 3), **options)


def test_logits_that_are_no_numbers_give_a_token_of_the_codebook() -> None:
    logits = torch.tensor([[1.0, math.nan, 0.0], [0.0, 2.0, 1.0]])
    for seed in range(20):
        drawn = draw(logits, generator=seeded(seed))
        assert drawn.max() <= 2
