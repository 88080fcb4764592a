"""Kernel-eigen-pair attention against the paper's formulas, written out in dense float64."""

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence
from torch.testing import assert_close

from kepsvgp import KernelEigenPairAttention
from kepsvgp.inducing import draw_inducing, inducing_kl, lower_factor
from probseq.testing.instruments import constant_noise

HEADS, WIDTH, RANK = 3, 2, 4
DIM = HEADS * WIDTH
EXACT = {"rtol": 1e-13, "atol": 1e-14}


def make_layer(seed=0, **options):
    """A layer all of whose parameters matter, with distinct weights in every head."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        options = {"initial_posterior": "random"} | options
        layer = KernelEigenPairAttention(DIM, HEADS, RANK, **options).double()
        with torch.no_grad():
            layer.raw_singular_values.copy_(0.7 * torch.randn(HEADS, RANK) + 1.0)
    return layer.eval()


def tokens(*shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def picked(x, size):
    """f(X) of one sequence without padding: evenly spaced tokens, or all of them."""
    n = len(x)
    if n <= size:
        return x
    return torch.stack([x[j * (n - 1) // max(size - 1, 1)] for j in range(size)])


def head_scores(layer, x, h):
    """E and R of one sequence and head (10), token by token, and f(X)."""
    block = slice(h * WIDTH, (h + 1) * WIDTH)
    f = picked(x, layer.projection_tokens)[:, block]
    weights = layer.projection[:, h, : len(f)]
    query, key = (w[block] for w in layer.to_qk.weight.split(DIM))
    phi_q = torch.stack([query @ row / (query @ row).norm() for row in x])
    phi_k = torch.stack([key @ row / (key @ row).norm() for row in x])
    return phi_q @ f.mT @ weights[0], phi_k @ f.mT @ weights[1], f


def objective(layer, x, h):
    """J of (11) for one sequence and head."""
    e, r, f = head_scores(layer, x, h)
    inverse = layer.singular_values[h].reciprocal().diag()
    first = sum(row @ inverse @ row for row in e) / 2
    second = sum(row @ inverse @ row for row in r) / 2
    weights = layer.projection[:, h, : len(f)]
    return first + second - torch.trace(weights[0].mT @ weights[1])


def token_mixing(layer, length, merge):
    """W_1 for sequences of this length, (length, 2 length), or None."""
    if merge == "addition":
        return None
    if merge == "concatenation":
        halves = [w[:length, :length] for w in layer.mixing.weight]
        return torch.cat(halves, 1)
    right = torch.cat([b[:length] for b in layer.mixing.right])
    return layer.mixing.left[:length] @ right.mT


def naive_values(layer, x, draws, merge):
    """Output for one sequence: Λ explicitly inverted, U by columns, then (19) and the projection.

    ``draws`` holds U_h of each head, s×s, for the first and the second process.
    """
    heads = []
    for h in range(HEADS):
        e, r, _ = head_scores(layer, x, h)
        inverse = torch.linalg.inv(layer.singular_values[h].diag())
        parts = [{"e": e, "r": r}[name] for name in layer.branches]
        processes = [part @ inverse @ draws[i][h] for i, part in enumerate(parts)]
        w1 = token_mixing(layer, len(x), merge)
        heads.append(sum(processes) if w1 is None else w1 @ torch.cat(processes))
    return layer.to_out(torch.cat(heads, 1))


def inducing_at(layer, noise):
    """U of each head, column by column, u_d = m_d + L_d ε_d (17), for a constant ε."""
    mean, factor = layer.inducing_mean, layer.inducing_factor
    epsilon = torch.full((RANK,), noise, dtype=torch.float64)
    return [
        torch.stack([mean[h, d] + factor[h, d] @ epsilon for d in range(RANK)], 1)
        for h in range(HEADS)
    ]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("branches", ["er", "ee", "rr"])
@pytest.mark.parametrize("merge", ["addition", "concatenation", "concatenation-low-rank"])
@torch.no_grad()
def test_the_folded_products_equal_the_naive_formulas(merge, branches, shared):
    layer = make_layer(merge=merge, max_tokens=9, branches=branches, shared_u=shared)
    x = tokens(2, 7, DIM)
    mask = torch.arange(7) < torch.tensor([7, 3])[:, None]
    for noise in (0.0, 1.0, -2.0):
        draws = [inducing_at(layer, noise)] * 2
        with constant_noise(noise):
            padded, plain = layer(x, mask).values, layer(x).values
        for b, length in enumerate((7, 3)):
            expected = naive_values(layer, x[b, :length], draws, merge)
            assert_close(padded[b, :length], expected, **EXACT)
            assert_close(plain[b], naive_values(layer, x[b], draws, merge), **EXACT)


@torch.no_grad()
def test_two_draws_go_to_two_processes():
    layer, x = make_layer(shared_u=False), tokens(1, 5, DIM)
    mean, factor = layer.whitened_mean, lower_factor(layer.raw_whitened_factor)
    generator = torch.Generator().manual_seed(3)
    scale = layer.singular_values[:, :, None]
    draws = [
        scale * draw_inducing(mean, factor, (1, 1), generator=generator)[0, 0].mT for _ in range(2)
    ]
    actual = layer(x, generator=torch.Generator().manual_seed(3)).values[0]
    assert_close(actual, naive_values(layer, x[0], draws, "addition"), **EXACT)
    swapped = naive_values(layer, x[0], draws[::-1], "addition")
    assert not torch.allclose(actual, swapped)


@pytest.mark.parametrize("branches", ["er", "ee", "rr"])
@pytest.mark.parametrize("size", [None, 5])
@torch.no_grad()
def test_the_kernel_svd_loss_is_equation_11(size, branches):
    layer, x = make_layer(projection_tokens=size, branches=branches), tokens(3, 7, DIM)
    lengths = (7, 2, 5)
    mask = torch.arange(7) < torch.tensor(lengths)[:, None]
    squares = [
        objective(layer, x[b, :length], h).square()
        for b, length in enumerate(lengths)
        for h in range(HEADS)
    ]
    assert_close(layer.penalties(x, mask).ksvd, torch.stack(squares).mean())
    unmasked = [objective(layer, x[b], h).square() for b in range(3) for h in range(HEADS)]
    assert_close(layer.penalties(x).ksvd, torch.stack(unmasked).mean())


def dense_kl(layer):
    """KL of N(m_d, S_d) from N(0, Λ²), for each head and d: torch's own."""
    return sum(
        kl_divergence(
            MultivariateNormal(layer.inducing_mean[h, d], scale_tril=layer.inducing_factor[h, d]),
            MultivariateNormal(
                torch.zeros(RANK, dtype=torch.float64), scale_tril=layer.singular_values[h].diag()
            ),
        )
        for h in range(HEADS)
        for d in range(RANK)
    )


def test_the_divergence_is_torchs_and_equation_21_put_right():
    layer, x = make_layer(), tokens(2, 5, DIM)
    expected = dense_kl(layer)
    parts = layer.penalties(x)
    assert_close(parts.kl, expected)
    assert_close(layer(x).penalty, expected + 10.0 * parts.ksvd)
    # (21) term by term, logarithms and s within the sum over d.
    total = 0.0
    for h in range(HEADS):
        prior = layer.singular_values[h].square().diag()
        for d in range(RANK):
            mean, factor = layer.inducing_mean[h, d], layer.inducing_factor[h, d]
            posterior = factor @ factor.mT
            total = total + 0.5 * (
                torch.trace(torch.linalg.inv(prior) @ posterior)
                + mean @ torch.linalg.inv(prior) @ mean
                + torch.logdet(prior)
                - torch.logdet(posterior)
                - RANK
            )
    assert_close(parts.kl, total)


def test_two_sets_of_inducing_variables_are_paid_for_twice():
    x = tokens(2, 5, DIM)
    one, two = make_layer(), make_layer(shared_u=False)
    two.load_state_dict(one.state_dict())
    assert_close(two.penalties(x).kl, 2.0 * one.penalties(x).kl)
    assert_close(two.penalties(x).ksvd, one.penalties(x).ksvd)


def test_the_prior_costs_nothing_but_its_random_mean():
    layer = make_layer(initial_posterior="prior")
    assert_close(layer.penalties(tokens(1, 3, DIM)).kl, 0.5 * layer.whitened_mean.square().sum())
    mean, factor = torch.zeros(1, 2, 2), torch.eye(2).expand(1, 2, 2, 2)
    assert inducing_kl(mean, factor) == 0.0


def test_factors_are_lower_triangular_and_regular_for_every_output_dimension():
    # The authors' code has the output dimension as the factor's second index.
    layer = make_layer()
    for h in range(HEADS):
        for d in range(RANK):
            factor = layer.inducing_factor[h, d]
            assert torch.equal(factor, factor.tril())
            assert (factor.diagonal() > 0).all()
            assert torch.linalg.matrix_rank(factor @ factor.mT) == RANK
            assert (factor.tril(-1) != 0).sum() == RANK * (RANK - 1) / 2


@torch.no_grad()
def test_marginals_of_both_processes_are_equation_16_put_right():
    layer, x = make_layer(), tokens(1, 3, DIM)
    layer.to_out = torch.nn.Identity()  # heads side by side: F itself
    draws = 40_000
    generator = torch.Generator().manual_seed(0)
    for branches, index in (("ee", 0), ("rr", 1)):
        layer.branches = branches
        # The same process twice is twice the process.
        samples = layer(x, generator=generator, num_samples=draws).values / 2.0
        for h in range(HEADS):
            scores = head_scores(layer, x[0], h)[index]
            inverse = torch.linalg.inv(layer.singular_values[h].diag())
            for d in range(RANK):
                mean = scores @ inverse @ layer.inducing_mean[h, d]
                factor = layer.inducing_factor[h, d]
                covariance = scores @ inverse @ factor @ factor.mT @ inverse @ scores.mT
                found = samples[:, :, h * RANK + d]
                scale = covariance.diagonal().sqrt()
                error = (found.mean(0) - mean) / scale * draws**0.5
                assert error.abs().max() < 5.0
                product = (scale[:, None] * scale).square() + covariance.square()
                error = (found.mT.cov() - covariance) / product.sqrt() * draws**0.5
                assert error.abs().max() < 5.0
                # The printed E Λ⁻² S Eᵀ is no covariance: it isn't symmetric.
                printed = scores @ inverse @ inverse @ factor @ factor.mT @ scores.mT
                assert not torch.allclose(printed, printed.mT)


@pytest.mark.parametrize("shared", [True, False])
@torch.no_grad()
def test_the_two_processes_share_their_inducing_variables_or_do_not(shared):
    layer, x = make_layer(shared_u=shared), tokens(1, 3, DIM)
    layer.to_out = torch.nn.Identity()
    draws = 40_000
    generator = torch.Generator().manual_seed(0)
    summed = layer(x, generator=generator, num_samples=draws).values
    for h in range(HEADS):
        e, r, _ = head_scores(layer, x[0], h)
        inverse = torch.linalg.inv(layer.singular_values[h].diag())
        for d in range(RANK):
            left, right = (part @ inverse @ layer.inducing_factor[h, d] for part in (e, r))
            cross = left @ right.mT
            expected = left @ left.mT + right @ right.mT
            if shared:
                expected = expected + cross + cross.mT
            found = summed[:, :, h * RANK + d].mT.cov()
            scale = expected.diagonal().sqrt()
            product = (scale[:, None] * scale).square() + expected.square()
            assert ((found - expected) / product.sqrt() * draws**0.5).abs().max() < 5.0


@torch.no_grad()
def test_each_sequence_and_sample_has_its_own_draw_which_all_its_tokens_share():
    layer = make_layer()
    x = tokens(1, 1, DIM).expand(2, 2, DIM)  # two equal sequences of two equal tokens
    values = layer(x, generator=torch.Generator().manual_seed(0), num_samples=3).values
    values = values.unflatten(0, (3, 2))
    assert_close(values[:, :, 0], values[:, :, 1])
    first = values[:, :, 0].flatten(0, 1)
    assert torch.pdist(first).min() > 1e-3


@torch.no_grad()
def test_whitening_takes_the_singular_values_out_of_the_values():
    # What Λ⁻¹ U says: with the whitened variables held fixed, Λ enters the kernel SVD alone.
    layer, x = make_layer(), tokens(2, 5, DIM)
    with constant_noise(1.0):
        before, parts = layer(x).values, layer.penalties(x)
        layer.raw_singular_values += 0.5
        after, moved = layer(x).values, layer.penalties(x)
    assert torch.equal(before, after)
    assert torch.equal(parts.kl, moved.kl)
    assert not torch.allclose(parts.ksvd, moved.ksvd)


@torch.no_grad()
def test_autocast_leaves_the_kernel_in_full_precision():
    layer, x = make_layer().float(), tokens(2, 5, DIM).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = layer.kernel(x)
    assert found.dtype == torch.float32
    assert_close(found, layer.kernel(x), atol=0.1, rtol=0.1)


def test_projection_weights_start_with_orthonormal_columns():
    layer = KernelEigenPairAttention(DIM, HEADS, RANK)
    assert layer.projection.shape == (2, HEADS, 10 * RANK, RANK)
    gram = layer.projection.mT @ layer.projection
    assert_close(gram, torch.eye(RANK).expand_as(gram), rtol=0.0, atol=1e-5)
    assert KernelEigenPairAttention(DIM, HEADS, RANK, max_tokens=6).projection.shape[2] == 6


@torch.no_grad()
def test_singular_values_start_on_the_scale_of_the_kernels():
    torch.manual_seed(0)
    x = torch.nn.functional.layer_norm(torch.randn(16, 64, 96), (96,))
    layer = KernelEigenPairAttention(96, 3, 10, max_tokens=64)
    typical = float(layer.singular_values.mean())
    unrelated = torch.linalg.svdvals(layer.kernel(x))[..., 0].mean()
    alike = torch.linalg.svdvals(layer.kernel(x[:, :1].expand(x.shape)))[..., 0].mean()
    assert float(unrelated) < typical < 2.0 * float(alike)
    assert typical > 0.1 * float(alike)
