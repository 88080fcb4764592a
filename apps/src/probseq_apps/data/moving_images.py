"""Real pictures that move: digits of scikit-learn on a canvas, along smooth generated paths."""

import math

import numpy as np
from jaxtyping import Float64
from scipy import ndimage
from sklearn.datasets import load_digits

from probseq_apps.data.channels import ChannelSeries
from probseq_apps.data.errors import DataError

MOVING_DIGITS = "moving-digits"

_DIGIT = 8  # side of scikit-learn's pictures
_SIDE = 16
_GREY = 16.0  # levels
# Oscillations per hundred frames of the two waves of a path: no common period within a series.
_WAVES = (0.9, 2.3)


def moving_digits(num_frames: int, *, num_digits: int = 1, seed: int = 0) -> ChannelSeries:
    """A film of digits that move over a canvas of 16x16 pixels.

    The pictures are real, the motion is generated: on each axis the sum of two waves with random
    phases and speeds. Grey levels are in [0, 1]; where digits overlap the brighter one is seen.

    Args:
        num_frames: length of the film.
        num_digits: how many digits move, each along its own path.
        seed: chooses the pictures and the paths.

    Raises:
        DataError: no frame or no digit.
    """
    for name, value in (("num_frames", num_frames), ("num_digits", num_digits)):
        if value < 1:
            raise DataError(f"{name} must be at least 1, got {value}")
    rng = np.random.default_rng(seed)
    images, labels = load_digits(return_X_y=True)
    chosen = rng.choice(len(images), num_digits, replace=False)
    film = np.zeros((num_frames, _SIDE, _SIDE))
    for index in chosen:
        picture = images[index].reshape(_DIGIT, _DIGIT) / _GREY
        path = _path(num_frames, rng)
        film = np.maximum(film, np.stack([_placed(picture, place) for place in path]))
    shown = " and ".join(str(labels[index]) for index in chosen)
    note = f"real pictures of {shown} from scikit-learn's digits; their motion is generated"
    channels = tuple(f"pixel {row},{column}" for row in range(_SIDE) for column in range(_SIDE))
    return ChannelSeries(
        MOVING_DIGITS,
        np.arange(num_frames, dtype=np.float64),
        film.reshape(num_frames, -1),
        channels,
        "frame",
        (_SIDE, _SIDE),
        (note,),
    )


def _path(num_frames: int, rng: np.random.Generator) -> Float64[np.ndarray, "n 2"]:
    """Upper left corner of a digit in every frame, inside the canvas."""
    frames = np.arange(num_frames)[:, None] / 100.0
    waves = np.zeros((num_frames, 2))
    for wave in _WAVES:
        speed = wave * rng.uniform(0.8, 1.25, 2)
        waves += np.sin(2.0 * math.pi * (speed * frames + rng.uniform(0.0, 1.0, 2)))
    # Two waves of amplitude one lie in [−2, 2].
    return (_SIDE - _DIGIT) * (waves + 2.0) / 4.0


def _placed(
    picture: Float64[np.ndarray, "h w"], place: Float64[np.ndarray, " 2"]
) -> Float64[np.ndarray, "side side"]:
    """The picture with its corner at a place between pixels, by linear interpolation.

    With "grid-constant", what lies at the edge fades into the zeros outside instead of vanishing.
    """
    canvas = np.zeros((_SIDE, _SIDE))
    canvas[:_DIGIT, :_DIGIT] = picture
    return ndimage.shift(canvas, place, order=1, mode="grid-constant", cval=0.0)
