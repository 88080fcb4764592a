import io
import itertools

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits, load_sample_image

from probseq.corruptions import CORRUPTIONS, corrupt, plasma_fractal
from probseq.images import match_images

NOISE = ("gaussian_noise", "shot_noise", "impulse_noise")
RANDOM = {*NOISE, "motion_blur", "fog", "snow", "elastic_transform", "pixelate"}


@pytest.fixture(scope="module")
def digits():
    """Grey images of 8x8 pixels."""
    levels = torch.from_numpy(load_digits(return_X_y=True)[0])
    return (levels * (255 / 16)).round().to(torch.uint8).view(-1, 1, 8, 8)[:360]


@pytest.fixture(scope="module")
def natural_images():
    """Colour images of 32x32 pixels: pieces of two photographs."""
    pieces = []
    for name in ("china.jpg", "flower.jpg"):
        photo = torch.from_numpy(load_sample_image(name).copy()).permute(2, 0, 1)
        squares = photo.unfold(1, 128, 128).unfold(2, 128, 128)
        pieces.append(squares.permute(1, 2, 0, 3, 4).flatten(0, 1))
    return match_images(torch.cat(pieces), channels=3, image_size=32)


def damage(images, name, severity):
    changed = corrupt(images, name, severity, seed=0)
    return float(((changed.float() - images.float()) ** 2).mean())


def assert_growing(images, name):
    damages = [damage(images, name, severity) for severity in range(1, 6)]
    assert all(a < b for a, b in itertools.pairwise(damages)), damages
    assert damages[0] > 0


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_more_severe_changes_images_of_all_sizes_more(digits, natural_images, name):
    assert_growing(digits, name)
    assert_growing(match_images(digits[:60], channels=1, image_size=32), name)
    assert_growing(natural_images, name)
    assert_growing(match_images(natural_images, channels=3, image_size=64), name)


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("shape", [(3, 1, 8, 8), (2, 3, 28, 28), (1, 1, 96, 96)])
def test_shape_type_and_input_are_kept_and_the_seed_decides(name, shape):
    images = torch.randint(
        256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    before = images.clone()
    first = corrupt(images, name, 3, seed=1)
    assert first.shape == images.shape
    assert first.dtype == torch.uint8
    assert torch.equal(images, before)
    assert torch.equal(first, corrupt(images, name, 3, seed=1))
    assert torch.equal(first, corrupt(images, name, 3, seed=2)) == (name not in RANDOM)


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("level", [0, 255])
def test_flat_black_and_white_images_stay_finite(name, level):
    # Division by a value or maximum of zero would show as noise of 0 or 255 after clipping.
    images = torch.full((2, 3, 16, 16), level, dtype=torch.uint8)
    out = corrupt(images, name, 5, seed=0)
    if name in ("contrast", "elastic_transform", "pixelate") or "blur" in name:
        assert int((out.int() - level).abs().max()) <= 1
    if name == "brightness":
        assert (out == min(255, level + 76)).all() or (out == min(255, level + 77)).all()
    if name == "fog":
        assert (out == 0).all() if level == 0 else out.float().std() > 0


def test_working_in_chunks_gives_the_same_for_what_is_not_random(monkeypatch, digits):
    whole = corrupt(digits, "zoom_blur", 3, seed=0)
    monkeypatch.setattr("probseq.corruptions._CHUNK_PIXELS", 64 * 50)
    # One of 256 levels apart at most: vectors of other sizes have other ends, which may round.
    assert (corrupt(digits, "zoom_blur", 3, seed=0).int() - whole.int()).abs().max() <= 1
    # The last chunk must not repeat the noise of the first.
    black = torch.full((100, 1, 8, 8), 128, dtype=torch.uint8)
    noisy = corrupt(black, "gaussian_noise", 5, seed=0)
    assert not torch.equal(noisy[:50], noisy[50:])


def test_gaussian_noise_has_the_deviation_of_cifar10_c():
    images = torch.full((20, 3, 32, 32), 128, dtype=torch.uint8)
    for severity, sigma in enumerate((0.04, 0.06, 0.08, 0.09, 0.10), 1):
        noise = corrupt(images, "gaussian_noise", severity, seed=0).double() / 255
        assert float(noise.std()) == pytest.approx(sigma, rel=0.02)


def test_shot_noise_has_the_variance_of_photon_counts():
    images = torch.full((20, 3, 32, 32), 51, dtype=torch.uint8)
    # With 50 photons for white a photon is five levels, so that rounding to bytes hardly matters.
    noise = corrupt(images, "shot_noise", 5, seed=0).double() / 255
    assert float(noise.mean()) == pytest.approx(0.2, rel=0.01)
    assert float(noise.var()) == pytest.approx(0.2 / 50, rel=0.03)


def test_impulse_noise_sets_the_right_share_to_black_and_white():
    images = torch.full((50, 3, 32, 32), 100, dtype=torch.uint8)
    out = corrupt(images, "impulse_noise", 5, seed=0)
    assert float((out == 0).double().mean()) == pytest.approx(0.035, rel=0.05)
    assert float((out == 255).double().mean()) == pytest.approx(0.035, rel=0.05)
    assert ((out == 100) | (out == 0) | (out == 255)).all()


def test_contrast_shrinks_the_distance_to_the_mean(natural_images):
    out = corrupt(natural_images, "contrast", 2, seed=0).double()
    before = natural_images.double()
    means = before.mean((2, 3), keepdim=True)
    torch.testing.assert_close(out, (before + means) / 2, atol=0.51, rtol=0)


def test_brightness_adds_to_the_value_and_keeps_the_hue(natural_images):
    import colorsys

    out = corrupt(natural_images[:1], "brightness", 3, seed=0)[0].double() / 255
    before = natural_images[0].double() / 255
    for row in range(0, 32, 5):
        for column in range(0, 32, 5):
            h, s, v = colorsys.rgb_to_hsv(*before[:, row, column].tolist())
            expected = torch.tensor(colorsys.hsv_to_rgb(h, s, min(1, v + 0.15))).double()
            torch.testing.assert_close(out[:, row, column], expected, atol=0.51 / 255, rtol=0)


def test_jpeg_is_pillows_jpeg(natural_images):
    buffer = io.BytesIO()
    pixels = natural_images[0].permute(1, 2, 0).numpy()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=50)
    expected = np.asarray(Image.open(buffer)).transpose(2, 0, 1)
    out = corrupt(natural_images[:1], "jpeg_compression", 4, seed=0)[0].numpy()
    np.testing.assert_array_equal(out, expected)


def test_pixelate_keeps_the_brightness_and_repeats_pixels(natural_images):
    big = match_images(natural_images[:5], channels=3, image_size=64)
    out = corrupt(big, "pixelate", 5, seed=0)
    # Blocks of 1/0.65 pixels: at least a quarter of all neighbours show the same block.
    assert float((out[..., 1:] == out[..., :-1]).double().mean()) > 0.25
    assert float(out.double().mean()) == pytest.approx(float(big.double().mean()), rel=0.01)


def slow_plasma(side, decay, draws):
    """Diamond-square, one point at a time on a torus."""
    field = np.zeros((side, side))
    step, amplitude = side, 1.0
    while step >= 2:
        half = step // 2

        def mean(row, column, offsets):
            return sum(field[(row + a) % side, (column + b) % side] for a, b in offsets) / 4

        diagonal = [(-half, -half), (-half, half), (half, -half), (half, half)]
        straight = [(-half, 0), (half, 0), (0, -half), (0, half)]
        for first_row, first_column, offsets in (
            (half, half, diagonal),
            (0, half, straight),
            (half, 0, straight),
        ):
            noise = next(draws)
            for i, row in enumerate(range(first_row, side, step)):
                for j, column in enumerate(range(first_column, side, step)):
                    centre = mean(row, column, offsets)
                    field[row, column] = centre + amplitude * (2 * noise[i, j] - 1)
        step, amplitude = half, amplitude / decay**2
    field -= field.min()
    return field / field.max()


def test_clouds_agree_with_the_algorithm_point_by_point():
    side = 16
    generator = torch.Generator().manual_seed(5)
    clouds = plasma_fractal(1, side, 1.75, generator)[0]
    replay = torch.Generator().manual_seed(5)

    def draws():
        count = 1
        while count < side:
            for _ in range(3):
                yield torch.rand((1, count, count), generator=replay)[0].double().numpy()
            count *= 2

    np.testing.assert_allclose(clouds.numpy(), slow_plasma(side, 1.75, draws()), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "severity", "shape", "message"),
    [
        ("fog", 0, (1, 1, 8, 8), "severity must be 1, 2, 3, 4 or 5, got 0"),
        ("fog", 6, (1, 1, 8, 8), "severity must be 1, 2, 3, 4 or 5, got 6"),
        ("frost", 1, (1, 1, 8, 8), "name must be one of gaussian_noise, .* got 'frost'"),
        ("fog", 1, (1, 1, 7, 7), "must be square, 8x8"),
        ("fog", 1, (1, 3, 16, 8), "must be square, 8x8"),
    ],
)
def test_what_cannot_be_made_is_refused(name, severity, shape, message):
    with pytest.raises(ValueError, match=message):
        corrupt(torch.zeros(shape, dtype=torch.uint8), name, severity, seed=0)
