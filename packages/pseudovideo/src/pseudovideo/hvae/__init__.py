"""HVAEs of thesis section 5.2: one decoder, an encoder that is the heat equation or is learned."""

from pseudovideo.hvae.base import HVAE, Bound
from pseudovideo.hvae.config import HVAEConfig
from pseudovideo.hvae.heat import heat_blur, heat_sigmas
from pseudovideo.hvae.heat_hvae import HeatHVAE
from pseudovideo.hvae.learned_hvae import LearnedEncoderHVAE
from pseudovideo.hvae.load import load_hvae

__all__ = [
    "HVAE",
    "Bound",
    "HVAEConfig",
    "HeatHVAE",
    "LearnedEncoderHVAE",
    "heat_blur",
    "heat_sigmas",
    "load_hvae",
]
