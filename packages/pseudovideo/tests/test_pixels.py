"""What is no image in -1..1, and weights of which nothing can be drawn, are refused by name."""

import pytest
import torch
from torch import nn

from pseudovideo.corruptions import image_spectrum
from pseudovideo.diffusion.gaussian import GaussianDiffusion
from pseudovideo.diffusion.likelihood import bits_per_dim
from pseudovideo.pixels import check_pixels, to_bytes
from pseudovideo.pretrained import check_weights, eval_mode

BAD = {"levels": 255.0, "nan": torch.nan, "infinity": torch.inf}


@pytest.mark.parametrize("value", BAD.values(), ids=BAD)
def test_what_is_no_image_is_refused_by_name(value):
    images = torch.zeros(4, 1, 2, 2)
    check_pixels(images=images + 6.0)  # as noise of pseudo videos is
    images[1, 0, 1, 1] = value
    process = GaussianDiffusion.make(10, "cosine")
    for name, refuse in (
        ("videos", lambda: check_pixels(videos=images)),
        ("images", lambda: image_spectrum(images)),
        ("x0", lambda: bits_per_dim(lambda x, t: x.repeat(1, 2, 1, 1), images, process)),
    ):
        with pytest.raises(ValueError, match=f"^{name}.* must be finite"):
            refuse()


def test_numbers_that_are_none_become_no_bytes():
    assert to_bytes(torch.tensor([[[-3.0, 0.0, 3.0]]])).tolist() == [[[0, 128, 255]]]
    with pytest.raises(ValueError, match="images must be numbers to be bytes, got NaN"):
        to_bytes(torch.full((1, 1, 2, 2), torch.nan))


@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_weights_that_are_not_finite_are_refused_by_name(value):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    check_weights(model)
    with torch.no_grad():
        model[1].weight[0, 1] = value
    with pytest.raises(ValueError, match=r"NaN or infinity in 1\.weight"), eval_mode(model):
        pytest.fail("it went on")
