"""The one Cholesky factorisation: model jitter, bounded escalation, named failures, compilation."""

import numpy as np
import pytest
import scipy.linalg
import torch

from probseq.errors import CholeskyError, JitterWarning
from probseq.linalg import default_jitter, safe_cholesky, triangular_inverse


def random_covariance(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(*shape, shape[-1], generator=generator, dtype=torch.float64)
    return root @ root.mT + 0.1 * torch.eye(shape[-1], dtype=torch.float64)


def nearly_singular(defect, n=4):
    """Ones with ``defect`` subtracted from the diagonal: smallest eigenvalue −defect."""
    return torch.ones(n, n, dtype=torch.float64) - defect * torch.eye(n, dtype=torch.float64)


@pytest.mark.parametrize("jitter", [None, 1e-3])
def test_equals_scipy_with_jitter_relative_to_the_mean_diagonal_of_each_member(jitter):
    scale = torch.tensor([1.0, 100.0, 1e-3], dtype=torch.float64)
    matrix = random_covariance(3, 5) * scale[:, None, None]
    factor = safe_cholesky(matrix, jitter=jitter)
    for i in range(3):
        single = matrix[i].numpy()
        relative = 1e-8 if jitter is None else jitter
        jittered = single + relative * np.mean(np.diag(single)) * np.eye(5)
        expected = scipy.linalg.cholesky(jittered, lower=True)
        np.testing.assert_allclose(factor[i].numpy(), expected, rtol=1e-12, atol=1e-14)


def test_default_jitter_is_known_for_both_precisions_and_refused_for_half():
    assert default_jitter(torch.float32) == 1e-6
    assert default_jitter(torch.float64) == 1e-8
    with pytest.raises(ValueError, match=r"float32 or float64 .* got torch.bfloat16"):
        safe_cholesky(torch.eye(3, dtype=torch.bfloat16))


def test_only_failing_members_get_more_jitter_and_the_warning_counts_them():
    good = random_covariance(4)
    # −1e-6 is beyond jitter 1e-8 and 1e-7, and within 1e-5.
    matrix = torch.stack([good, nearly_singular(1e-6), good])
    with pytest.warns(JitterWarning, match="1 of 3 matrices .* above 1e-08; up to 1e-05"):
        factor = safe_cholesky(matrix)
    # Up to rounding, which may differ in a batch; one step more of jitter would be 1e-7.
    torch.testing.assert_close(factor[0], safe_cholesky(good), rtol=0, atol=1e-12)
    torch.testing.assert_close(factor[2], safe_cholesky(good), rtol=0, atol=1e-12)
    added = factor[1] @ factor[1].mT - matrix[1]
    expected = 1e-5 * (1 - 1e-6) * torch.eye(4, dtype=torch.float64)
    torch.testing.assert_close(added, expected, rtol=1e-8, atol=1e-14)


def test_the_search_stops_after_max_tries_with_advice():
    # Three tries reach 1e-6, four 1e-5.
    matrix = nearly_singular(3e-6)
    with pytest.raises(CholeskyError, match=r"1 of 1 matrices of size 4 .* 1e-06: use float64"):
        safe_cholesky(matrix, max_tries=3)
    with pytest.warns(JitterWarning):
        safe_cholesky(matrix, max_tries=4)


def test_an_indefinite_matrix_is_an_error_and_not_an_endless_loop():
    with pytest.raises(CholeskyError, match="not positive definite even with"):
        safe_cholesky(torch.diag(torch.tensor([1.0, -0.5, 1.0])))
    with pytest.raises(CholeskyError, match="not positive definite"):
        safe_cholesky(torch.zeros(3, 3))


@pytest.mark.parametrize("place", [(0, 0), (3, 3), (2, 1)])
def test_nan_and_infinity_are_named_with_their_counts(place):
    row, column = place
    matrix = random_covariance(3, 4)
    matrix[1, row, column] = float("nan")
    with pytest.raises(CholeskyError, match="got 1 NaN and 0 infinite entries in 1 of 3 matrices"):
        safe_cholesky(matrix)
    # Infinity alone on the diagonal makes the jitter infinite and the factorisation "succeed".
    infinite = random_covariance(4)
    infinite[row, column] = float("inf")
    with pytest.raises(CholeskyError, match="got 0 NaN and 1 infinite entries in 1 of 1 matrices"):
        safe_cholesky(infinite)
    matrix[2, row, column] = float("inf")
    with pytest.raises(CholeskyError, match="got 1 NaN and 1 infinite entries in 2 of 3 matrices"):
        safe_cholesky(matrix)


def test_gradients_agree_with_finite_differences_with_and_without_escalation():
    def of_symmetric(root):
        return safe_cholesky(root @ root.mT, jitter=0.1)

    root = torch.linalg.cholesky(random_covariance(2, 3)).requires_grad_()
    torch.autograd.gradcheck(of_symmetric, root)
    torch.autograd.gradgradcheck(of_symmetric, root)

    def escalated(diagonal):
        return safe_cholesky(torch.diag_embed(diagonal), jitter=0.1)

    # Negative entry −0.5, mean 0.9: jitter 0.1 is too little, 1.0 is enough.
    diagonal = torch.tensor([1.2, 2.0, -0.5], dtype=torch.float64, requires_grad=True)
    with pytest.warns(JitterWarning):
        torch.autograd.gradcheck(escalated, diagonal)


def test_sizes_one_and_zero_work():
    torch.testing.assert_close(
        safe_cholesky(torch.tensor([[[4.0]]])), torch.tensor([[[2.0 * (1 + 1e-6) ** 0.5]]])
    )
    assert safe_cholesky(torch.zeros(0, 3, 3)).shape == (0, 3, 3)


def test_triangular_inverse_is_the_inverse_and_ignores_the_upper_triangle():
    factor = safe_cholesky(random_covariance(2, 5))
    junk = factor + torch.full((5, 5), 9.0, dtype=torch.float64).triu(1)
    expected = np.linalg.inv(factor.numpy())
    np.testing.assert_allclose(triangular_inverse(junk).numpy(), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_agrees_with_the_cpu_and_names_nan():
    matrix = torch.stack([random_covariance(4), nearly_singular(1e-6)])
    with pytest.warns(JitterWarning):
        expected = safe_cholesky(matrix)
    with pytest.warns(JitterWarning):
        actual = safe_cholesky(matrix.cuda())
    torch.testing.assert_close(actual.cpu(), expected)
    matrix[0, 2, 1] = float("nan")
    with pytest.raises(CholeskyError, match="1 NaN"):
        safe_cholesky(matrix.cuda())
