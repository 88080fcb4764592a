"""Classes of priors: their start or added vector, the cache, and guidance on logits."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pseudovideo.priors import AutoregressiveConfig, AutoregressivePrior, MaskedConfig, MaskedPrior
from pseudovideo.tokenizers import Tokenizer

SIZES = {"codebook_size": 5, "grid": (1, 2, 3), "dim": 24, "depth": 2, "num_heads": 4}
GUIDED = {"num_classes": 3, "label_dropout": 0.25}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def prior_of(kind: str, **classes: Any) -> Any:
    """A prior in float64 whose tokens, places and classes matter."""
    torch.manual_seed(0)
    if kind == "autoregressive":
        prior: Any = AutoregressivePrior(AutoregressiveConfig(**SIZES, **classes))
    else:
        prior = MaskedPrior(MaskedConfig(**SIZES, **classes))
    prior = prior.double().eval().requires_grad_(False)
    generator = seeded(1)
    for parameter in prior.parameters():
        parameter += 0.4 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return prior


def tokens_of(n: int, seed: int = 2) -> Tensor:
    return torch.randint(5, (n, *SIZES["grid"]), generator=seeded(seed))


KINDS = ["autoregressive", "masked"]


def test_a_prior_of_one_class_is_a_prior_of_none() -> None:
    tokens, zeros = tokens_of(4), torch.zeros(4, dtype=torch.int64)
    known = prior_of("autoregressive", num_classes=1)
    plain = prior_of("autoregressive")
    weights = known.state_dict()
    plain.load_state_dict(weights | {"start": weights["start"][0]})
    assert torch.equal(known.loss(tokens, zeros), plain.loss(tokens))
    drawn = known.sample_tokens(4, labels=zeros, generator=seeded(3))
    assert torch.equal(drawn, plain.sample_tokens(4, generator=seeded(3)))

    known, plain = prior_of("masked", num_classes=1), prior_of("masked")
    weights = dict(known.state_dict())
    vector = weights.pop("classes.weight")[0]
    # A vector for every token is one for every slot of time.
    weights["positions.time"] = weights["positions.time"] + vector
    plain.load_state_dict(weights)
    torch.testing.assert_close(
        known.loss(tokens, zeros, generator=seeded(4)), plain.loss(tokens, generator=seeded(4))
    )
    drawn = known.sample_tokens(4, labels=zeros, generator=seeded(3))
    assert torch.equal(drawn, plain.sample_tokens(4, generator=seeded(3)))


@pytest.mark.parametrize("guidance", [0.0, 1.0, 2.5])
def test_guided_tokens_are_drawn_from_mixed_logits_with_a_cache_and_without(
    guidance: float,
) -> None:
    """At temperature 0 each token is the likeliest of l_u + g (l_c − l_u) of full passes."""
    prior, labels = prior_of("autoregressive", **GUIDED), torch.tensor([2, 0, 1, 1])
    drawn = [
        prior.sample_tokens(4, labels=labels, guidance=guidance, temperature=0.0, cache=cache)
        for cache in (True, False)
    ]
    assert torch.equal(*drawn)
    told, free = prior(drawn[0], labels), prior(drawn[0], torch.full((4,), 3))
    mixed = free + guidance * (told - free)
    assert torch.equal(mixed.argmax(-1), drawn[0].flatten(1))
    # The classes matter: else the formula would be that of any label.
    assert (told - free).abs().max() > 0.1


def test_cached_logits_are_the_full_ones_of_the_class() -> None:
    prior, labels = prior_of("autoregressive", **GUIDED), torch.tensor([2, 0, 1, 1])
    tokens = tokens_of(4)
    from pseudovideo.labels import Classes

    classes = Classes(labels, 2.5, none=3)
    steps = torch.stack(list(prior._cached(tokens.flatten(1), classes)), dim=1)
    both = torch.cat([labels, torch.full((4,), 3)])
    torch.testing.assert_close(steps, prior(torch.cat([tokens, tokens]), both))


def test_masked_steps_are_those_of_a_prior_that_mixes_itself() -> None:
    """Several steps, noise included, against a prior whose forward is the guided one."""
    prior, given = prior_of("masked", **GUIDED), torch.tensor([2, 0, 1, 1])
    drawn = prior.sample_tokens(4, labels=given, guidance=1.5, num_steps=3, generator=seeded(5))
    plain = prior_of("masked")

    def forward(tokens: Tensor, masked: Tensor, places: Tensor, labels: None) -> Tensor:
        told, free = (
            MaskedPrior.forward(prior, tokens, masked, places, each)
            for each in (given, torch.full((4,), 3))
        )
        return free + 1.5 * (told - free)

    plain.forward = forward
    assert torch.equal(drawn, plain.sample_tokens(4, num_steps=3, generator=seeded(5)))


@pytest.mark.parametrize("kind", KINDS)
def test_frames_of_batches_have_their_own_labels(kind: str) -> None:
    """At temperature 0 without chance a grid is a function of its class alone."""
    prior = prior_of(kind, **GUIDED)
    labels = torch.tensor([2, 0, 1, 1, 2])

    class Pixels(Tokenizer):
        grid = prior.grid

        def __init__(self) -> None:
            nn.Module.__init__(self)

        def decode(self, indices: Tensor) -> Tensor:
            return indices[:, :, None].float()

    still: dict[str, Any] = {"temperature": 0.0}
    if kind == "masked":
        still["choice_temperature"] = 0.0
    frames = prior.sample(5, Pixels(), labels=labels, guidance=1.5, batch_size=2, **still)
    each = prior.sample_tokens(3, labels=torch.arange(3), guidance=1.5, **still)
    assert torch.equal(frames[:, :, 0], each[labels].float())
    assert len(each.flatten(1).unique(dim=0)) == 3
    # Without labels all classes are drawn, and no other grids.
    drawn = prior.sample(40, Pixels(), guidance=1.5, batch_size=16, generator=seeded(0), **still)
    expected = each.flatten(1).float().unique(dim=0)
    assert torch.equal(drawn.flatten(1).unique(dim=0), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_losses_hide_labels_in_train_mode_alone(kind: str) -> None:
    prior, tokens = prior_of(kind, num_classes=3, label_dropout=0.9), tokens_of(6)
    labels = torch.arange(6) % 3

    def loss(told: Tensor, seed: int) -> Tensor:
        return prior.loss(tokens, told, generator=seeded(seed))

    assert torch.equal(loss(labels, 1), loss(labels, 1))
    prior.train()
    hidden = loss(labels, 1)
    prior.eval()
    assert (hidden - loss(labels, 1)).abs() > 1e-6


@pytest.mark.parametrize("guidance", [0.0, 1.0, 2.5])
def test_one_masked_step_is_drawn_from_mixed_logits(guidance: float) -> None:
    prior, labels = prior_of("masked", **GUIDED), torch.tensor([2, 0, 1, 1])
    drawn = prior.sample_tokens(4, labels=labels, guidance=guidance, temperature=0.0, num_steps=1)
    blank = torch.zeros(4, 6, dtype=torch.int64), torch.ones(4, 6, dtype=torch.bool)
    told, free = (prior(*blank, labels=tokens) for tokens in (labels, torch.full((4,), 3)))
    assert torch.equal((free + guidance * (told - free)).argmax(-1), drawn.flatten(1))
    assert (told - free).abs().max() > 0.1
