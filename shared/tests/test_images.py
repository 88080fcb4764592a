import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage
from torch.nn import functional

from probseq.images import (
    augment3,
    channel_statistics,
    gaussian_filter,
    match_images,
    motion_filter,
    normalize,
    random_crop_flip,
    rotate,
    to_bytes,
    to_grey,
    zoom,
)


def random_images(*shape, seed=0):
    return torch.randint(
        256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )


def test_normalized_images_have_mean_zero_and_deviation_one():
    images = random_images(40, 3, 16, 16)
    mean, std = channel_statistics(images)
    normal = normalize(images, mean, std)
    torch.testing.assert_close(normal.mean((0, 2, 3)), torch.zeros(3), atol=1e-6, rtol=0)
    deviation = normal.std((0, 2, 3), correction=0)
    torch.testing.assert_close(deviation, torch.ones(3), atol=1e-6, rtol=0)


def test_quarter_turns_are_exact_and_counter_clockwise():
    images = random_images(2, 3, 9, 9)
    for turns in range(4):
        assert torch.equal(rotate(images, 90 * turns), images.rot90(turns, (2, 3)))


def test_rotation_agrees_with_scipy_inside_the_image():
    image = random_images(1, 1, 21, 21)
    smooth = to_bytes(gaussian_filter(image.float() / 255, torch.tensor([2.0])))
    expected = ndimage.rotate(smooth[0, 0].double().numpy(), 30, reshape=False, order=1)
    inner = slice(5, 16)
    difference = rotate(smooth, 30)[0, 0].double().numpy() - expected
    assert np.abs(difference[inner, inner]).max() <= 0.5 + 1e-3  # rounding to bytes
    assert (rotate(smooth + 1, 45)[0, 0, 0, 0]) == 0  # corners come in black


def test_grey_is_pillows_grey():
    images = random_images(1, 3, 16, 16)
    expected = np.asarray(Image.fromarray(images[0].permute(1, 2, 0).numpy()).convert("L"))
    ours = to_bytes(to_grey(images.float() / 255))[0, 0].numpy()
    # Pillow works in integers: at most one level apart.
    assert np.abs(ours.astype(int) - expected.astype(int)).max() <= 1


def test_other_images_get_the_channels_and_size_of_a_model():
    grey = random_images(3, 1, 28, 28)
    colour = match_images(grey, channels=3, image_size=32)
    assert colour.shape == (3, 3, 32, 32)
    assert torch.equal(colour[:, 0], colour[:, 2])
    same = match_images(grey, channels=1, image_size=28)
    assert torch.equal(same, grey)
    back = match_images(grey.expand(3, 3, 28, 28), channels=1, image_size=28)
    assert torch.equal(back, grey)


def test_shrinking_is_antialiased_as_in_pillow():
    images = random_images(1, 1, 32, 32)
    pillow = Image.fromarray(images[0, 0].numpy()).resize((8, 8), Image.Resampling.BILINEAR)
    ours = match_images(images, channels=1, image_size=8)[0, 0].numpy()
    assert np.abs(ours.astype(int) - np.asarray(pillow).astype(int)).max() <= 1


@pytest.mark.parametrize("sigma", [0.4, 1.0, 2.3])
def test_gaussian_blur_agrees_with_scipy(sigma):
    images = torch.rand(2, 3, 16, 16, dtype=torch.float64)
    ours = gaussian_filter(images, torch.tensor([sigma], dtype=torch.float64))
    expected = ndimage.gaussian_filter(images.numpy(), (0, 0, sigma, sigma), mode="nearest")
    np.testing.assert_allclose(ours.numpy(), expected, atol=1e-12)


def test_each_image_can_have_its_own_sigma():
    images = torch.rand(2, 1, 12, 12, dtype=torch.float64)
    sigmas = torch.tensor([0.5, 1.5], dtype=torch.float64)
    together = gaussian_filter(images, sigmas, truncate=9.0)
    for row in range(2):
        alone = gaussian_filter(images[row : row + 1], sigmas[row : row + 1], truncate=9.0)
        # The shared kernel is longer; beyond nine sigma nothing is left.
        torch.testing.assert_close(together[row : row + 1], alone, atol=1e-12, rtol=0)


def test_motion_blur_smears_a_point_to_one_side_and_keeps_the_total():
    image = torch.zeros(1, 1, 33, 33, dtype=torch.float64)
    image[0, 0, 16, 16] = 1
    angle = torch.zeros(1, dtype=torch.float64)
    smeared = motion_filter(image, radius=6.0, sigma=2.0, angles=angle)[0, 0]
    weights = torch.exp(-0.5 * (torch.arange(9).double() / 2) ** 2)
    expected = torch.zeros(33).double()
    expected[8:17] = (weights / weights.sum()).flip(0)
    torch.testing.assert_close(smeared[16], expected)
    torch.testing.assert_close(smeared.sum(), torch.tensor(1.0).double())
    turned = motion_filter(image, 6.0, 2.0, torch.full((1,), 90.0).double())[0, 0]
    torch.testing.assert_close(turned[:, 16], expected)


def test_zoom_by_one_changes_nothing_and_by_two_shows_the_middle():
    images = torch.rand(1, 1, 9, 9, dtype=torch.float64)
    torch.testing.assert_close(zoom(images, 1.0), images)
    torch.testing.assert_close(zoom(images, 2.0)[..., ::2, ::2], images[..., 2:7, 2:7])


def test_each_crop_is_a_shifted_and_perhaps_mirrored_copy():
    images = random_images(200, 3, 8, 8)
    cropped = random_crop_flip(images, torch.Generator().manual_seed(1), padding=2)
    padded = functional.pad(images, (2, 2, 2, 2))
    seen = set()
    for image, source in zip(cropped, padded, strict=True):
        matches = [
            (row, column, flip)
            for row in range(5)
            for column in range(5)
            for flip in (False, True)
            if torch.equal(
                image.flip(2) if flip else image, source[:, row : row + 8, column : column + 8]
            )
        ]
        assert len(matches) == 1
        seen.update(matches)
    assert {row for row, _, _ in seen} == {column for _, column, _ in seen} == set(range(5))
    share = sum(flip for _, _, flip in seen) / len(seen)
    assert 0.3 < share < 0.7


@pytest.mark.parametrize("augment", [random_crop_flip, augment3])
@pytest.mark.parametrize("shape", [(6, 1, 8, 8), (6, 3, 32, 32), (1, 3, 8, 8)])
def test_a_generator_gives_the_same_draws_again(augment, shape):
    images = random_images(*shape)
    before = images.clone()
    first = augment(images, torch.Generator().manual_seed(3))
    again = augment(images, torch.Generator().manual_seed(3))
    other = augment(images, torch.Generator().manual_seed(4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(images, before)
    assert first.shape == images.shape
    assert first.dtype == torch.uint8


def test_about_a_third_of_the_images_turn_grey():
    images = random_images(600, 3, 8, 8)
    out = augment3(images, torch.Generator().manual_seed(0)).int()
    grey = ((out.amax(1) - out.amin(1)) <= 1).all((1, 2))
    assert 150 < int(grey.sum()) < 250


def test_jitter_stays_within_its_factors():
    images = torch.full((500, 1, 8, 8), 100, dtype=torch.uint8)
    # Below the threshold of solarization and flat, only the brightness changes.
    out = augment3(images, torch.Generator().manual_seed(0)).double()
    assert out.min() >= 70
    assert out.max() <= 130
    assert out.min() < 75
    assert out.max() > 125
