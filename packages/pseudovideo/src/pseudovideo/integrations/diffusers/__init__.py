"""Diffusion models as pipelines of diffusers: its schedulers, folders, hub and callbacks."""

from pseudovideo.integrations.diffusers.pipeline import PseudoVideoOutput, PseudoVideoPipeline

__all__ = ["PseudoVideoOutput", "PseudoVideoPipeline"]
