"""Video diffusion small enough for tests, in float64, with weights that are nowhere zero."""

import torch

from pseudovideo.diffusion.video import VideoDiffusion
from pseudovideo.spec import VideoDiffusionConfig

UNET = {
    "image_size": 8,
    "channels": 1,
    "base_channels": 8,
    "channel_multipliers": (1, 2),
    "num_res_blocks": 1,
    "attention_sizes": (4,),
    "num_heads": 2,
    "num_groups": 4,
}
SIZES = UNET | {"num_steps": 40, "schedule": "cosine"}


def shaken(module, *, scale=0.15, seed=0):
    """Add noise to all weights; no gradients."""
    generator = torch.Generator().manual_seed(seed)
    module.double().eval().requires_grad_(False)
    for parameter in module.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter += scale * noise
    return module


def video_model(**settings):
    """A model of 4 frames with a context of 2, or other settings."""
    torch.manual_seed(0)
    return shaken(VideoDiffusion(VideoDiffusionConfig(**{**SIZES, **settings})))


def frames(*shape, seed=1, scale=0.4):
    """Random frames within −1..1, for the most part."""
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)


def seeded(seed):
    return torch.Generator().manual_seed(seed)
