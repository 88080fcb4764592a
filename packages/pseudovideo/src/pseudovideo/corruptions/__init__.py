"""Pseudo videos: an image behind its own corruptions."""

from pseudovideo.corruptions.blur import blur_matrices
from pseudovideo.corruptions.counter import counter_normal
from pseudovideo.corruptions.gaussian import (
    PredictionErrors,
    image_spectrum,
    prediction_error,
    prediction_errors,
)
from pseudovideo.corruptions.kinds import KINDS, Corruption
from pseudovideo.corruptions.noise import noise_coefficients
from pseudovideo.corruptions.videos import pseudo_videos
from pseudovideo.spec import CORRUPTIONS, CorruptionKind, PseudoVideoConfig

__all__ = [
    "CORRUPTIONS",
    "KINDS",
    "Corruption",
    "CorruptionKind",
    "PredictionErrors",
    "PseudoVideoConfig",
    "blur_matrices",
    "counter_normal",
    "image_spectrum",
    "noise_coefficients",
    "prediction_error",
    "prediction_errors",
    "pseudo_videos",
]
