"""Gaussian diffusion of images and of pseudo videos (thesis section 5.4)."""

from pseudovideo.diffusion.errors import frame_errors
from pseudovideo.diffusion.frame_windows import Stage
from pseudovideo.diffusion.gaussian import GaussianDiffusion, Reverse
from pseudovideo.diffusion.image import ImageDiffusion
from pseudovideo.diffusion.likelihood import BitsPerDim, bits_per_dim
from pseudovideo.diffusion.objective import DiffusionObjective, HybridLosses, hybrid_losses
from pseudovideo.diffusion.sampling import denoise
from pseudovideo.diffusion.schedules import cosine_betas, linear_betas
from pseudovideo.diffusion.unet import build_unet
from pseudovideo.diffusion.video import VideoDiffusion
from pseudovideo.spec import (
    ImageDiffusionConfig,
    ScheduleName,
    UNetConfig,
    VideoDiffusionConfig,
    channel_multipliers_for,
)

__all__ = [
    "BitsPerDim",
    "DiffusionObjective",
    "GaussianDiffusion",
    "HybridLosses",
    "ImageDiffusion",
    "ImageDiffusionConfig",
    "Reverse",
    "ScheduleName",
    "Stage",
    "UNetConfig",
    "VideoDiffusion",
    "VideoDiffusionConfig",
    "bits_per_dim",
    "build_unet",
    "channel_multipliers_for",
    "cosine_betas",
    "denoise",
    "frame_errors",
    "hybrid_losses",
    "linear_betas",
]
