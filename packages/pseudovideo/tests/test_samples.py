import pytest
import torch

from pseudovideo.diffusion.image import ImageDiffusion
from pseudovideo.diffusion.video import VideoDiffusion
from pseudovideo.evaluation import mean_bound
from pseudovideo.hvae import HeatHVAE
from pseudovideo.pixels import to_bytes, to_unit
from pseudovideo.samples import draw_samples
from pseudovideo.spec import HVAEConfig, ImageDiffusionConfig

UNET = {
    **{"image_size": 8, "channels": 1, "base_channels": 8, "channel_multipliers": (1, 2)},
    **{"num_res_blocks": 1, "attention_sizes": (4,), "num_heads": 2, "num_groups": 4},
}


def generator(seed=5):
    return torch.Generator().manual_seed(seed)


def test_pixels_are_rounded_to_the_nearest_byte_and_noise_beyond_is_clipped():
    pixels = torch.tensor([-2.0, -1.0, 0.6 / 127.5 - 1, 0.0, 1.0, 1.5]).view(1, 1, 1, 6)
    assert to_bytes(pixels).flatten().tolist() == [0, 0, 1, 128, 255, 255]
    every = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    assert to_unit(every).aminmax() == (-1, 1)
    assert torch.equal(to_bytes(to_unit(every)), every)


def test_images_of_all_batches_and_the_first_videos_are_kept():
    counts, told = [], []

    class Counter(VideoDiffusion):
        def __init__(self):
            pass

        def sample(self, n, *, batch_size, labels):
            assert batch_size == n == len(labels)
            numbers = labels.view(n, 1, 1, 1, 1)
            counts.append(n)
            # 2.6 levels above the number in the first frame, 0.6 in the last.
            levels = numbers + torch.tensor([2.6, 0.6]).view(1, 2, 1, 1, 1)
            return (levels / 127.5 - 1).expand(n, 2, 1, 4, 4)

    options = {"keep": 10, "batch_size": 7, "progress": told.append, "labels": torch.arange(17)}
    images, videos = draw_samples(Counter(), 17, **options)
    assert counts == told == [7, 7, 3]
    assert images[:, 0, 0, 0].tolist() == [number + 1 for number in range(17)]
    assert videos[:, 0, 0, 0, 0].tolist() == [number + 3 for number in range(10)]


def test_images_are_videos_of_one_frame():
    model = ImageDiffusion(ImageDiffusionConfig(**UNET, num_steps=40))
    images, videos = draw_samples(model, 2, generator=generator(), num_steps=3)
    assert torch.equal(videos[:, 0], images)
    assert torch.equal(images, to_bytes(model.sample(2, generator=generator(), num_steps=3)))


def test_the_bound_is_a_mean_over_images_not_over_batches(monkeypatch):
    class Found:
        def __init__(self, images):
            self.total = images.flatten(1).mean(1)

    model = HeatHVAE(HVAEConfig(**UNET, num_levels=4, sigma_max=5.0))
    monkeypatch.setattr(type(model), "bound", lambda self, images, *_, **__: Found(images))
    images = torch.randint(0, 256, (7, 1, 8, 8), generator=generator()).to(torch.uint8)
    expected = float((images.double() / 127.5 - 1).mean())
    assert mean_bound(model, images) == pytest.approx(expected, abs=1e-6)
