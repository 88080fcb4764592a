"""The sum over all pairs of tokens against an explicit matrix."""

import pytest
import torch
from torch.testing import assert_close

from cgpt.sparse_regulariser import kernel_form


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
