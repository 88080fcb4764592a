"""Quadratic forms against einsum and finite differences, in chunks of any size."""

import pytest
import torch
from torch.testing import assert_close

from sgpa import quadratic
from sgpa.quadratic import quadratic_forms


@pytest.fixture(params=[1, 30, None], ids=lambda size: f"chunk={size}")
def chunk(request, monkeypatch):
    """Chunks of one row, of a few, and one for everything."""
    if request.param is not None:
        monkeypatch.setattr(quadratic, "_CPU_CHUNK", request.param)


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("inducing", [1, 2, 5, 8])
def test_equals_einsum(inducing):
    rows, factors = draw(2, 7, inducing), draw(2, 3, inducing, inducing, seed=1).tril()
    inner = torch.einsum("hdmk,hdnk->hdmn", factors, factors) - torch.eye(inducing)
    expected = torch.einsum("htm,hdmn,htn->htd", rows, inner, rows)
    assert_close(quadratic_forms(rows, factors), expected)


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("inducing", [1, 2, 5])
def test_gradients_agree_with_finite_differences(inducing):
    rows = draw(2, 3, inducing).requires_grad_()
    factors = draw(2, 2, inducing, inducing, seed=1).tril().requires_grad_()
    torch.autograd.gradcheck(quadratic_forms, (rows, factors))


def test_what_lies_above_the_diagonal_is_not_read():
    rows, factors = draw(1, 4, 5), draw(1, 2, 5, 5, seed=1).requires_grad_()
    forms = quadratic_forms(rows, factors)
    assert_close(forms, quadratic_forms(rows, factors.tril()))
    (gradient,) = torch.autograd.grad(forms.sum(), factors)
    assert not gradient.triu(1).any()


def test_identity_factors_give_exact_zeros_but_for_round_off():
    rows = draw(2, 9, 6)
    forms = quadratic_forms(rows, torch.eye(6, dtype=torch.float64).expand(2, 3, 6, 6))
    assert_close(forms, torch.zeros(2, 9, 3, dtype=torch.float64), rtol=0, atol=1e-14)


def test_only_the_inputs_are_kept_for_the_backward_pass():
    rows, factors = draw(2, 50, 6).requires_grad_(), draw(2, 4, 6, 6).requires_grad_()
    kept = []

    def pack(tensor):
        kept.append(tensor.data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        quadratic_forms(rows, factors)
    assert set(kept) == {rows.data_ptr(), factors.data_ptr()}
