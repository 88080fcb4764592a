"""The GP-VAE: against the online GP it becomes with trivial networks, and as a whole."""

import math
from io import BytesIO

import pytest
import torch
from torch import Tensor, nn

from ohsvgp import Gaussian, LegS, OnlineGP
from ohsvgp.bases.base import Advance, Basis
from ohsvgp.bases.points import PivotedCholesky, RandomSubset
from ohsvgp.inducing import PointFunctional
from ohsvgp.vae import MLPDecoder, MLPEncoder, OnlineSVGPVAE, SharedSet
from ohsvgp.vae import model as model_module
from ohsvgp.vae import training as training_module
from probseq.kernels import RBF

NOISE = 0.05


class Truth(nn.Module):
    """Encoder that takes y for f with noise."""

    def forward(self, y: Tensor) -> tuple[Tensor, Tensor]:
        return y, torch.full_like(y, NOISE)


def trivial(basis: Basis | None = None, *, carry: bool = True) -> OnlineSVGPVAE:
    return OnlineSVGPVAE(
        Truth(),
        nn.Identity(),
        RBF(1, lengthscale=0.7),
        basis or LegS(12),
        num_latents=1,
        noise=NOISE,
        consolidation=0.0,
        carry=carry,
    )


def series(n: int = 40) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    t = torch.linspace(1.0, 6.0, n, dtype=torch.float64)
    return t, t.sin() + NOISE**0.5 * torch.randn(n, generator=generator, dtype=torch.float64)


def channels(n: int = 60) -> tuple[Tensor, Tensor]:
    """Six channels made of two smooth latents."""
    generator = torch.Generator().manual_seed(0)
    t = torch.linspace(0.0, 6.0, n, dtype=torch.float64)
    f = torch.stack([(1.3 * t).sin(), (1.7 * t + 0.5).cos()], dim=-1)
    weights = torch.randn(2, 6, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, 6, generator=generator, dtype=torch.float64)
    return t, (f @ weights).tanh() + 0.1 * noise


def small(basis: Basis | None = None, *, carry: bool = True, seed: int = 0) -> OnlineSVGPVAE:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        networks = MLPEncoder(6, 2, hidden=16), MLPDecoder(2, 6, hidden=16)
    kernel = RBF(1, batch_shape=(2,))
    options = {"num_latents": 2, "consolidation": 10.0, "carry": carry, "seed": seed}
    return OnlineSVGPVAE(*networks, kernel, basis or LegS(15), **options)


def test_trivial_networks_make_it_the_online_gp() -> None:
    model, gp = trivial(), OnlineGP(RBF(1, lengthscale=0.7), Gaussian(NOISE), LegS(12), alpha=0.0)
    t, y = series()
    for part in torch.arange(40).chunk(3):
        expected_bound = gp.energy(t[part], y[part]).detach()
        _, task = model.prepare(t[part], y[part, None])
        with torch.no_grad():
            found = model.amortised(task, model.window(task, task.inducing))
        # The expected log-likelihood of an identity decoder, in closed form.
        residual = (y[part] - found.latent.mean[0]).square() + found.latent.variance[0]
        expected = -0.5 * (residual / NOISE + math.log(2 * math.pi * NOISE)).sum()
        # The sites are the optimal ones, so the bound is the collapsed one.
        torch.testing.assert_close(
            expected - found.complexity.sum(), expected_bound, rtol=1e-7, atol=1e-7
        )
        model.fit_task(t[part], y[part, None], epochs=1)
        gp.update(t[part], y[part])
    query = torch.linspace(0.5, 7.0, 30, dtype=torch.float64)
    predicted, latent = gp.predict(query), model.latent(query)
    torch.testing.assert_close(latent.mean[0], predicted.mean, rtol=0, atol=1e-7)
    torch.testing.assert_close(latent.variance[0], predicted.variance, rtol=0, atol=1e-7)


def test_other_hyperparameters_move_the_state_like_that_of_the_online_gp() -> None:
    model, gp = trivial(), OnlineGP(RBF(1, lengthscale=0.7), Gaussian(NOISE), LegS(12), alpha=0.0)
    t, y = series()
    model.fit_task(t, y[:, None], epochs=1)
    gp.update(t, y)
    for kernel in (model.kernel, gp.kernel):
        nn.init.constant_(kernel.raw_lengthscale, math.log(0.9))
    query = torch.linspace(1.0, 6.0, 20, dtype=torch.float64)
    torch.testing.assert_close(model.latent(query).mean[0], gp.predict(query).mean)
    torch.testing.assert_close(model.latent(query).variance[0], gp.predict(query).variance)


@pytest.mark.parametrize("scale", [1.0, 1.3])  # those of the state, about to leave it, and others
def test_bound_under_other_hyperparameters_is_that_of_the_online_gp(scale: float) -> None:
    model, gp = trivial(), OnlineGP(RBF(1, lengthscale=0.7), Gaussian(NOISE), LegS(12), alpha=0.0)
    t, y = series()
    model.fit_task(t[:20], y[:20, None], epochs=1)
    gp.update(t[:20], y[:20])
    for kernel in (model.kernel, gp.kernel):
        nn.init.constant_(kernel.raw_outputscale, math.log(scale))
    _, task = model.prepare(t[20:], y[20:, None])
    found = model.amortised(task, model.window(task, task.inducing, learning=True))
    residual = (y[20:] - found.latent.mean[0]).square() + found.latent.variance[0]
    expected = -0.5 * (residual / NOISE + math.log(2 * math.pi * NOISE)).sum()
    bound = expected - found.complexity.sum()
    torch.testing.assert_close(bound, gp.energy(t[20:], y[20:]), rtol=1e-7, atol=1e-7)
    (ours,) = torch.autograd.grad(bound, model.kernel.raw_lengthscale)
    (theirs,) = torch.autograd.grad(gp.energy(t[20:], y[20:]), gp.kernel.raw_lengthscale)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_without_the_carried_site_only_the_last_task_counts() -> None:
    t, y = series()
    model, alone = trivial(carry=False), trivial(carry=False)
    model.fit_task(t[:20], y[:20, None], epochs=1)
    model.fit_task(t[20:], y[20:, None], epochs=1)
    # Same window and same last task, but other data before.
    alone.fit_task(t[:20], 5.0 - y[:20, None], epochs=1)
    alone.fit_task(t[20:], y[20:, None], epochs=1)
    assert torch.equal(model.latent(t).mean, alone.latent(t).mean)


def test_bound_of_a_linear_decoder_is_the_closed_form() -> None:
    t, _ = channels(12)
    generator = torch.Generator().manual_seed(4)
    y = torch.randn(12, 6, generator=generator, dtype=torch.float64)
    model = small()
    model.decoder = nn.Linear(2, 6).double()
    _, task = model.prepare(t, y)
    window = model.window(task, task.inducing)
    found = model.amortised(task, window)
    W, b = model.decoder.weight, model.decoder.bias
    noise = model.noise
    squared = (y - found.latent.mean.mT @ W.mT - b).square().sum()
    spread = (found.latent.variance.mT @ W.square().mT).sum()
    constant = y.numel() * (2 * math.pi * noise).log()
    expected = -0.5 * ((squared + spread) / noise + constant) - found.complexity.sum()
    # Monte Carlo with 20,000 draws: six standard errors are below 1 nat.
    torch.testing.assert_close(model.bound(t, y, num_samples=20_000), expected, rtol=0, atol=1.0)
    assert abs(float(expected.detach())) > 50


def test_a_minibatch_estimates_the_bound_without_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without the noise of sampling f, so that the equality is exact.
    monkeypatch.setattr(model_module, "latent_samples", lambda q, *_: q.mean.mT[None])
    model = small()
    _, task = model.prepare(*channels(12))
    window = model.window(task, task.inducing)
    whole = model.task_bound(task, window, None, 1)
    parts = [model.task_bound(task, window, rows, 1) for rows in torch.arange(12).split(3)]
    torch.testing.assert_close(torch.stack(parts).mean(), whole)
    assert float(torch.stack(parts).std().detach()) > 1.0


def test_the_bound_of_an_epoch_is_that_of_the_task_whatever_the_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_module, "latent_samples", lambda q, *_: q.mean.mT[None])
    t, y = channels(12)
    model = small()
    expected = model.bound(t, y).detach() / 12
    # Batches of 5, 5 and 2; the networks hardly move.
    info = model.fit_task(t, y, epochs=1, batch_size=5, learning_rate=1e-12)
    torch.testing.assert_close(info.bounds[0], expected, rtol=1e-7, atol=0)


def test_the_penalty_counts_as_often_as_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_module.torch.optim, "Adam", torch.optim.SGD)
    found = []
    for weight in (0.0, 10.0):
        model = small()
        model.consolidation_weight = weight
        # Held one below where the parameters are, with an information of one.
        model.consolidation.fisher.fill_(1.0)
        model.consolidation.anchor.sub_(1.0)
        model.fit_task(*channels(20), epochs=1, learning_rate=0.02)
        found.append(
            torch.cat([parameter.detach().flatten() for parameter in model.consolidated()])
        )
    # In nats per time point: the slope of the penalty is the weight over their number.
    expected = torch.full_like(found[0], -0.02 * 10.0 / 20)
    torch.testing.assert_close(found[1] - found[0], expected)


def test_gradients_reach_encoder_decoder_kernel_and_noise() -> None:
    model = small()
    t, y = channels(20)
    model.fit_task(t, y, epochs=1)
    model.generator.manual_seed(0)
    model.zero_grad()
    model.bound(t + 6.0, y).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().max()) > 0, name


@pytest.mark.parametrize("basis", [LegS(15), RandomSubset(15), SharedSet(PivotedCholesky(15))])
def test_state_goes_through_a_file_and_training_goes_on_equally(basis: Basis) -> None:
    t, y = channels()
    model = small(basis)
    model.fit_task(t[:30], y[:30], epochs=3, learn_kernel=True)
    file = BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    twin = small(basis, seed=7)
    twin.load_state_dict(torch.load(file, weights_only=True))
    twin.eval()
    for part in (slice(30, 45), slice(45, 60)):
        for each in (model, twin):
            each.fit_task(t[part], y[part], epochs=2, batch_size=7)
        one, other = (
            each.predict(t, generator=torch.Generator().manual_seed(9)) for each in (model, twin)
        )
        assert torch.equal(one.mean, other.mean)
        assert torch.equal(one.variance, other.variance)
    assert twin.memory.tasks == 3
    assert torch.equal(model.consolidation.fisher, twin.consolidation.fisher)


def test_moments_and_densities_are_those_of_samples() -> None:
    t, y = channels(30)
    model = small()
    model.fit_task(t, y, epochs=20, learning_rate=1e-2)
    samples = model.sample(t, 8000, generator=torch.Generator().manual_seed(3))
    predicted = model.predict(t, num_samples=8000, generator=torch.Generator().manual_seed(4))
    torch.testing.assert_close(samples.mean(0), predicted.mean, rtol=0, atol=0.05)
    torch.testing.assert_close(samples.var(0), predicted.variance, rtol=0.1, atol=0.01)
    # Share of samples near y, over the width of the neighbourhood.
    width = 0.2
    near = ((samples - y).abs() < width / 2).double().mean(0) / width
    density = model.log_prob(t, y, num_samples=2000).exp()
    assert float((near - density).abs().mean()) < 0.05


def test_ovc_shares_points_and_ovc_per_dim_gives_every_latent_its_own() -> None:
    t, y = channels(30)
    for basis, shape in ((PivotedCholesky(8), (2, 8, 1)), (SharedSet(PivotedCholesky(8)), (8, 1))):
        model = small(basis)
        nn.init.constant_(model.kernel.raw_lengthscale[0], math.log(0.3))
        model.fit_task(t, y, epochs=1)
        assert model.memory.state is not None
        inducing = model.memory.state.inducing
        assert isinstance(inducing, PointFunctional)
        assert inducing.nodes.shape == shape
        assert torch.isin(inducing.nodes, t).all()
        if len(shape) == 3:
            assert not torch.equal(
                inducing.nodes[0].sort(0).values, inducing.nodes[1].sort(0).values
            )


def test_shared_points_are_the_pivots_of_the_mean_kernel() -> None:
    scales = torch.tensor([0.3, 1.5], dtype=torch.float64)[:, None, None]
    kernel = RBF(1, batch_shape=(2,), lengthscale=scales).double().requires_grad_(False)
    t = channels(25)[0] ** 1.3  # uneven, so that no two points are equally good
    step = Advance(kernel=kernel, previous=None, inputs=t[:, None], length=float(t[-1]))
    inducing = SharedSet(PivotedCholesky(6)).advance(step)
    # Greedy choice by dense conditioning: the point of largest variance given those before.
    squared = (t[:, None] - t[None, :]).square()
    K = torch.stack([torch.exp(-0.5 * squared / s.square()) for s in scales.flatten()]).mean(0)
    chosen: list[int] = []
    for _ in range(6):
        known = K[:, chosen] @ torch.linalg.solve(K[chosen][:, chosen], K[chosen]) if chosen else 0
        chosen.append(int((K - known).diagonal().argmax()))
    assert torch.equal(inducing.tensors()["nodes"][:, 0], t[chosen])


def test_points_that_latents_share_move_in_units_of_their_mean_lengthscale() -> None:
    nodes = []
    for learn in (False, True):
        model = small(RandomSubset(6))
        nn.init.constant_(model.kernel.raw_lengthscale[0], math.log(0.3))
        nn.init.constant_(model.kernel.raw_lengthscale[1], math.log(1.5))
        model.fit_task(*channels(30), epochs=1, learning_rate=0.01, learn_inducing=learn)
        assert model.memory.state is not None
        nodes.append(model.memory.state.inducing.tensors()["nodes"])
    # Adam's first step has the length of the learning rate.
    moved = (nodes[1] - nodes[0]).abs()
    torch.testing.assert_close(moved, torch.full_like(moved, 0.009), rtol=1e-3, atol=0)


def test_bad_data_are_refused_and_change_nothing() -> None:
    t, y = channels(10)
    model = small()
    model.fit_task(t, y, epochs=1)
    before = model.latent(t).mean
    for stamps, values, message in (
        (t + 6, y[:, 0], "y must have shape"),
        (t + 6, y[:-1], "y must have shape"),
        (t.flip(0) + 6, y, "t must be sorted"),
        (t - 3, y, "before t0"),
        (t[:0], y[:0], "at least one stamp"),
        (t + 6, y / 0.0, "finite"),
    ):
        with pytest.raises(ValueError, match=message):
            model.fit_task(stamps, values, epochs=1)
    for name in ("epochs", "batch_size", "num_samples"):
        with pytest.raises(ValueError, match=f"{name} must be a whole number of at least 1"):
            model.fit_task(t + 6, y, **{name: 0})
    with pytest.raises(ValueError, match="learn_inducing must be False unless"):
        model.fit_task(t + 6, y, epochs=1, learn_inducing=True)
    assert torch.equal(model.latent(t).mean, before)


def test_an_encoder_of_wrong_outputs_is_named() -> None:
    t, y = channels(10)
    model = small()
    model.encoder = MLPEncoder(6, 3).double()
    with pytest.raises(ValueError, match="encoder must give mean and variance of shape"):
        model.fit_task(t, y, epochs=1)


@pytest.fixture(scope="module")
def forgetting() -> dict[bool, Tensor]:
    """Errors on each of two tasks after the second, with and without the carried site."""
    t, y = channels()
    errors: dict[bool, Tensor] = {}
    for carry in (True, False):
        model = small(carry=carry)
        for task, part in enumerate(torch.arange(60).chunk(2)):
            model.fit_task(t[part], y[part], epochs=120, learning_rate=1e-2, learn_kernel=task == 0)
        found = model.predict(t, generator=torch.Generator().manual_seed(1)).mean
        errors[carry] = (found - y).square().reshape(2, -1).mean(-1).sqrt()
    return errors


@pytest.mark.slow
def test_the_carried_site_keeps_the_first_task(forgetting: dict[bool, Tensor]) -> None:
    assert float(forgetting[True][0]) < 0.3
    assert float(forgetting[False][0]) > 2.0 * float(forgetting[True][0])


def test_the_carried_site_costs_the_second_task_little(forgetting: dict[bool, Tensor]) -> None:
    assert float(forgetting[True][1]) < 1.5 * float(forgetting[False][1])
