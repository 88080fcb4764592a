import math

import pytest
import torch

from probseq.metrics import forgetting

NAN = math.nan


def test_forgetting_is_the_last_row_minus_the_diagonal():
    matrix = torch.tensor([[1.0, NAN, NAN], [1.5, 2.0, NAN], [4.0, 1.0, 3.0]])
    assert forgetting(matrix).tolist() == [3.0, -1.0, 0.0]


def test_a_score_that_falls_is_forgetting_too():
    matrix = torch.tensor([[0.9, NAN], [0.6, 0.8]], dtype=torch.float64)
    found = forgetting(matrix, higher_is_better=True)
    assert found.tolist() == pytest.approx([0.3, 0.0])


@pytest.mark.parametrize(
    "matrix", [torch.zeros(2, 3), torch.zeros(0, 0), torch.zeros(2), torch.tensor([[NAN]])]
)
def test_anything_but_a_finite_square_matrix_is_refused(matrix):
    with pytest.raises(ValueError, match="matrix must"):
        forgetting(matrix)
