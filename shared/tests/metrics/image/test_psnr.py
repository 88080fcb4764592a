import math

import pytest
import torch

from probseq.metrics.image import psnr


def pictures(seed=0, shape=(5, 3, 8, 6)):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1


def test_each_image_has_its_own_number():
    x, y = pictures(1), pictures(2)
    expected = []
    for a, b in zip(x, y, strict=True):
        error = (
            sum(
                (p - q) ** 2
                for p, q in zip(a.flatten().tolist(), b.flatten().tolist(), strict=True)
            )
            / a.numel()
        )
        expected.append(10 * math.log10(4 / error))
    assert psnr(x, y).tolist() == pytest.approx(expected, rel=1e-12)


def test_identical_images_are_infinitely_good():
    x = pictures(3)
    y = x.clone()
    y[2] += 0.02
    assert psnr(y, x).isinf().tolist() == [True, True, False, True, True]


def test_bad_images_are_refused(plain_calls):
    x = pictures()
    with pytest.raises(ValueError, match=r"images must have the shape of references"):
        psnr(x, x[:, :1])
    with pytest.raises(ValueError, match=r"images must have shape \(n, c, h, w\)"):
        psnr(x[0], x[0])
    with pytest.raises(ValueError, match="references must be finite"):
        psnr(x, x * torch.nan)
