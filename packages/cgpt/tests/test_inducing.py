"""Inducing inputs, free or mixed from the tokens."""

import pytest
import torch
from torch.testing import assert_close

from cgpt.inducing import FreeInducingInputs, MixedInducingInputs


def test_free_inputs_are_the_parameters_over_the_lengthscale(draw):
    module = FreeInducingInputs(2, 3, 4).double()
    assert_close(module.centre(), module.inputs.detach().mean(2))
    inverse, origin = draw(2, 1, 4).exp(), draw(2, 1, 4, seed=1)
    found = module(draw(2, 5, 6, 4), inverse, origin)
    assert_close(found, module.inputs * inverse[:, None] - origin[:, None])
    assert found.shape == (2, 1, 3, 4)


def test_mixed_inputs_are_offset_plus_weighted_real_tokens(draw):
    module = MixedInducingInputs(2, 3, 4, max_tokens=8).double()
    canonical, inverse = draw(2, 5, 6, 4), draw(2, 1, 4, seed=1).exp()
    origin = draw(2, 1, 4, seed=2)
    mask = torch.arange(6) < torch.tensor([6, 1, 3, 5, 2])[:, None]
    found = module(canonical - origin[:, None], inverse, origin, mask)
    for head in range(2):
        for sequence, length in enumerate(mask.sum(1)):
            for i in range(3):
                expected = module.offset[head, 0, i] * inverse[head, 0]
                for t in range(length):
                    expected = expected + module.weights[head, i, t] * canonical[head, sequence, t]
                assert_close(found[head, sequence, i], expected - origin[head, 0])


def test_padding_may_hold_anything(draw):
    module = MixedInducingInputs(2, 3, 4, max_tokens=8).double()
    canonical = draw(2, 1, 6, 4)
    mask = torch.arange(6)[None] < 4
    junk = canonical.masked_fill(~mask[None, :, :, None], torch.nan)
    inverse = origin = torch.ones(2, 1, 4, dtype=torch.float64)
    found = module(junk, inverse, origin, mask)
    assert_close(found, module(canonical[:, :, :4], inverse, origin))


@pytest.mark.parametrize("make", [FreeInducingInputs, MixedInducingInputs])
def test_inputs_start_among_the_tokens(make):
    """Their spread is that of projected normalised tokens, at full length."""
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        linear = torch.nn.Linear(128, 128, bias=False)
        tokens = torch.nn.functional.layer_norm(torch.randn(4, 64, 128), (128,))
        canonical = linear(tokens).unflatten(-1, (4, 32)).permute(2, 0, 1, 3)
        extra = () if make is FreeInducingInputs else (64,)
        inputs = make(4, 16, 32, *extra)(canonical, torch.ones(4, 1, 32), torch.zeros(4, 1, 32))
    assert inputs.std().item() == pytest.approx(canonical.std().item(), rel=0.1)
    distances = (canonical[:, :, :, None] - inputs[:, :, None]).square().sum(-1)
    assert distances.mean().item() == pytest.approx(2 / 3 * 32, rel=0.1)


def test_bad_sizes_are_refused_by_name(draw):
    for make in (lambda: FreeInducingInputs(1, 0, 2), lambda: MixedInducingInputs(1, 0, 2, 4)):
        with pytest.raises(
            ValueError, match="num_inducing must be a whole number of at least 1, got 0"
        ):
            make()
    with pytest.raises(ValueError, match="max_tokens must be a whole number of at least 1, got 0"):
        MixedInducingInputs(1, 2, 2, 0)
    module = MixedInducingInputs(1, 2, 2, 4).double()
    with pytest.raises(ValueError, match="at most max_tokens=4 tokens, got 5"):
        module(draw(1, 1, 5, 2), *torch.ones(2, 1, 1, 2).double())
