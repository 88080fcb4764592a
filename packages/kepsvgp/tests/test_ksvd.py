"""The kernel SVD's objective on kernels whose singular vectors are known."""

import torch
from torch.testing import assert_close

from kepsvgp.ksvd import ksvd_loss, ksvd_objective

TOKENS, FEATURES, RANK = 7, 5, 3


def toy(seed=0):
    """Explicit features of queries and keys, and the SVD of their kernel."""
    generator = torch.Generator().manual_seed(seed)
    phi_q, phi_k = torch.randn(
        2, TOKENS, FEATURES, generator=generator, dtype=torch.float64
    ).unbind()
    left, values, right = torch.linalg.svd(phi_q @ phi_k.mT)
    return phi_q, phi_k, left[:, :RANK], values[:RANK], right.mH[:, :RANK]


def objective(phi_q, phi_k, weight, values):
    found = torch.stack([(phi_q @ weight[0]).mT, (phi_k @ weight[1]).mT])
    return ksvd_objective(found[None, :, None], weight[:, None], values[None], FEATURES)


def dual_solution(seed=0):
    """W_e = Φ_kᵀ H_r and W_r = Φ_qᵀ H_e, the KKT conditions of (37)."""
    phi_q, phi_k, left, values, right = toy(seed)
    weight = torch.stack([phi_k.mT @ right, phi_q.mT @ left])
    # The primal and dual scores of (28) agree: E = H_e Λ, R = H_r Λ.
    assert_close(phi_q @ weight[0], left * values)
    assert_close(phi_k @ weight[1], right * values)
    return phi_q, phi_k, weight, values


def test_the_loss_vanishes_at_the_singular_vectors():
    for seed in range(5):
        phi_q, phi_k, weight, values = dual_solution(seed)
        loss = ksvd_loss(objective(phi_q, phi_k, weight, values))
        assert loss < 1e-24 * float(values.sum()) ** 2 + 1e-22


def test_it_does_not_vanish_elsewhere():
    phi_q, phi_k, weight, values = dual_solution()
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
    assert ksvd_loss(objective(phi_q, phi_k, weight + 0.3 * noise, values)) > 1e-2
    assert ksvd_loss(objective(phi_q, phi_k, weight, 1.2 * values)) > 1e-2
    assert ksvd_loss(objective(phi_q, phi_k, weight.flip(0), values)) > 1e-2


def test_it_vanishes_at_what_is_no_solution_too():
    # Necessary, not sufficient: the weights' scale is free, and so is their absence.
    phi_q, phi_k, weight, values = dual_solution()
    for other in (3.0 * weight, 0.0 * weight):
        assert ksvd_loss(objective(phi_q, phi_k, other, values)) < 1e-20


def test_any_singular_triplets_solve_it_not_only_the_largest():
    phi_q, phi_k, *_ = toy()
    left, values, right = torch.linalg.svd(phi_q @ phi_k.mT)
    last = slice(FEATURES - RANK, FEATURES)
    weight = torch.stack([phi_k.mT @ right.mH[:, last], phi_q.mT @ left[:, last]])
    assert ksvd_loss(objective(phi_q, phi_k, weight, values[last])) < 1e-20


def test_rows_without_a_token_stay_out_of_the_trace():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(2, 2, 4, RANK, generator=generator, dtype=torch.float64)
    silent = torch.zeros(3, 2, 2, RANK, TOKENS, dtype=torch.float64)
    values = torch.ones(2, RANK, dtype=torch.float64)
    found = ksvd_objective(silent, weight, values, torch.tensor([4, 1, 0]))
    products = (weight[0] * weight[1]).sum(-1)
    expected = [-products.sum(-1), -products[:, 0], torch.zeros(2, dtype=torch.float64)]
    assert_close(found, torch.stack(expected))
    assert_close(ksvd_objective(silent, weight, values, 4)[0], expected[0])
