import pytest
import torch
from torch.nn import functional

from probseq_apps.data.transforms import augment3, random_crop_flip


def random_images(*shape, seed=0):
    return torch.randint(
        256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )


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


def test_without_padding_only_mirroring_is_left():
    images = random_images(50, 1, 8, 8)
    cropped = random_crop_flip(images, torch.Generator().manual_seed(0), padding=0)
    same = (cropped == images).all((1, 2, 3))
    mirrored = (cropped == images.flip(3)).all((1, 2, 3))
    assert (same ^ mirrored).all()
    assert 10 < same.sum() < 40


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


def test_about_a_third_of_the_white_images_are_inverted():
    white = torch.full((600, 1, 8, 8), 255, dtype=torch.uint8)
    out = augment3(white, torch.Generator().manual_seed(0))
    assert 150 < int((out == 0).all((1, 2, 3)).sum()) < 250


def test_jitter_stays_within_its_factors():
    images = torch.full((500, 1, 8, 8), 100, dtype=torch.uint8)
    # Below the threshold of solarization and flat, only the brightness changes.
    out = augment3(images, torch.Generator().manual_seed(0)).double()
    assert out.min() >= 70
    assert out.max() <= 130
    assert out.min() < 75
    assert out.max() > 125
