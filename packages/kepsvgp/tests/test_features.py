"""Which tokens make f(X), and what happens to tokens without direction."""

import pytest
import torch
from torch.testing import assert_close

from kepsvgp.features import kernel_matrix, pick_tokens, scores


def picks(n, size):
    return [j * (n - 1) // max(size - 1, 1) for j in range(size)] if n > size else list(range(n))


@pytest.mark.parametrize("size", [1, 2, 5, 7, 20])
@pytest.mark.parametrize("junk", [float("nan"), 1e9])
def test_the_picks_depend_on_the_real_tokens_alone(size, junk):
    generator = torch.Generator().manual_seed(0)
    for real in ([0, 1, 2, 3, 4, 5], [6, 7, 8], [1, 3, 4, 8], [5], list(range(9))):
        x = torch.full((1, 9, 2), junk)
        x[0, real] = torch.randn(len(real), 2, generator=generator)
        mask = torch.zeros(1, 9, dtype=torch.bool)
        mask[0, real] = True
        rows, num_rows = pick_tokens(x, mask, size)
        expected = x[0, real][picks(len(real), size)]
        assert num_rows.tolist() == [len(expected)]
        assert torch.equal(rows[0, : len(expected)], expected)
        assert not rows[0, len(expected) :].any()
        alone, count = pick_tokens(x[:, real], None, size)
        assert count == len(expected)
        assert torch.equal(alone[0], expected)


def test_the_first_and_the_last_token_are_picked():
    x = torch.arange(100.0)[None, :, None]
    rows = pick_tokens(x, None, 10).rows[0, :, 0]
    assert rows[0] == 0
    assert rows[-1] == 99
    assert rows.diff().unique().tolist() == [11]


def test_a_sequence_of_padding_picks_nothing():
    rows, num_rows = pick_tokens(torch.ones(2, 3, 2), torch.zeros(2, 3, dtype=torch.bool), 2)
    assert not rows.any()
    assert num_rows.tolist() == [0, 0]


def test_scores_of_a_cosine_map_have_the_right_gradient_and_vanish_without_direction():
    generator = torch.Generator().manual_seed(0)
    projected = torch.randn(2, 2, 1, 3, 4, generator=generator, dtype=torch.float64)
    weights = torch.randn(2, 2, 1, 2, 3, generator=generator, dtype=torch.float64)
    torch.autograd.gradcheck(scores, (projected.requires_grad_(), weights.requires_grad_()))
    expected = weights @ torch.nn.functional.normalize(projected, dim=-2)
    assert_close(scores(projected, weights), expected)
    assert_close(scores(1e-3 * projected, weights), expected)
    zero = torch.zeros_like(projected).requires_grad_()
    found = scores(zero, weights)
    assert not found.any()
    (gradient,) = torch.autograd.grad(found.sum(), zero)
    assert not gradient.any()


def test_second_derivatives_of_scores_are_refused_and_not_wrong():
    projected = torch.ones(1, 1, 1, 3, 4, requires_grad=True)
    found = scores(projected, torch.ones(1, 1, 1, 2, 3))
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(found.sum(), projected, create_graph=True)


def test_the_kernel_is_the_inner_product_of_the_features():
    generator = torch.Generator().manual_seed(0)
    projected = torch.randn(1, 2, 2, 3, 4, generator=generator, dtype=torch.float64)
    rows = torch.randn(1, 5, 6, generator=generator, dtype=torch.float64)
    kernel = kernel_matrix(projected, rows)
    for h in range(2):
        f = rows[0, :, 3 * h : 3 * h + 3]
        for i in range(4):
            for j in range(4):
                q, k = projected[0, 0, h, :, i], projected[0, 1, h, :, j]
                expected = (f @ q / q.norm()) @ (f @ k / k.norm())
                assert_close(kernel[0, h, i, j], expected)
