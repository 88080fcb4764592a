"""Distance of a model's conditional mean from the true frame, by a few samples.

NaN and infinity in a tensor reach the result.
"""

from jaxtyping import Float, Float64
from torch import Tensor

from probseq.checks import check_floating


def frame_errors(
    frames: Float[Tensor, "b c h w"], samples: Float[Tensor, "b k c h w"]
) -> Float64[Tensor, " b"]:
    """Return an unbiased estimate of ‖z − m‖² per pixel, m the mean of the model's conditional.

    The mean z̄ of K samples of each true frame z, given its true context, is m plus noise of
    variance σ²/K, so E‖z − z̄‖² = ‖z − m‖² + σ²/K; the samples' own variance s² (over K−1) says
    what is to be taken off: ‖z − z̄‖² − s²/K. For a model that is exact its mean is the minimal
    error of theorem 5.4.1 (`corruptions.gaussian.prediction_errors`). Some values may be negative.
    """
    check_floating(frames=frames, samples=samples)
    if (*samples.shape[:1], *samples.shape[2:]) != frames.shape or samples.ndim != 5:
        raise ValueError(
            f"samples must have shape (b, k, c, h, w) with frames {tuple(frames.shape)}, got "
            f"{tuple(samples.shape)}"
        )
    count = samples.shape[1]
    if count < 2:
        raise ValueError(f"samples must be at least 2 of each frame, got {count}")
    exact = samples.double()
    variance = exact.var(dim=1, correction=1)
    error = (frames.double() - exact.mean(dim=1)).square() - variance / count
    return error.flatten(1).mean(1)
