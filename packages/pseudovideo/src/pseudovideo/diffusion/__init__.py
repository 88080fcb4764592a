"""Gaussian diffusion of images and of pseudo videos (thesis section 5.4)."""

from pseudovideo.diffusion.errors import frame_errors
from pseudovideo.diffusion.gaussian import GaussianDiffusion, Reverse
from pseudovideo.diffusion.image import ImageDiffusion, ImageDiffusionConfig
from pseudovideo.diffusion.likelihood import BitsPerDim, bits_per_dim
from pseudovideo.diffusion.load import load_diffusion
from pseudovideo.diffusion.losses import HybridLosses, hybrid_losses
from pseudovideo.diffusion.objective import DiffusionObjective
from pseudovideo.diffusion.published import load_improved_ddpm
from pseudovideo.diffusion.sampling import denoise
from pseudovideo.diffusion.schedules import ScheduleName, cosine_betas, linear_betas
from pseudovideo.diffusion.stages import Stage
from pseudovideo.diffusion.times import ImportanceTimes, UniformTimes
from pseudovideo.diffusion.unet import UNetConfig, build_unet, channel_multipliers_for
from pseudovideo.diffusion.video import VideoDiffusion, VideoDiffusionConfig

__all__ = [
    "BitsPerDim",
    "DiffusionObjective",
    "GaussianDiffusion",
    "HybridLosses",
    "ImageDiffusion",
    "ImageDiffusionConfig",
    "ImportanceTimes",
    "Reverse",
    "ScheduleName",
    "Stage",
    "UNetConfig",
    "UniformTimes",
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
    "load_diffusion",
    "load_improved_ddpm",
]
