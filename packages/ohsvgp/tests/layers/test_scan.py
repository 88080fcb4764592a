"""The associative scan, against a loop over time."""

import pytest
import torch
from torch.testing import assert_close

from ohsvgp.layers.scan import Steps, scan


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 64, 101])
def test_the_scan_equals_a_loop_over_time(count):
    generator = torch.Generator().manual_seed(count)

    def draw(*shape):
        return torch.randn(count, *shape, generator=generator, dtype=torch.float64)

    T = draw(1, 3, 4, 4)
    T = T / torch.linalg.matrix_norm(T, 2)[..., None, None]
    root, b = draw(2, 3, 4, 2), draw(2, 3, 4, 5)
    found = scan(Steps(T, root @ root.mT, b))
    product = torch.eye(4, dtype=torch.float64).expand(1, 3, 4, 4)
    G, h = torch.zeros(2, 3, 4, 4, dtype=torch.float64), torch.zeros_like(b[0])
    for i in range(count):
        product = product @ T[i]
        G = T[i].mT @ G @ T[i] + root[i] @ root[i].mT
        h = T[i].mT @ h + b[i]
        for actual, expected in zip(found, (product, G, h), strict=True):
            assert_close(actual[i], expected, rtol=0, atol=1e-12)
