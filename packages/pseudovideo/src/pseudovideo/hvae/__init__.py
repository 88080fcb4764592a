"""HVAEs of thesis section 5.2: one decoder, an encoder that is the heat equation or is learned."""

from pseudovideo.hvae.base import HVAE, VariationalBound
from pseudovideo.hvae.heat import HeatHVAE, heat_blur
from pseudovideo.hvae.learned import LearnedEncoderHVAE
from pseudovideo.spec import HVAEConfig

__all__ = ["HVAE", "HVAEConfig", "HeatHVAE", "LearnedEncoderHVAE", "VariationalBound", "heat_blur"]
