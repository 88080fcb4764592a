"""Laws of videos and what follows from them, against drawn videos and other ways to compute."""

import json
import math

import pytest
import torch

from probseq.metrics.image.frechet import FeatureMoments, frechet_distance
from pseudovideo import PseudoVideoConfig
from pseudovideo.beyond.design import (
    ROUNDING,
    Design,
    check_design,
    gaussian_distance,
    image_covariance,
    measure_design,
    rank_designs,
    video_covariance,
)
from pseudovideo.beyond.design.covariances import block, innovation, regression
from pseudovideo.beyond.design.criteria import _covariances, design_stages
from pseudovideo.beyond.design.learner import Draw, chain, limited_draw
from pseudovideo.corruptions import ImageShape, prediction_errors, pseudo_videos, video_moments
from pseudovideo.diffusion import GaussianDiffusion, Stage
from pseudovideo.spec import DesignSpec

KINDS = (
    "blur",
    "high-order-blur",
    "first-order-noise",
    "high-order-noise",
    "matched-noise",
    "repeat",
    "pyramid",
    "low-pass",
    "colour",
    "patch-mask",
    "blur-noise",
)
SHAPE = ImageShape(2, 8, 8)
SPEC = DesignSpec(sampling_steps=5, num_masks=2)


def exact_draw(joint, stage):
    """The true conditional: H = V_zc V_cc⁻¹ and Q = V_zz − H V_cz."""
    rows = (stage.latent, stage.observed)
    gain = joint.new_zeros(len(joint), len(stage.latent) * joint.shape[2], 0)
    if stage.observed:
        gain = regression(joint, *rows)
    return Draw(gain, innovation(joint, *rows))


def config(kind, num_frames=4, **changes):
    given = {"beta_min": 0.01, "beta_max": 0.2, "blur_rate": 0.1} | changes
    return PseudoVideoConfig(kind=kind, num_frames=num_frames, **given)


def covariance(shape=SHAPE, seed=0):
    """Smooth images: pixels that are close go together, and so do channels."""
    generator = torch.Generator().manual_seed(seed)
    size = math.prod(shape)
    place = torch.cartesian_prod(*(torch.arange(float(n)) for n in shape)).double()
    near = (-0.1 * torch.cdist(place, place).square()).exp()
    factor = 0.02 * torch.randn(size, size, generator=generator, dtype=torch.float64)
    return 0.05 * near + factor @ factor.mT / size + ROUNDING * torch.eye(size).double()


def covariance_of(kind, num_frames=4, **changes):
    hidden = None if kind != "patch-mask" else torch.tensor([0.2, -1.0, 0.5, 0.1])
    return video_covariance(covariance(), SHAPE, config(kind, num_frames, **changes), hidden=hidden)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "patch-mask"])
def test_the_law_is_the_covariance_of_drawn_videos_with_rounding(kind):
    """Noise in a basis of its own: only what doesn't depend on the basis is compared."""
    draws, shape = 10_000, ImageShape(2, 8, 8)
    generator = torch.Generator().manual_seed(1)
    factor = torch.linalg.cholesky(covariance())
    x = (torch.randn(draws, 128, generator=generator, dtype=torch.float64) @ factor.mT) / 4
    joint = video_covariance(covariance() / 16, shape, config(kind))
    videos = pseudo_videos(x.view(-1, *shape).clamp(-1, 1), config(kind), seed=2).flatten(2)
    noisy = kind.endswith("noise")
    rounding = torch.randn(videos.shape, generator=generator, dtype=torch.float64)
    videos[:, :-1] += (0 if noisy else ROUNDING**0.5) * rounding[:, :-1]
    # Products of frames, summed over pixels.
    found = torch.einsum("bsp,btp->st", videos, videos) / draws
    expected = torch.einsum("bsptp->st", joint)
    # The first frame of a pyramid holds two numbers: a deviation of 1.4%.
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0)


@pytest.mark.parametrize("kind", ["first-order-noise", "high-order-noise", "matched-noise"])
def test_blocks_of_noise_say_the_same_as_the_dense_covariance_and_as_theorem_541(kind):
    settings, whole = config(kind), covariance()
    zero = torch.zeros(SHAPE, dtype=torch.float64)
    one = video_moments(zero, whole, settings).covariance[None]
    joint = video_covariance(whole, SHAPE, settings)
    assert joint.shape == (128, 4, 1, 4, 1)
    process = GaussianDiffusion.make(1000, "cosine").respaced(6)
    images = []
    for own in (joint, one):
        draws = {s: limited_draw(own, s, process, 1e-3) for s in design_stages(settings, SPEC)}
        images.append(block(chain(own, draws), [3], [3]))
    eigenvalues = torch.linalg.eigvalsh(images[1][0])
    # Eigenvalues of Σ and of what is drawn rise together.
    torch.testing.assert_close(images[0].flatten().sort().values, eigenvalues, rtol=1e-7, atol=1e-9)
    found = measure_design(whole, SHAPE, settings, SPEC)
    expected = prediction_errors(torch.linalg.eigvalsh(whole), settings, context=2)
    torch.testing.assert_close(found.errors[1:], expected.next_frame, rtol=1e-7, atol=0)
    torch.testing.assert_close(found.image_errors[1:], expected.from_first, rtol=1e-7, atol=0)
    assert float(found.image_errors[0]) == pytest.approx(float(whole.trace()) / 128)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["blur", "pyramid", "low-pass", "colour", "blur-noise"])
def test_least_errors_are_those_of_regressions_on_drawn_frames(kind):
    """Frames of many drawn videos regressed on the frames before them."""
    shape, draws = ImageShape(2, 8, 8), 30_000
    own = covariance() / 16
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(draws, 128, generator=generator, dtype=torch.float64)
    x = (x @ torch.linalg.cholesky(own).mT).view(-1, *shape)
    videos = pseudo_videos(x.clamp(-1, 1), config(kind, 3), seed=2).flatten(2)
    if not kind.endswith("noise"):
        rounding = torch.randn(draws, 2, 128, generator=generator, dtype=torch.float64)
        videos[:, :-1] += ROUNDING**0.5 * rounding
    found = measure_design(own, shape, config(kind, 3), DesignSpec(context=2, sampling_steps=2))
    for frame in (1, 2):
        given = videos[:, :frame].flatten(1)
        normal = given.mT @ given
        solved = torch.linalg.solve(normal, given.mT @ videos[:, frame])
        rest = (videos[:, frame] - given @ solved).square().sum() / (draws - given.shape[1]) / 128
        # Some 10⁶ squares: the mean's deviation is below half a percent.
        assert float(found.errors[frame]) == pytest.approx(float(rest), rel=0.015)


@pytest.mark.parametrize("kind", KINDS)
def test_bits_are_mutual_information_and_sum_to_those_of_the_image(kind):
    """I(x̃; z_t | z_<t) with x̃ = x + √D n, by determinants of joint covariances."""
    hidden = None if kind != "patch-mask" else torch.tensor([0.2, -1.0, 0.5, 0.1])
    joint = video_covariance(covariance(), SHAPE, config(kind), hidden=hidden)
    spec = DesignSpec(sampling_steps=2, num_masks=1)
    found = measure_design(covariance(), SHAPE, config(kind), spec)
    if kind != "patch-mask":
        blocks, _, pixels = joint.shape[:3]
        for t in range(3):
            flat = joint.flatten(3).flatten(1, 2)
            n = (t + 1) * pixels
            whole = torch.cat([torch.arange(n), torch.arange(3 * pixels, 4 * pixels)])
            pair = flat[:, whole][:, :, whole].clone()
            pair[:, n:, n:] += ROUNDING * torch.eye(pixels)
            before = torch.cat([torch.arange(t * pixels), torch.arange(n, n + pixels)])
            information = (
                flat[:, :n, :n].logdet()
                - (flat[:, : t * pixels, : t * pixels].logdet() if t else 0)
                + pair[:, before][:, :, before].logdet()
                - pair.logdet()
            ).sum() / (2 * math.log(2))
            assert float(found.bits[t]) == pytest.approx(float(information), rel=1e-6, abs=1e-6)
            assert blocks * pixels == 128
    ratio = torch.eye(128).double() + covariance() / ROUNDING
    assert float(found.bits.sum()) == pytest.approx(float(ratio.logdet()) / 2 / math.log(2))
    assert (found.bits >= -1e-9).all()
    assert float(found.bits.max() / found.bits.sum()) == found.largest_share


@pytest.mark.parametrize("kind", KINDS)
def test_exact_stages_with_all_frames_before_draw_the_true_videos(kind):
    """And errors of a share δ of each innovation make a share δ of the image, whatever the kind."""
    joint = covariance_of(kind)
    full = [Stage(tuple(range(t)), (t,)) for t in range(4)]
    exact = {stage: exact_draw(joint, stage) for stage in full}
    torch.testing.assert_close(chain(joint, exact), joint, rtol=1e-8, atol=1e-10)
    more = {stage: Draw(draw.gain, 1.3 * draw.noise) for stage, draw in exact.items()}
    drawn = block(chain(joint, more), [3], [3])
    torch.testing.assert_close(drawn, 1.3 * block(joint, [3], [3]), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", ["high-order-noise", "blur", "patch-mask", "first-order-noise"])
def test_what_a_window_forgets_is_the_divergence_of_the_chain(kind):
    """KL(p‖q) = ½ (tr Q⁻¹P − n + ln det Q/P) of the whole videos."""
    spec = DesignSpec(context=1, sampling_steps=2, num_masks=1)
    settings = config(kind)
    joints = (
        [covariance_of(kind)]
        if kind != "patch-mask"
        else list(_covariances(covariance(), SHAPE, settings, spec))
    )
    total = 0.0
    for joint in joints:
        drawn = chain(joint, {s: exact_draw(joint, s) for s in design_stages(settings, spec)})
        P, Q = (block(one, range(4), range(4)) for one in (joint, drawn))
        ratio = torch.linalg.solve(Q, P)
        traces = ratio.diagonal(dim1=1, dim2=2).sum() - P.shape[0] * P.shape[1]
        total += float((traces + (Q.logdet() - P.logdet()).sum()) / 2 / math.log(2))
    found = measure_design(covariance(), SHAPE, settings, spec)
    assert found.forgotten == pytest.approx(total / len(joints), rel=1e-6, abs=1e-6)
    assert (found.forgotten < 1e-6) == (kind == "first-order-noise")


def test_errors_of_the_mean_arrive_as_drawn_ones_do():
    """A million chains of one number, whose conditional means err by their own deviation."""
    settings = config("high-order-noise", 3)
    shape = ImageShape(1, 1, 1)
    own = torch.full((1, 1), 0.3, dtype=torch.float64)
    joint = video_covariance(own, shape, settings)
    spec = DesignSpec(context=1, sampling_steps=2)
    generator = torch.Generator().manual_seed(0)
    error = torch.zeros(1_000_000, dtype=torch.float64)
    for frame in (1, 2):
        weight = joint[0, frame, 0, frame - 1, 0] / joint[0, frame - 1, 0, frame - 1, 0]
        spread = weight * joint[0, frame - 1, 0, frame - 1, 0].sqrt()
        fresh = torch.randn(len(error), generator=generator, dtype=torch.float64)
        error = weight * error + spread * fresh
    found = measure_design(own, shape, settings, spec)
    # The deviation of a variance of 10⁶ draws is √2/10³ of it.
    assert found.amplification == pytest.approx(float(error.var()) / 0.3, rel=0.01)
    image = measure_design(own, shape, config("repeat", 1), spec)
    assert (image.amplification, image.forgotten, image.context) == (0, 0, 0)


def test_distances_are_those_of_feature_moments():
    first, second = covariance()[:6, :6], covariance(seed=1)[:6, :6] + 0.01 * torch.eye(6)
    zero = torch.zeros(6, dtype=torch.float64)
    sides = [FeatureMoments(101, zero, 100 * each) for each in (first, second)]
    found = gaussian_distance(first[None], second[None])
    assert float(found) == pytest.approx(float(frechet_distance(*sides)), rel=1e-6)
    assert float(gaussian_distance(first[None], first[None])) == pytest.approx(0, abs=1e-9)


def test_the_covariance_of_images_has_their_rounding():
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(9, 1, 2, 2, generator=generator) * 2 - 1
    expected = images.flatten(1).double().mT.cov() + (2 / 255) ** 2 / 12 * torch.eye(4)
    torch.testing.assert_close(image_covariance(images), expected)
    with pytest.raises(ValueError, match="images must be at least 2"):
        image_covariance(images[:1])


def test_designs_are_ranked_by_the_learners_distance_and_counted():
    designs = [config("repeat", 1), config("pyramid"), config("first-order-noise")]
    counted = []
    found = rank_designs(covariance(), SHAPE, designs, SPEC, progress=counted.append)
    assert counted == [1, 1, 1]
    assert {d.videos for d in found} == set(designs)
    distances = [d.distance for d in found]
    assert distances == sorted(distances)


@pytest.mark.parametrize(
    ("shape", "videos", "changes", "message"),
    [
        ((1, 28, 28), config("pyramid"), {}, "halve 3 times"),
        ((3, 32, 32), config("blur"), {}, "at most 1625 numbers .* got 3072 \\(3x32x32\\)"),
        ((1, 8, 8), config("blur"), {"context": 4}, "context must be from 1 to .*3, got 4"),
        ((1, 8, 10), config("patch-mask"), {}, "patches of mask_patch=4"),
    ],
)
def test_designs_that_cannot_be_measured_are_refused(shape, videos, changes, message):
    with pytest.raises(ValueError, match=message):
        check_design(ImageShape(*shape), videos, DesignSpec(**changes))


def test_more_sampling_steps_than_there_are_are_refused():
    with pytest.raises(ValueError, match="sampling_steps must be at most num_steps=10, got 50"):
        DesignSpec(num_steps=10)


def test_a_design_comes_back_from_json():
    found = measure_design(covariance(), SHAPE, config("blur", 3), SPEC)
    again = Design.from_dict(json.loads(json.dumps(found.to_dict())))
    assert again.videos == found.videos
    for own, other in zip(found[1:], again[1:], strict=True):
        assert torch.equal(torch.as_tensor(own), torch.as_tensor(other))
