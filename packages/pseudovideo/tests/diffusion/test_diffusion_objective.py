"""The objective: what the model is given, and means of its losses."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from pseudovideo.diffusion.gaussian import GaussianDiffusion
from pseudovideo.diffusion.objective import DiffusionObjective, hybrid_losses
from pseudovideo.sampling import noise_like


class Model(nn.Module):
    """One 1×1 convolution; remembers what it was given."""

    def __init__(self, of_videos=False, steps=4):
        super().__init__()
        self.config = SimpleNamespace(num_frames=3) if of_videos else SimpleNamespace()
        self.diffusion = GaussianDiffusion.make(steps, "cosine")
        torch.manual_seed(0)
        self.layer = nn.Conv2d(1, 2, 1)
        self.seen = []

    def training_losses(self, images, t, labels=None, *, generator=None):
        self.seen.append((images, t))
        image = images[:, -1] if images.ndim == 5 else images
        noise = noise_like(image, generator)
        x_t = self.diffusion.add_noise(image, noise, t)
        losses = hybrid_losses(self.diffusion, self.layer(x_t), image, x_t, noise, t)
        self.last = losses
        return losses


def videos(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.rand(8, 3, 1, 4, 4, generator=generator) - 1


def test_models_of_images_learn_the_last_frames_and_models_of_videos_all():
    for of_videos in (False, True):
        model = Model(of_videos)
        DiffusionObjective(model)(videos())
        given, t = model.seen[0]
        assert torch.equal(given, videos() if of_videos else videos()[:, -1])
        assert t.shape == (8,)
        assert set(t.tolist()) <= {0, 1, 2, 3}


def test_steps_are_uniform():
    model, generator = Model(), torch.Generator().manual_seed(0)
    for _ in range(400):
        DiffusionObjective(model)(videos(), generator=generator)
    frequencies = torch.cat([t for _, t in model.seen]).bincount(minlength=4) / 3200
    # Standard errors of .008.
    torch.testing.assert_close(frequencies, torch.full((4,), 0.25), rtol=0, atol=0.03)


def test_the_losses_are_means_and_only_one_has_a_gradient():
    model = Model()
    parts = DiffusionObjective(model)(videos(), generator=torch.Generator().manual_seed(1))
    assert list(parts) == ["loss", "mse", "vlb"]
    for name, value in parts.items():
        torch.testing.assert_close(value, getattr(model.last, name).mean())
        assert value.requires_grad == (name == "loss")
    assert parts["loss"].item() == pytest.approx(float(parts["mse"] + 0.004 * parts["vlb"]))
