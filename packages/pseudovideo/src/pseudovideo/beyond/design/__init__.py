"""Designs of pseudo videos: what a corruption costs for Gaussian images, before any training."""

from pseudovideo.beyond.design.covariances import ROUNDING, image_covariance, video_covariance
from pseudovideo.beyond.design.criteria import (
    Design,
    check_design,
    gaussian_distance,
    measure_design,
    rank_designs,
)

__all__ = [
    "ROUNDING",
    "Design",
    "check_design",
    "gaussian_distance",
    "image_covariance",
    "measure_design",
    "rank_designs",
    "video_covariance",
]
