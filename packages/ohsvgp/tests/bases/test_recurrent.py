"""HiPPO's recurrences on random features behind the seam of bases."""

import pytest
import torch

from ohsvgp import Gaussian, LegS, OnlineGP
from ohsvgp.bases import FouT, LagT, LegT
from ohsvgp.bases.base import Advance
from ohsvgp.bases.recurrent import RecurrentFeatures
from ohsvgp.hippo.random_features import FeatureKernel
from probseq.fourier import fourier_features
from probseq.kernels import RBF, Kernel

BASES = {
    "LegS": lambda: LegS(8),
    "LegT": lambda: LegT(7, 1.5),
    "LagT": lambda: LagT(6, 0.8),
    "FouT": lambda: FouT(7, 1.5),
}


def _kernel() -> RBF:
    return RBF(1, lengthscale=0.7, outputscale=1.3).double()


def _bound(basis: RecurrentFeatures, kernel: Kernel | None = None) -> Kernel:
    kernel = kernel or _kernel()
    basis.bind(kernel, torch.Generator().manual_seed(0))
    return basis.prior(kernel)


def _advance(basis: RecurrentFeatures, kernel: Kernel, ends: list[float], n: int = 5):
    inducing = None
    with torch.no_grad():
        for end in ends:
            inputs = torch.zeros(n, 1, dtype=torch.float64)
            inducing = basis.advance(Advance(kernel, inducing, inputs, end))
    assert inducing is not None
    return inducing


def _model(basis: RecurrentFeatures, **options) -> OnlineGP:
    return OnlineGP(_kernel(), Gaussian(0.01), basis, t0=0.0, seed=3, **options)


def _stream(n: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    t = torch.linspace(0.05, 6.0, n, dtype=torch.float64)
    return t, (2 * t).sin() + 0.3 * t


@pytest.mark.parametrize("name", BASES)
def test_closed_form_is_the_basis_applied_to_the_features(name: str):
    basis = RecurrentFeatures(BASES[name](), num_features=40, step="closed")
    kernel = _bound(basis)
    assert isinstance(kernel, FeatureKernel)
    x = torch.tensor([[0.2], [1.1]], dtype=torch.float64)
    with torch.no_grad():
        # The quadrature set of the plain basis, and features written out at its nodes.
        points = BASES[name]().inducing(_kernel(), 2.0)
        frequencies = basis.tensors()["frequencies"]
        Z = points.weights @ fourier_features(_kernel(), points.nodes, frequencies)
        got = _advance(basis, kernel, [2.0])
        torch.testing.assert_close(got.covariance(kernel), Z @ Z.mT, rtol=0, atol=1e-11)
        phi = fourier_features(_kernel(), x, frequencies)
        torch.testing.assert_close(got.cross(kernel, x), Z @ phi.mT, rtol=0, atol=1e-11)
        old = _advance(basis, kernel, [1.2])
        nodes = BASES[name]().inducing(_kernel(), 1.2)
        Z_old = nodes.weights @ fourier_features(_kernel(), nodes.nodes, frequencies)
        joint = got.cross_inducing(kernel, old)
        torch.testing.assert_close(joint, Z @ Z_old.mT, rtol=0, atol=1e-11)


@pytest.mark.parametrize(("step", "order"), [("euler", 1), ("bilinear", 2), ("exact", 2)])
@pytest.mark.parametrize("name", ["LegS", "LagT"])
def test_recurrences_converge_to_the_closed_form_over_several_windows(
    name: str, step: str, order: int
):
    def covariance(**options) -> torch.Tensor:
        basis = RecurrentFeatures(BASES[name](), num_features=30, **options)
        kernel = _bound(basis)
        return _advance(basis, kernel, [1.0, 1.7, 3.0]).covariance(kernel).detach()

    closed = covariance(step="closed")
    size = 0.005 if order == 1 else 0.02
    coarse, fine = (
        float((covariance(step=step, step_size=h) - closed).abs().max()) for h in (size, size / 2)
    )
    assert coarse / fine == pytest.approx(2**order, rel=0.2)
    assert fine < 0.03


@pytest.mark.parametrize("name", ["LegT", "FouT"])
def test_closures_start_at_the_closed_form_and_stay_near_it(name: str):
    def covariance(step: str) -> torch.Tensor:
        basis = RecurrentFeatures(BASES[name](), num_features=30, step=step, step_size=0.005)
        kernel = _bound(basis)
        return _advance(basis, kernel, [0.05, 3.0]).covariance(kernel).detach()

    closed, evolved = covariance("closed"), covariance("exact")
    error = float((evolved - closed).abs().max() / closed.abs().max())
    # LegT's closure is a good one; Fourier series do not converge at a jump.
    assert error < (0.02 if name == "LegT" else 0.6)


def test_one_step_for_each_input_is_the_recurrence_of_the_thesis():
    basis = RecurrentFeatures(LegS(4), num_features=6)
    kernel = _bound(basis)
    Z = torch.zeros(4, 12, dtype=torch.float64)
    A = torch.tensor([[
        -(m + 1.0) if m == k else -(((2 * m + 1) * (2 * k + 1)) ** 0.5) * (m > k)
        for k in range(4)] for m in range(4)], dtype=torch.float64)  # fmt: skip
    b = torch.tensor([1, 3, 5, 7], dtype=torch.float64).sqrt()
    with torch.no_grad():
        for k in range(11):
            t = torch.tensor([[0.1 * k]], dtype=torch.float64)
            phi = kernel.features(t)
            if k == 0:
                Z[0] = phi[0]
                continue  # at rest at time zero
            Z = Z + (0.1 / (0.1 * k)) * (A @ Z + b[:, None] * phi) if k < 10 else Z
        got = _advance(basis, kernel, [1.0], n=10).tensors()["coefficients"]
    torch.testing.assert_close(got, Z, rtol=0, atol=1e-11)


def test_exact_covariances_with_values_beside_features_are_no_joint_law():
    # Equation 4.10 with the exact kernel and 4.16 with random features, as the thesis has them.
    size = 30
    exact, t = _kernel(), 12.0
    basis = RecurrentFeatures(LegS(size), num_features=1000, step="closed")
    features = _bound(basis, exact)
    x = torch.linspace(0, t, 100, dtype=torch.float64)[:, None]
    with torch.no_grad():
        inducing = _advance(basis, features, [t])
        K_uu = inducing.covariance(features)
        K_uu += 1e-8 * K_uu.diagonal().mean() * torch.eye(size)

        def least(K_uf: torch.Tensor) -> float:
            explained = (K_uf * torch.linalg.solve(K_uu, K_uf)).sum(0)
            return float((exact.diag(x) - explained).min())

        assert least(LegS(size).inducing(exact, t).cross(exact, x)) < -0.5
        assert least(inducing.cross(features, x)) > -1e-8


def test_recurrences_refuse_changed_hyperparameters_and_closed_forms_follow_them():
    t, y = _stream()
    evolved = _model(RecurrentFeatures(LegS(8), num_features=50))
    closed = _model(RecurrentFeatures(LegS(8), num_features=500, step="closed"))
    for model in (evolved, closed):
        model.update(t[:30], y[:30])
        with torch.no_grad():
            model.kernel.raw_lengthscale += 0.2
    with pytest.raises(ValueError, match="hyperparameters"):
        evolved.predict(t)
    closed.update(t[30:], y[30:])
    assert float((closed.predict(t[30:]).mean - y[30:]).abs().max()) < 0.2


def test_several_heads_share_a_recurrence_of_their_own_frequencies():
    lengthscale = torch.tensor([0.4, 1.5], dtype=torch.float64)[:, None, None]
    heads = RBF(1, batch_shape=(2,), lengthscale=lengthscale).double()
    basis = RecurrentFeatures(LegS(6), num_features=20, step="bilinear", step_size=0.02)
    kernel = _bound(basis, heads)
    both = _advance(basis, kernel, [1.0, 2.0]).covariance(kernel)
    for head, ell in enumerate(lengthscale):
        one = RecurrentFeatures(LegS(6), num_features=20, step="bilinear", step_size=0.02)
        _bound(one)
        one.load_tensors({"frequencies": basis.tensors()["frequencies"][head]})
        alone = one.prior(RBF(1, lengthscale=ell).double())
        expected = _advance(one, alone, [1.0, 2.0]).covariance(alone)
        torch.testing.assert_close(both[head], expected, rtol=0, atol=1e-12)


def test_tensors_of_another_kind_are_refused():
    basis = RecurrentFeatures(LegS(5), num_features=10)
    _bound(basis)
    with pytest.raises(ValueError, match="frequencies"):
        basis.load_tensors({})
    with pytest.raises(ValueError, match="num_features=10"):
        basis.load_tensors({"frequencies": torch.zeros(4, 1)})


def test_coefficients_are_the_projections_of_the_posterior_under_the_features():
    gp = _model(RecurrentFeatures(LegS(8), num_features=40, step="closed"))
    t, y = _stream()
    gp.update(t, y)
    points = LegS(8).inducing(_kernel(), float(t[-1]))
    W, dense = points.weights, gp.predict(points.nodes[:, 0], full_cov=True)
    law = gp.posterior_coefficients()
    torch.testing.assert_close(law.mean, W @ dense.mean, rtol=0, atol=1e-6)
    torch.testing.assert_close(law.covariance, W @ dense.covariance @ W.mT, rtol=0, atol=1e-6)


def test_a_whole_number_of_steps_is_not_rounded_up():
    assert (1.1 - 0.8) / 0.1 > 3
    by_size = RecurrentFeatures(LegS(8), num_features=20, step_size=0.1)
    by_inputs = RecurrentFeatures(LegS(8), num_features=20)
    kernel = _bound(by_size)
    _bound(by_inputs)
    start = _advance(by_size, kernel, [0.8])
    x = torch.zeros(3, 1, dtype=torch.float64)
    with torch.no_grad():
        got, expected = (
            basis.advance(Advance(kernel, start, x, 1.1)).tensors()["coefficients"]
            for basis in (by_size, by_inputs)
        )
    assert torch.equal(got, expected)


def test_closed_form_passes_gradients_of_the_bound_to_the_lengthscale():
    t, y = _stream(20)
    model = _model(RecurrentFeatures(LegS(8), num_features=100, step="closed"))
    raw = model.kernel.raw_lengthscale

    def bound() -> torch.Tensor:
        return model.energy(t, y).sum()

    (slope,) = torch.autograd.grad(bound(), raw)
    with torch.no_grad():
        raw += 1e-5
        up = float(bound())
        raw -= 2e-5
        down = float(bound())
    assert float(slope) == pytest.approx((up - down) / 2e-5, rel=1e-5)
