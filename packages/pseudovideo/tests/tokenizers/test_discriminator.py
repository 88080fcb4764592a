import pytest
import torch

from pseudovideo.tokenizers.discriminator import Discriminator


@pytest.mark.parametrize(
    ("channels", "size", "places"), [(1, 8, 4), (2, 16, 4), (3, 28, 7), (3, 64, 4), (1, 127, 7)]
)
def test_a_map_of_logits_comes_of_any_size_and_channels(channels, size, places):
    torch.manual_seed(0)
    discriminator = Discriminator(channels, size, width=2)
    assert discriminator(torch.randn(3, channels, size, size)).shape == (3, places, places)


def test_channels_double_up_to_four_times_the_first_layers():
    discriminator = Discriminator(1, 128, width=2)
    # Blocks of 128, 64, 32, 16 and 8 pixels.
    widths = [block.second.out_channels for block in discriminator.blocks]
    assert widths == [4, 8, 8, 8, 8]


def test_the_logits_of_an_image_do_not_depend_on_the_others():
    torch.manual_seed(0)
    discriminator = Discriminator(3, 16, width=4).double()
    images = torch.randn(5, 3, 16, 16, dtype=torch.float64)
    together = discriminator(images)
    alone = torch.cat([discriminator(image[None]) for image in images])
    torch.testing.assert_close(together, alone)
    torch.testing.assert_close(discriminator(images.flip(0)), together.flip(0))


def test_every_pixel_and_the_brightness_count():
    torch.manual_seed(0)
    discriminator = Discriminator(1, 24, width=2).double()
    images = torch.randn(2, 1, 24, 24, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(discriminator(images).sum(), images)
    assert (slope != 0).all()
    assert not torch.allclose(discriminator(images), discriminator(images + 0.5))


def test_fresh_logits_are_as_large_as_those_of_one_layer():
    torch.manual_seed(0)
    images = torch.randn(16, 3, 64, 64)
    scale = torch.stack([Discriminator(3, 64, width=2)(images).std() for _ in range(5)]).mean()
    # About .4; with torch's own initial weights .002.
    assert 0.1 < scale < 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 16), "channels must be a whole number of at least 1, got 0"),
        ((1, 7), "image_size must be at least 8, got 7"),
        ((1, 16, 0), "width must be a whole number of at least 1, got 0"),
    ],
)
def test_what_makes_no_discriminator_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Discriminator(*arguments)
