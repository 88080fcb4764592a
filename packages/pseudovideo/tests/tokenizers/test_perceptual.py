import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pseudovideo.tokenizers.perceptual import PerceptualLoss


class _Distance(nn.Module):
    """Weighted squared distance of colour images; remembers what it was given."""

    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(torch.tensor([1.0, 2.0, 4.0]))
        self.dropout = nn.Dropout(0.5)
        self.seen = []

    def forward(self, images, references):
        self.seen.append((images.detach(), references.detach()))
        squares = (images - references).square().mean(dim=(2, 3))
        return self.dropout(squares @ self.weights)


def _images(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator) * 2 - 1


def test_the_loss_is_the_mean_of_the_distances():
    loss, one, other = PerceptualLoss(_Distance()), _images(4, 3, 32, 32), _images(4, 3, 32, 32)
    other = other.flip(0)
    expected = [
        sum(w * F.mse_loss(a[c], b[c]) for c, w in enumerate((1, 2, 4)))
        for a, b in zip(one, other, strict=True)
    ]
    torch.testing.assert_close(loss(one, other), torch.stack(expected).mean())
    assert loss(one, one) == 0


def test_grey_images_get_three_equal_channels():
    distance = _Distance()
    one, other = _images(2, 1, 32, 32), _images(2, 1, 32, 32, seed=1)
    loss = PerceptualLoss(distance)(one, other)
    torch.testing.assert_close(loss, 7 * F.mse_loss(one, other))
    assert torch.equal(distance.seen[0][1], torch.cat((other, other, other), dim=1))


@pytest.mark.parametrize(
    ("size", "expected"), [((16, 16), (32, 32)), ((20, 40), (32, 64)), ((64, 80), (64, 80))]
)
def test_small_images_are_enlarged_and_large_ones_left_alone(size, expected):
    distance = _Distance()
    images = _images(2, 3, *size)
    PerceptualLoss(distance)(images, images)
    given = distance.seen[0][0]
    assert given.shape[2:] == expected
    if size == expected:
        assert torch.equal(given, images)


def test_the_network_is_frozen_and_no_part_of_the_state():
    distance = _Distance()
    loss = PerceptualLoss(distance).train()
    assert not distance.training
    assert not distance.weights.requires_grad
    assert not loss.state_dict()
    assert not list(loss.parameters())
    loss.load_state_dict({}, strict=True)
    images = _images(2, 3, 32, 32)
    assert loss(images, -images) == loss(images, -images)


def test_the_network_moves_along_and_is_copied_along():
    distance = _Distance()
    loss = PerceptualLoss(distance)
    other = copy.deepcopy(loss).double()
    assert distance.weights.dtype == torch.float32
    images = _images(2, 3, 32, 32).double()
    assert other(images, -images).dtype == torch.float64
    assert nn.Sequential(loss).double()[0](images, -images).dtype == torch.float64


def test_images_that_are_neither_grey_nor_colour_are_refused():
    with pytest.raises(ValueError, match=r"images must have 1 or 3 channels .*, got 2"):
        PerceptualLoss(_Distance())(_images(1, 2, 32, 32), _images(1, 2, 32, 32))


def test_lpips_takes_digits(digits, tmp_path):
    image = pytest.importorskip("probseq.metrics.image")
    pytest.importorskip("lpips")
    trunk = pytest.importorskip("torchvision.models").squeezenet1_1(weights=None).features
    torch.save(trunk.state_dict(prefix="features."), tmp_path / "trunk.pth")
    loss = PerceptualLoss(image.LPIPS("squeeze", weights=tmp_path / "trunk.pth"))
    one, two = digits[:4].clone().requires_grad_(), digits[4:8]
    assert loss(two, two) == pytest.approx(0, abs=1e-6)
    value = loss(one * 1.1, two)  # outside of −1..1
    value.backward()
    assert value > 0
    assert one.grad is not None
    assert one.grad.isfinite().all()
    assert one.grad.abs().sum() > 0


def test_pixels_outside_of_the_range_have_no_say_where_images_are_enlarged_either():
    images = _images(1, 3, 16, 16)
    images[0, :, 5, 6] = 1.8
    images.requires_grad_()
    reference, distance = _images(1, 3, 16, 16, seed=1), _Distance()
    loss = PerceptualLoss(distance)(images, reference)
    loss.backward()
    assert (images.grad[0, :, 5, 6] == 0).all()
    assert (images.grad[0, :, 5, 7] != 0).all()
    again = PerceptualLoss(_Distance())(images.detach().clamp(-1, 1), reference)
    assert loss.item() == again.item()


def test_pixels_outside_of_the_range_have_no_say():
    distance = _Distance()
    images = _images(1, 3, 32, 32)
    images[0, 0, 0, :2] = torch.tensor([3.0, 0.5])
    images.requires_grad_()
    PerceptualLoss(distance)(images, torch.zeros(1, 3, 32, 32)).backward()
    assert distance.seen[0][0].abs().max() <= 1
    assert images.grad is not None
    assert images.grad[0, 0, 0, 0] == 0
    assert images.grad[0, 0, 0, 1] == pytest.approx(2 * 0.5 / 32**2)
