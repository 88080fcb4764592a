"""SCGPT's prediction and regulariser against the paper's matrices written out, in float64."""

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from cgpt.covariances import Scales, latent_covariances, predictive_joint
from cgpt.posterior import predictive_covariance, predictive_mean
from cgpt.sparse import (
    covariance_root,
    factorise,
    predictive_variance,
    row_noise,
    sparse_features,
    sparse_posterior,
)
from cgpt.sparse_regulariser import kernel_form, log_density
from probseq.errors import CholeskyError, JitterWarning

# The jitter of K_mm is all that separates the two sides.
JITTER = 1e-14


def kernel(a: Tensor, b: Tensor) -> Tensor:
    return torch.exp(-0.5 * (a[:, None] - b[None]).square().sum(-1))


@dataclass
class Problem:
    """One head and one sequence, and everything that the paper writes for it, inverses included."""

    queries: Tensor
    canonical: Tensor
    keys: Tensor
    values: Tensor
    inducing: Tensor
    key_inducing: Tensor
    query_scale: float = 0.7
    key_scale: float = 1.6
    noise: float = 0.3
    conditional: str = "sor"

    def __post_init__(self):
        inverse, variance = torch.linalg.inv, self.noise**2
        self.k_mm = kernel(self.inducing, self.inducing)
        self.k_ll = kernel(self.key_inducing, self.key_inducing)
        self.k_oo = kernel(self.canonical, self.canonical)
        self.k_qm = self.query_scale * kernel(self.queries, self.inducing)
        self.k_om = kernel(self.canonical, self.inducing)
        self.k_ol = kernel(self.canonical, self.key_inducing)
        self.k_kl = self.key_scale * kernel(self.keys, self.key_inducing)
        self.p = inverse(self.k_mm + self.k_om.mT @ self.k_om / variance)
        self.r = inverse(self.k_ll + self.k_kl.mT @ self.k_kl / variance)
        self.eye = torch.eye(len(self.queries), dtype=torch.float64)
        self.noise_q = variance * self.eye
        self.noise_k = variance * self.eye
        if self.conditional == "fitc":
            q_q = self.k_qm @ inverse(self.k_mm) @ self.k_qm.mT
            q_k = self.k_kl @ inverse(self.k_ll) @ self.k_kl.mT
            self.noise_q = self.noise_q + (self.query_scale**2 - q_q.diagonal()).diag()
            self.noise_k = self.noise_k + (self.key_scale**2 - q_k.diagonal()).diag()

    @property
    def mean(self) -> Tensor:
        """Eq. 58."""
        attention = self.k_qm @ self.p @ self.k_om.mT @ self.k_ol @ self.r @ self.k_kl.mT
        return attention @ self.values / self.noise**4

    @property
    def covariance(self) -> Tensor:
        """Eqs. 59-67, z_k's terms cancelled."""
        variance = self.noise**2
        of_o = variance * self.eye + self.k_ol @ self.r @ self.k_ol.mT
        m = self.p + self.p @ self.k_om.mT @ of_o @ self.k_om @ self.p / variance**2
        return self.noise_q + self.k_qm @ m @ self.k_qm.mT

    def gains(self) -> tuple[Tensor, Tensor]:
        """G and G_k: what z_o is multiplied by in the means of z_q and z_k."""
        variance = self.noise**2
        r_o = torch.linalg.inv(self.k_ll + self.k_ol.mT @ self.k_ol / variance)
        return (
            self.k_qm @ self.p @ self.k_om.mT / variance,
            self.k_kl @ r_o @ self.k_ol.mT / variance,
        )

    def conditionals(self) -> tuple[Tensor, Tensor]:
        """Covariances of z_q and z_k given z_o."""
        r_o = torch.linalg.inv(self.k_ll + self.k_ol.mT @ self.k_ol / self.noise**2)
        return (
            self.noise_q + self.k_qm @ self.p @ self.k_qm.mT,
            self.noise_k + self.k_kl @ r_o @ self.k_kl.mT,
        )

    def prior(self, canonical_prior: str) -> Tensor:
        return self.k_oo + (self.noise**2 * self.eye if canonical_prior == "noisy" else 0.0)

    def density(self, regulariser: str, canonical_prior: str) -> Tensor:
        gains, prior = torch.cat(self.gains()), self.prior(canonical_prior)
        covariance = gains @ prior @ gains.mT + torch.block_diag(*self.conditionals())
        n, targets = len(self.queries), torch.cat([self.mean, self.values])

        def log_prob(rows: slice) -> Tensor:
            block = covariance[rows, rows]
            distribution = MultivariateNormal(torch.zeros(len(block)).double(), block)
            return distribution.log_prob(targets[rows].mT).sum()

        if regulariser == "joint":
            return log_prob(slice(None))
        return log_prob(slice(n)) + log_prob(slice(n, None))


@pytest.fixture
def make(draw):
    def make(m: int = 4, k: int = 3, tokens: int = 6, seed: int = 0, **changes) -> Problem:
        inputs = 0.7 * draw(4, tokens, 2, seed=seed)
        inducing = 0.7 * draw(m + k, 2, seed=seed + 1)
        return Problem(*inputs, inducing[:m], inducing[m:], **changes)

    return make


def run(*problems: Problem, mask: Tensor | None = None):
    """Features, posterior, noise and the rest of the arguments, with a head for each problem."""

    def stack(name: str) -> Tensor:
        return torch.stack([getattr(problem, name) for problem in problems])[:, None]

    def numbers(name: str) -> Tensor:
        return torch.tensor([getattr(problem, name) for problem in problems], dtype=torch.float64)

    scales = numbers("query_scale"), numbers("key_scale")
    variance = numbers("noise").square()
    features = sparse_features(
        *(stack(name) for name in ("queries", "canonical", "keys", "inducing", "key_inducing")),
        *scales,
        mask,
        jitter=JITTER,
    )
    values = stack("values")
    if mask is not None:
        values = values.masked_fill(~mask[None, :, :, None], 0.0)
    posterior = sparse_posterior(features, values, variance)
    name = problems[0].conditional
    noise = (
        row_noise(features.queries, scales[0], variance, name),
        row_noise(features.keys, scales[1], variance, name),
    )
    return features, posterior, values, noise, variance, stack("canonical")


def density(*problems: Problem, regulariser="joint", canonical_prior="noise-free", mask=None):
    features, posterior, values, noise, variance, canonical = run(*problems, mask=mask)
    return log_density(
        canonical,
        features,
        posterior,
        values,
        noise,
        variance,
        mask,
        regulariser=regulariser,
        canonical_prior=canonical_prior,
    )


@pytest.mark.parametrize("sizes", [(4, 3), (3, 5), (1, 1), (8, 7)])
def test_mean_is_equation_58(make, sizes):
    problems = make(*sizes), make(*sizes, seed=5, noise=0.5, key_scale=0.4)
    features, posterior, *_ = run(*problems)
    found = features.queries @ posterior.coefficients
    # Eight inducing inputs and six tokens in the plane: the dense inverses lose the digits.
    tolerance = {"atol": 1e-6, "rtol": 1e-6}
    assert_close(found[:, 0], torch.stack([p.mean for p in problems]), **tolerance)


@pytest.mark.parametrize("conditional", ["sor", "fitc"])
def test_covariance_is_that_of_equations_59_to_67(make, conditional):
    problems = (
        make(conditional=conditional),
        make(seed=5, noise=0.5, query_scale=1.3, conditional=conditional),
    )
    features, posterior, _, noise, variance, _ = run(*problems)
    root = covariance_root(posterior, variance)
    expected = torch.stack([p.covariance for p in problems])
    low_rank = features.queries @ root
    found = low_rank @ low_rank.mT + noise[0] * problems[0].eye
    assert_close(found[:, 0], expected, atol=1e-9, rtol=1e-9)
    marginal = predictive_variance(features, root, noise[0])[:, 0, :, 0]
    assert_close(marginal, expected.diagonal(dim1=-2, dim2=-1), atol=1e-9, rtol=1e-9)


def test_covariance_is_that_of_the_two_steps_that_it_is_made_of(make):
    """z_o given z_k, then z_q given z_o: moments of the chain, by sampling."""
    problem, variance = make(), 0.09
    generator = torch.Generator().manual_seed(0)
    number, n = 400_000, len(problem.queries)

    def noise(size: int) -> Tensor:
        return torch.randn(number, size, generator=generator, dtype=torch.float64)

    def step(rows, gram_inverse, seen, targets):
        """Draw u from its posterior given ``targets``, then rows u plus noise (Eqs. 54-55)."""
        mean = targets @ seen @ gram_inverse / variance
        deviation = noise(len(gram_inverse)) @ torch.linalg.cholesky(gram_inverse).mT
        return (mean + deviation) @ rows.mT + math.sqrt(variance) * noise(n)

    z_k = problem.values[:, 0].expand(number, -1)
    z_o = step(problem.k_ol, problem.r, problem.k_kl, z_k)
    z_q = step(problem.k_qm, problem.p, problem.k_om, z_o)
    expected = problem.covariance
    error = 6 * (expected.diagonal().outer(expected.diagonal()) * 2 / number).sqrt()
    assert ((z_q.T.cov() - expected).abs() < error).all()
    deviation = (expected.diagonal() / number).sqrt()
    assert ((z_q.mean(0) - problem.mean[:, 0]).abs() < 6 * deviation).all()


@pytest.mark.parametrize("canonical_prior", ["noise-free", "noisy"])
@pytest.mark.parametrize("conditional", ["sor", "fitc"])
@pytest.mark.parametrize("regulariser", ["joint", "marginals"])
def test_log_density_is_that_of_the_dense_gaussian(make, regulariser, conditional, canonical_prior):
    problems = make(conditional=conditional), make(seed=5, noise=0.5, conditional=conditional)
    found = density(*problems, regulariser=regulariser, canonical_prior=canonical_prior)
    expected = torch.stack([p.density(regulariser, canonical_prior) for p in problems])
    assert_close(found[:, 0], expected, atol=1e-7, rtol=1e-7)


def test_joint_density_differs_from_the_marginals_and_is_the_paper_s_only_if_independent(make):
    problem = make()
    joint, marginals = (density(problem, regulariser=name) for name in ("joint", "marginals"))
    assert (joint - marginals).abs() > 0.1


@pytest.mark.parametrize("conditional", ["sor", "fitc"])
@pytest.mark.parametrize("canonical_prior", ["noise-free", "noisy"])
def test_jensen_bound_is_the_mean_log_density_given_the_inducing_variables(
    make, conditional, canonical_prior
):
    """Eqs. 69-72 by sampling z_o, then z_m given z_o, then averaging log N(ν; ..., noise)."""
    problem = make(conditional=conditional)
    found = density(problem, regulariser="jensen", canonical_prior=canonical_prior).squeeze()
    generator = torch.Generator().manual_seed(0)
    number, variance, n = 200_000, problem.noise**2, len(problem.queries)
    prior = problem.prior(canonical_prior) + 1e-12 * problem.eye
    z_o = torch.randn(number, n, generator=generator, dtype=torch.float64)
    z_o = z_o @ torch.linalg.cholesky(prior).mT
    r_o = torch.linalg.inv(problem.k_ll + problem.k_ol.mT @ problem.k_ol / variance)
    total, error = 0.0, 0.0
    for rows, inverse, seen, noise, targets in (
        (problem.k_qm, problem.p, problem.k_om, problem.noise_q, problem.mean),
        (problem.k_kl, r_o, problem.k_ol, problem.noise_k, problem.values),
    ):
        draws = torch.randn(number, len(inverse), generator=generator, dtype=torch.float64)
        weights = z_o @ seen @ inverse / variance + draws @ torch.linalg.cholesky(inverse).mT
        rest = targets.mT[:, None] - (weights @ rows.mT)[None]
        per_row = noise.diagonal()
        values = -0.5 * (rest.square() / per_row + (2 * math.pi * per_row).log()).sum((0, 2))
        total, error = total + values.mean(), error + values.std() / math.sqrt(number)
    assert abs(float(found - total)) < 6 * float(error)
    marginals = density(problem, regulariser="marginals", canonical_prior=canonical_prior)
    assert found < marginals.squeeze(), "a lower bound of the marginals"


def test_jensen_constant_is_minus_half_n_log_two_pi_variance(make):
    problem = make(noise=0.4)
    zero = Problem(
        *(getattr(problem, name) + 1e3 for name in ("queries", "canonical", "keys")),
        torch.zeros_like(problem.values),
        problem.inducing,
        problem.key_inducing,
        noise=0.4,
    )
    expected = -12 * 0.5 * 2 * math.log(2 * math.pi * 0.4**2)
    assert_close(density(zero, regulariser="jensen").item(), expected)


def test_sparse_is_full_attention_when_inducing_inputs_are_its_inputs(make):
    """m-set = X_o, l-set = keys, same z_k: the mean, and the covariance but for what DTC drops."""
    p = make(tokens=4)
    problem = Problem(p.queries, p.canonical, p.keys, p.values, p.canonical, p.keys)
    features, posterior, *_, variance, _ = run(problem)
    rows = [x[None, None] for x in (p.queries, p.keys, p.canonical)]
    scales = Scales(
        torch.tensor([problem.query_scale]).double().log(),
        torch.tensor([problem.key_scale]).double().log(),
        problem.noise,
    )
    joint = predictive_joint(
        latent_covariances(*rows, scales, canonical_prior="noisy", jitter=JITTER)
    )
    # The full method is given V where the sparse one is given Z = (K_k + σ²I) V.
    k_k = problem.key_scale**2 * kernel(p.keys, p.keys)
    latent = torch.linalg.solve(k_k + variance * problem.eye, p.values)
    full_mean = predictive_mean(joint, latent[None, None])
    assert_close(features.queries @ posterior.coefficients, full_mean, atol=1e-6, rtol=1e-6)

    root = covariance_root(posterior, variance)
    low_rank = (features.queries @ root)[0, 0]
    full = predictive_covariance(joint, jitter=JITTER)[0, 0]
    # The sparse chain adds its noise, and has Q_q and Q_o where the full one has K_q and K_o.
    k_q = problem.query_scale**2 * kernel(p.queries, p.queries)
    k_qo = problem.query_scale * kernel(p.queries, p.canonical)
    k_ok = kernel(p.canonical, p.keys)
    gain = k_qo @ torch.linalg.inv(problem.k_oo + variance * problem.eye)
    lost_q = k_q - k_qo @ torch.linalg.solve(problem.k_oo, k_qo.mT)
    lost_o = problem.k_oo - k_ok @ torch.linalg.solve(kernel(p.keys, p.keys), k_ok.mT)
    expected = full - lost_q - gain @ lost_o @ gain.mT
    assert_close(low_rank @ low_rank.mT, expected, atol=1e-6, rtol=1e-6)


def test_prior_of_z_q_is_sor_s_under_the_low_rank_canonical_prior(make):
    """σ²I + Q_oo is the p(z_o) under which z_q ~ N(0, σ²I + Q_q); the exact K_oo differs."""
    problem = make()
    variance = problem.noise**2
    q_oo = problem.k_om @ torch.linalg.solve(problem.k_mm, problem.k_om.mT)
    q_qq = problem.k_qm @ torch.linalg.solve(problem.k_mm, problem.k_qm.mT)
    gain = problem.gains()[0]
    given = problem.conditionals()[0]
    low_rank = given + gain @ (q_oo + variance * problem.eye) @ gain.mT
    assert_close(low_rank, q_qq + variance * problem.eye)
    exact = given + gain @ problem.k_oo @ gain.mT
    assert (exact - low_rank).abs().max() > 1e-3


@pytest.mark.parametrize("regulariser", ["joint", "marginals", "jensen"])
def test_padding_enters_neither_prediction_nor_density(make, regulariser):
    problem, real = make(tokens=7), 5
    short = Problem(
        *(getattr(problem, name)[:real] for name in ("queries", "canonical", "keys", "values")),
        problem.inducing,
        problem.key_inducing,
    )
    mask = torch.arange(7)[None] < real
    found = density(problem, regulariser=regulariser, mask=mask)
    assert_close(found, density(short, regulariser=regulariser))
    features, posterior, *_ = run(problem, mask=mask)
    assert_close((features.queries @ posterior.coefficients)[0, 0, :real], short.mean)


@pytest.mark.parametrize("conditional", ["sor", "fitc"])
@pytest.mark.parametrize("regulariser", ["joint", "marginals", "jensen"])
def test_gradients_agree_with_finite_differences(make, regulariser, conditional):
    problem = make(m=3, k=2, tokens=4, conditional=conditional)
    names = ("queries", "canonical", "keys", "inducing", "key_inducing", "values")
    tensors = [getattr(problem, name)[None, None].requires_grad_() for name in names]
    scales = [torch.tensor([s], dtype=torch.float64, requires_grad=True) for s in (0.7, 1.6, 0.1)]

    def evaluate(q, o, k, z, z_k, values, query_scale, key_scale, variance):
        features = sparse_features(q, o, k, z, z_k, query_scale, key_scale)
        posterior = sparse_posterior(features, values, variance)
        noise = (
            row_noise(features.queries, query_scale, variance, conditional),
            row_noise(features.keys, key_scale, variance, conditional),
        )
        return (
            features.queries @ posterior.coefficients,
            log_density(o, features, posterior, values, noise, variance, regulariser=regulariser),
            predictive_variance(features, covariance_root(posterior, variance), noise[0]),
        )

    assert torch.autograd.gradcheck(evaluate, (*tensors, *scales), fast_mode=True)


def test_variance_falls_to_the_noise_far_away_unless_fitc_repairs_it(make):
    near = make()
    far = {name: getattr(near, name) for name in ("canonical", "keys", "values")}
    queries = near.queries + 100
    for conditional, expected in (("sor", 0.3**2), ("fitc", 0.3**2 + 0.7**2)):
        problem = Problem(
            queries,
            **far,
            inducing=near.inducing,
            key_inducing=near.key_inducing,
            conditional=conditional,
        )
        features, posterior, _, noise, variance, _ = run(problem)
        found = predictive_variance(features, covariance_root(posterior, variance), noise[0])
        assert_close(found, torch.full_like(found, expected))


def test_factors_need_no_jitter_and_failures_are_reported():
    matrix = torch.tensor([[2.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
    assert torch.equal(factorise(matrix), torch.linalg.cholesky(matrix))
    with pytest.raises(CholeskyError, match="must be finite"):
        factorise(torch.full((1, 2, 2), torch.nan))
    rounded = torch.tensor([[1.0, 1.0], [1.0, 1.0 - 2e-16]], dtype=torch.float64)
    with pytest.warns(JitterWarning):
        assert factorise(rounded).isfinite().all()


def test_the_form_is_that_of_the_whole_matrix(draw):
    x, features = draw(2, 5, 7, 3).requires_grad_(), draw(2, 5, 7, 4, seed=1).requires_grad_()
    weights = draw(2, 5, 4, 4, seed=2)
    found = kernel_form(x, features)
    kernel = torch.exp(-0.5 * (x[..., :, None, :] - x[..., None, :, :]).square().sum(-1))
    expected = features.mT @ kernel @ features
    assert_close(found, expected)
    gradients, expected_gradients = (
        torch.autograd.grad((weights * form).sum(), (x, features)) for form in (found, expected)
    )
    assert_close(gradients, expected_gradients)


@pytest.mark.slow
def test_a_long_sum_keeps_float32_s_digits(draw):
    """Two and not twenty units of round-off: what is factorised next has a small floor."""
    x, features = 0.3 * draw(1, 1, 20_000, 2).float(), draw(1, 1, 20_000, 3, seed=1).float().abs()
    found, expected = kernel_form(x, features), kernel_form(x.double(), features.double())
    error = (found.double() - expected).abs().max() / expected.abs().max()
    assert error < 2 * torch.finfo(torch.float32).eps
