"""What designs of pseudo videos cost for Gaussian images, before any training.

A model that is exact in every step draws perfect images with any corruption, so that a design can
only be judged by how it spreads the work, and by what becomes of the errors of an inexact one.

**What doesn't tell designs apart.** Let S_t be the covariance of frame t given the frames before,
and G_t the matrix by which a change of frame t arrives in the image. The image is the sum of its
innovations, so that Σ_t G_t S_t G_tᵀ = Σ for every corruption: errors that are the same share of
what is uncertain in each step, δ S_t, make δ Σ of the image, with any corruption, and with none.
Likewise the bits of information about the image that frames add sum to those of the image.

**What does.** (a) Errors of the conditional mean that are a share of its own variation, of
covariance δ Cov(m_t): they arrive as δ Σ_t G_t Cov(m_t) G_tᵀ, whose trace over that of Σ is
`amplification`. It is 0 for the image alone and about T−C for frames that hardly differ. (b) What a
window of C frames forgets, `forgotten`. (c) Steps that a learner of limited training can't make
out, see `learner`: `distance` is the Fréchet distance of the images that it draws, by which designs
are ranked.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from pseudovideo.beyond.design.covariances import (
    ROUNDING,
    VideoCovariance,
    block,
    innovation,
    video_covariance,
)
from pseudovideo.beyond.design.learner import chain, limited_draw, mean_error
from pseudovideo.corruptions.base import ImageShape
from pseudovideo.corruptions.counter import counter_normal
from pseudovideo.corruptions.kinds import KINDS, cached_operators
from pseudovideo.corruptions.noise import NOISES
from pseudovideo.diffusion.gaussian import GaussianDiffusion
from pseudovideo.diffusion.stages import Stage, stages
from pseudovideo.spec import DesignSpec, PseudoVideoConfig

# Numbers of a matrix; five or so are held at once.
_LARGEST = 6500
_BY_FRAME = ("errors", "image_errors", "bits")


class Design(NamedTuple):
    """What a design costs; frames from the most corrupted on, errors per pixel.

    Attributes:
        videos: the kind of video.
        context: C; 0 for the image alone.
        errors: least squared error of each frame given the C before it, of the first ones given all
            before; the last is the image's.
        image_errors: least squared error of the image given the first k frames, k = 0..T−1.
        bits: information about the image that each frame adds to those before, of all pixels, at
            the resolution of 8 bits: ½ log₂ det(I + P/D) falls by so much, where P is the
            covariance of the image given the frames. They sum to the same for all designs.
        forgotten: Kullback-Leibler divergence in bits of the videos from those that an exact model
            with a window of C frames draws.
        amplification: errors of the image, where each conditional mean errs by its own variation,
            in units of the image's variance.
        distance: Fréchet distance in pixels of the images that the limited learner draws.
    """

    videos: PseudoVideoConfig
    context: int
    errors: Float64[Tensor, " T"]
    image_errors: Float64[Tensor, " T"]
    bits: Float64[Tensor, " T"]
    forgotten: float
    amplification: float
    distance: float

    @property
    def largest_share(self) -> float:
        """Largest share of the bits that a frame adds: 1/T where the work is spread evenly."""
        return float(self.bits.max() / self.bits.sum())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        lists = {name: getattr(self, name).tolist() for name in _BY_FRAME}
        return self._asdict() | {"videos": self.videos.to_dict()} | lists

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Design":
        """Return the design that `to_dict` wrote."""
        fields: dict[str, Any] = {**values, "videos": PseudoVideoConfig.from_dict(values["videos"])}
        fields |= {name: torch.tensor(fields[name], dtype=torch.float64) for name in _BY_FRAME}
        return cls(**fields)


def design_stages(videos: PseudoVideoConfig, spec: DesignSpec) -> tuple[Stage, ...]:
    """Return the stages in which videos are drawn, those of `VideoDiffusion`.

    Raises:
        ValueError: C leaves no frame to be drawn after the first window.
    """
    if videos.num_frames == 1:
        return (Stage((), (0,)),)
    return stages(videos.num_frames, spec.context or max(1, videos.num_frames // 2))


def check_design(shape: ImageShape, videos: PseudoVideoConfig, spec: DesignSpec) -> None:
    """Refuse a design that can't be measured for images of a shape.

    Raises:
        ValueError: there are no such videos, C leaves no frame, or matrices are too large.
    """
    zero = torch.zeros(())
    cached_operators(videos, shape, zero.device, torch.float64)
    design_stages(videos, spec)
    pixels = shape.channels * shape.height * shape.width
    most = _LARGEST // videos.num_frames
    if videos.kind not in NOISES and pixels > most:
        raise ValueError(
            f"images must have at most {most} numbers for kind={videos.kind} and "
            f"num_frames={videos.num_frames}, whose covariance is dense, got {pixels} "
            f"({shape.channels}x{shape.height}x{shape.width}): make them smaller"
        )


def measure_design(
    covariance: Float64[Tensor, "d d"],
    shape: ImageShape,
    videos: PseudoVideoConfig,
    spec: DesignSpec,
) -> Design:
    """Measure one design.

    Args:
        covariance: of the images, as `image_covariance` gives.
        shape: (c, h, w) of an image.
        videos: the kind of video; one frame is the image model.
        spec: window, learner, and how many masks are averaged over.

    Raises:
        ValueError: as `check_design`.
    """
    check_design(shape, videos, spec)
    plan, pixels = design_stages(videos, spec), len(covariance)
    process = GaussianDiffusion.make(spec.num_steps, spec.schedule).respaced(spec.sampling_steps)
    count, image = videos.num_frames, [videos.num_frames - 1]
    rows, drawn, true = list[Tensor](), list[Tensor](), list[Tensor]()
    for joint in _covariances(covariance, shape, videos, spec):
        rows.append(_measure(joint, plan, pixels))
        limited = {stage: limited_draw(joint, stage, process, spec.ridge) for stage in plan}
        drawn.append(block(chain(joint, limited), image, image))
        true = [block(joint, image, image)]
    means = torch.stack(rows).mean(0)
    # Images of all masks together: the covariance is the mean.
    distance = gaussian_distance(torch.stack(drawn).mean(0), true[0])
    return Design(
        videos=videos,
        context=len(plan[0].latent) if count > 1 else 0,
        errors=means[:count],
        image_errors=means[count : 2 * count],
        bits=means[2 * count : 3 * count],
        forgotten=float(means[-2]),
        amplification=float(means[-1]),
        distance=float(distance),
    )


def rank_designs(
    covariance: Float64[Tensor, "d d"],
    shape: ImageShape,
    designs: Sequence[PseudoVideoConfig],
    spec: DesignSpec,
    *,
    progress: Callable[[int], object] | None = None,
) -> list[Design]:
    """Measure designs, and return them from the least distance of the limited learner on.

    Args:
        covariance: of the images, as `image_covariance` gives.
        shape: (c, h, w) of an image.
        designs: kinds of videos; one frame is the image model.
        spec: as of `measure_design`.
        progress: called with 1 after each.

    Raises:
        ValueError: as `check_design`, before any is measured.
    """
    for videos in designs:
        check_design(shape, videos, spec)
    measured: list[Design] = []
    for videos in designs:
        measured.append(measure_design(covariance, shape, videos, spec))
        if progress is not None:
            progress(1)
    return sorted(measured, key=lambda design: design.distance)


def gaussian_distance(
    first: Float64[Tensor, "blocks m m"], second: Float64[Tensor, "blocks m m"]
) -> Float64[Tensor, ""]:
    """Return the Fréchet distance of Gaussians of equal mean, tr A + tr B − 2 tr (AB)^{1/2}.

    Args:
        first: A, in independent blocks.
        second: B, positive definite.
    """
    factor = torch.linalg.cholesky(second)
    # Eigenvalues of AB are those of LᵀAL with B = L Lᵀ.
    squares = torch.linalg.eigvalsh(factor.mT @ first @ factor).clamp_min(0)
    traces = (first + second).diagonal(dim1=1, dim2=2).sum()
    return (traces - 2 * squares.sqrt().sum()).clamp_min(0)


def _covariances(
    covariance: Tensor, shape: ImageShape, videos: PseudoVideoConfig, spec: DesignSpec
) -> Iterator[VideoCovariance]:
    """Yield the covariance of the videos, or one for each of some masks."""
    draws = KINDS[videos.kind].num_hidden(videos, shape) if videos.num_frames > 1 else 0
    if not draws:
        yield video_covariance(covariance, shape, videos)
        return
    for hidden in counter_normal(torch.arange(spec.num_masks), draws, seed=0, epoch=0):
        yield video_covariance(covariance, shape, videos, hidden=hidden.double())


def _measure(joint: VideoCovariance, plan: tuple[Stage, ...], pixels: int) -> Tensor:
    """Return all numbers but the distance, one after the other."""
    frames, last = joint.shape[1], joint.shape[1] - 1
    context = len(plan[0].latent)
    exact = [innovation(joint, [t], range(t)) for t in range(frames)]
    window = [innovation(joint, [t], range(max(0, t - context), t)) for t in range(frames)]
    errors = torch.stack([_trace(S) / pixels for S in window])
    # P_k = Cov(x | z_1..z_k), and 0 bits are left once the image is known.
    left = [innovation(joint, [last], range(k)) for k in range(frames)]
    image_errors = torch.stack([_trace(P) / pixels for P in left])
    eye = torch.eye(joint.shape[2]).to(joint)
    residual = torch.stack([_log2_det(eye + P / ROUNDING) / 2 for P in left])
    bits = residual - torch.cat((residual[1:], residual.new_zeros(1)))
    # KL(p‖chain) = Σ_t H(z_t | z_{t−C..t−1}) − H(z_t | z_{<t})
    entropies = [torch.stack([_log2_det(S) for S in each]).sum() / 2 for each in (window, exact)]
    forgotten = entropies[0] - entropies[1]
    # Σ_t G_t Cov(m_t) G_tᵀ: the chain's covariance with errors in the place of innovations.
    errs = chain(joint, {stage: mean_error(joint, stage) for stage in plan})
    image = [last]
    amplification = _trace(block(errs, image, image)) / _trace(block(joint, image, image))
    return torch.cat([errors, image_errors, bits, torch.stack([forgotten, amplification])])


def _trace(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=1, dim2=2).sum()


def _log2_det(matrices: Tensor) -> Tensor:
    factor = torch.linalg.cholesky(matrices)
    return 2 * factor.diagonal(dim1=1, dim2=2).log2().sum()
