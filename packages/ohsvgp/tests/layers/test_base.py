"""What both layers do with sites, masks, times and noise."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from ohsvgp import HiPPOLayer, LegS, MaternLayer
from probseq.testing.instruments import constant_noise
from probseq.transformers import Encoder, TransformerConfig

KINDS = pytest.mark.parametrize("kind", ["hippo", "matern"])


def draw(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def layer(kind, lengthscale=2.0):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "hippo":
            made = HiPPOLayer(4, 2, LegS(6), lengthscale=lengthscale)
        else:
            made = MaternLayer(4, 2, lengthscale=lengthscale)
    return made.double()


@KINDS
def test_a_token_that_is_not_observed_informs_nothing(kind):
    module, x = layer(kind), draw(8, 2, 9, 4)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, 4] = mask[1, 0] = False
    other = torch.where(mask[..., None], x, 50.0)
    with constant_noise(1.0):
        found, expected = module(other, mask), module(x, mask)
        seen = module(x)
    assert torch.equal(found.values, expected.values)
    assert torch.equal(found.penalty, expected.penalty)
    assert not torch.allclose(seen.values, expected.values)
    law = module.posterior(x, mask)
    assert torch.equal(law.kl[~mask], torch.zeros_like(law.kl[~mask]))
    assert (law.kl[mask] > 0).all()
    # What is unknown is wider.
    assert (module.posterior(x).variance[0, 4] < law.variance[0, 4]).all()


@KINDS
def test_a_later_token_changes_nothing_before(kind):
    module, x = layer(kind), draw(9, 2, 9, 4)
    other = x.clone()
    other[:, 5] += 10
    with constant_noise(1.0):
        before, after = module(x).values, module(other).values
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


@KINDS
def test_values_are_draws_of_the_posterior_and_the_penalty_its_divergence(kind):
    module, x = layer(kind), draw(15, 2, 9, 4)
    law = module.posterior(x)
    for noise in (0.0, -1.5):
        with constant_noise(noise):
            found = module(x)
        heads = law.mean + noise * law.variance.sqrt()[..., None]
        assert_close(found.values, module.to_out(heads.flatten(-2)))
        assert_close(found.penalty, law.kl.sum() / 2)


@KINDS
def test_time_has_no_origin_and_no_unit(kind):
    times, x = draw(16, 9).abs().cumsum(0), draw(17, 2, 9, 4)
    law = layer(kind).posterior(x, times=times)
    other = layer(kind, 2.0 * 365).posterior(x, times=365 * times + 7)
    assert_close(law.mean, other.mean, rtol=0, atol=1e-7)
    assert_close(law.variance, other.variance, rtol=0, atol=1e-7)
    index = layer(kind).posterior(x)
    assert_close(index.mean, layer(kind).posterior(x, times=torch.arange(3, 12)).mean)
    assert not torch.allclose(index.mean, law.mean)


@KINDS
def test_the_outputscale_says_how_wide_the_prior_is(kind):
    """A precise prior of great variance follows its targets; one of small variance ignores them."""
    module, x = layer(kind), draw(18, 2, 9, 4)
    y, _ = module.sites(x, None)
    (scale,) = (p for name, p in module.named_parameters() if name.endswith("raw_outputscale"))
    with torch.no_grad():
        scale.fill_(-30.0)
        assert module.posterior(x).mean.abs().max() < 1e-10
        scale.fill_(30.0)
        # Of the first token nothing but the target is known.
        assert_close(module.posterior(x).mean[:, 0], y[:, 0])


@KINDS
def test_an_encoder_of_layers_runs_samples_and_is_causal(kind):
    config = TransformerConfig(depth=2, dim=4, num_heads=2, hidden_dim=8, dropout=0.0)
    encoder = Encoder(config, lambda index: layer(kind)).double().eval()
    x = draw(19, 3, 7, 4)
    with constant_noise(1.0):
        values, penalty = encoder(x)
        folded, same = encoder(x, num_samples=5)
        x[:, 4] += 1
        later, _ = encoder(x)
    assert_close(folded.unflatten(0, (5, 3)), values.expand(5, -1, -1, -1))
    assert_close(same, penalty)
    assert_close(later[:, :4], values[:, :4], rtol=0, atol=0)
    assert isinstance(encoder.attention[0], nn.Module)


@pytest.mark.usefixtures("plain_calls")
class TestRefusals:
    @KINDS
    @pytest.mark.parametrize(
        ("times", "message"),
        [
            (torch.arange(4), r"times must have shape \(5\), got \(4,\)"),
            (torch.zeros(5, dtype=torch.bool), "times must be real numbers, got torch.bool"),
            (torch.zeros(5, dtype=torch.cfloat), "times must be real numbers, got torch.complex64"),
            (torch.tensor([0, 1, 3, 2, 4]), "times must be finite and in order"),
            (torch.tensor([0, 1, 2, 3, torch.nan]), "times must be finite and in order"),
            (torch.tensor([0, 1, 2, 3, torch.inf]), "times must be finite and in order"),
        ],
    )
    def test_times_are_refused_by_name(self, kind, times, message):
        with pytest.raises(ValueError, match=message):
            layer(kind)(torch.zeros(2, 5, 4, dtype=torch.float64), times=times)

    @KINDS
    @pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), torch.ones(3), torch.ones(2, 1)])
    def test_lengthscales_are_refused_by_name(self, kind, bad):
        with pytest.raises(ValueError, match="lengthscale must be"):
            layer(kind, bad)
