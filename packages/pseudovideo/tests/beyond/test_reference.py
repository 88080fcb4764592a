"""What is measured of samples, against the same by hand."""

import pytest
import torch

from probseq.metrics.image import (
    LPIPS,
    FeatureMoments,
    Features,
    I3DFeatures,
    RandomConvolution,
    extract_features,
    frechet_distance,
    frechet_interval,
    kernel_interval,
    lpips_diversity,
    memorisation,
    nearest,
    precision_recall,
)
from pseudovideo.beyond.reference import Reference, is_ranked
from pseudovideo.corruptions import PseudoVideoConfig, pseudo_videos
from pseudovideo.pixels import to_bytes


def to_unit(images):
    return images.float() / 127.5 - 1


def pictures(n=30, seed=0, channels=1):
    generator = torch.Generator().manual_seed(seed)
    bright = torch.randint(0, 256, (n, 1, 1, 1), generator=generator)
    grain = torch.randint(-20, 20, (n, channels, 8, 8), generator=generator)
    return (bright + grain).clamp(0, 255).to(torch.uint8)


class Classes:
    """Two pixels are features, three more the weights of classes."""

    name, dimension = "classes", 2

    def __call__(self, images):
        weights = images.flatten(1)[:, :3].add(1.01).float()
        shares = weights / weights.sum(dim=1, keepdim=True)
        return Features(images.flatten(1)[:, :2], shares)


def test_the_training_images_themselves_are_at_no_distance_and_are_copies():
    train = pictures(200)
    reference = Reference(RandomConvolution(1), train, pictures(60, seed=1))
    same = reference.measure(train)
    assert same["fd"] == pytest.approx(0.0, abs=1e-6)
    assert same["fd_name"] == "FD(random convolution)"
    assert (same["is"], same["is_std"], same["is_unbiased"]) == (None, None, None)
    assert same["num_samples"] == 200
    assert [same[name] for name in ("precision", "recall", "coverage")] == [1, 1, 1]
    assert (same["nearer"], same["nearer_pixels"]) == (1.0, 1.0)
    assert same["c_t_pixels"] < -8.0
    assert reference.measure(train.flip(0) // 2)["fd"] > 0.1


def test_samples_are_measured_as_told():
    train, test, samples = pictures(80), pictures(40, seed=1), pictures(50, seed=2) // 2
    extractor = Classes()
    reference = Reference(extractor, train, test)
    found = reference.measure(samples)
    known, seen, own = (extract_features(extractor, x) for x in (train, test, samples))
    moments = FeatureMoments.of(known.features)
    assert found["fd"] == pytest.approx(float(frechet_distance(moments, own.features)))
    generator = torch.Generator().manual_seed(0)
    interval = frechet_interval(moments, own.features, draws=200, generator=generator)
    assert found["fd_unbiased"] == pytest.approx(interval.value)
    assert found["intervals"]["fd"] == pytest.approx([interval.low, interval.high])
    # Kernel distance and shares: with as many training images.
    rows = torch.randperm(80, generator=torch.Generator().manual_seed(0))[:50]
    fewer = known.features[rows]
    whole = kernel_interval(fewer, own.features, draws=2).estimate
    low, high = found["intervals"]["kid"]
    assert low < found["kid"] < high
    # Less the bootstrap's bias, which has none but that of 200 draws.
    assert abs(found["kid"] - whole) < 0.2 * (high - low)
    shares = precision_recall(fewer, own.features)
    for name in ("precision", "recall", "density", "coverage"):
        assert found[name] == pytest.approx(getattr(shares, name))
        low, high = found["intervals"][name]
        assert low <= found[name] <= high
    for end, (a, b, c) in {
        "": (known.features, seen.features, own.features),
        "_pixels": tuple(to_unit(x).flatten(1) for x in (train, test, samples)),
    }.items():
        copies = memorisation(nearest(b, a).distance, nearest(c, a).distance)
        assert (found[f"nearer{end}"], found[f"c_t{end}"]) == pytest.approx(copies)
    assert "torch_fidelity" not in found


@pytest.mark.parametrize(("count", "splits"), [(1000, 10), (999, 1)])
def test_ten_parts_are_scored_where_each_has_a_hundred_samples(count, splits):
    images, extractor = pictures(count), Classes()
    found = Reference(extractor, images[:30], images[:20]).measure(images)
    assert found["is_splits"] == splits
    shares = extractor(to_unit(images)).probabilities.double()
    scores = [
        (part * (part / part.mean(dim=0)).log()).sum(dim=1).mean().exp()
        for part in shares.split(count // splits)
    ]
    assert found["is"] == pytest.approx(float(sum(scores) / splits), rel=1e-9)


def test_known_moments_and_lpips_and_torch_fidelity_have_their_part():
    train, samples = pictures(30), pictures(20, seed=2)
    moments = FeatureMoments(2, torch.zeros(2).double(), torch.eye(2).double())
    lpips = LPIPS("squeeze", random_trunk=True)
    reference = Reference(Classes(), train, train, moments=moments, lpips=lpips, fidelity=True)
    found = reference.measure(samples)
    own = extract_features(Classes(), samples).features
    assert found["fd"] == pytest.approx(float(frechet_distance(moments, own)))
    generator = torch.Generator().manual_seed(0)
    assert found["lpips"] == lpips_diversity(lpips, to_unit(samples), generator=generator).mean
    # The library knows nothing of the moments, and compares with all training images.
    theirs = frechet_distance(extract_features(Classes(), train).features, own)
    assert found["torch_fidelity"]["fd"] == pytest.approx(float(theirs), rel=1e-6)
    assert found["torch_fidelity"]["is"] == pytest.approx(found["is"], rel=1e-9)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_what_few_samples_cannot_tell_is_left_open(count):
    found = Reference(Classes(), pictures(20), pictures(9, seed=1)).measure(pictures(count, seed=2))
    assert found["fd"] is not None
    assert (found["precision"] is None) == (count < 4)
    assert (found["fd_unbiased"] is None) == (count < 3)


def test_frames_are_measured_against_the_same_frames_of_real_videos():
    corruption = PseudoVideoConfig(num_frames=4, kind="high-order-noise")
    train, test, extractor = pictures(60), pictures(25, seed=1), RandomConvolution(1)
    reference = Reference(extractor, train, test)
    rows = torch.randperm(60, generator=torch.Generator().manual_seed(0))[:40]

    def real(images, index):
        frames = pseudo_videos(to_unit(images), corruption, seed=0, index=index)
        return ((frames.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)

    known, tested = real(train[rows], rows), real(test, torch.arange(25) + 60)
    fake = pictures(40 * 4, seed=5).unflatten(0, (40, 4))
    found = reference.measure_videos(fake, corruption)
    assert list(found) == ["1", "2", "3", "image", "video"]
    parts = [
        [extractor(to_unit(v[:, t])).features for v in (known, fake, tested)] for t in range(4)
    ]
    parts.append([torch.cat(side, dim=1) for side in zip(*parts, strict=True)])
    for one, (a, b, c) in zip(found.values(), parts, strict=True):
        assert one["fd"] == pytest.approx(float(frechet_distance(a, b)), rel=1e-4)
        assert one["real_fd"] == pytest.approx(float(frechet_distance(a, c)), rel=1e-4)
        assert one["coverage"] == pytest.approx(precision_recall(a, b).coverage)
        assert one["num_videos"] == 40
    # Frames of other videos: each frame is as good, the videos are not.
    mixed = torch.stack([known[:, t].roll(t, dims=0) for t in range(4)], dim=1)
    shuffled = reference.measure_videos(mixed, corruption)
    assert all(shuffled[head]["fd"] == pytest.approx(0, abs=1e-6) for head in ("1", "3", "image"))
    assert shuffled["video"]["fd"] > 0.01


class Motion(I3DFeatures):
    """Without that network: mean of all frames, and of the changes between them."""

    def __init__(self):
        super(I3DFeatures, self).__init__("motion", 10)

    def of(self, videos, *, batch_size=8):
        frames = to_unit(videos).flatten(2)[..., :5]
        return torch.cat([frames.mean(1), frames.diff(dim=1).abs().mean(1)], dim=1)


def test_whole_videos_are_measured_in_their_own_features():
    corruption = PseudoVideoConfig(num_frames=4, kind="blur")
    train, test, motion = pictures(60), pictures(25, seed=1), Motion()
    fake = pictures(40 * 4, seed=5).unflatten(0, (40, 4))
    plain = Reference(RandomConvolution(1), train, test).measure_videos(fake, corruption)
    reference = Reference(RandomConvolution(1), train, test, video_features=motion)
    found = reference.measure_videos(fake, corruption)
    rows = torch.randperm(60, generator=torch.Generator().manual_seed(0))[:40]
    real, tested = (
        motion.of(to_bytes(pseudo_videos(to_unit(images), corruption)))
        for images in (train[rows], test)
    )
    fvd = found["video"].pop("fvd")
    assert fvd == pytest.approx(float(frechet_distance(real, motion.of(fake))), rel=1e-4)
    real_fvd = found["video"].pop("real_fvd")
    assert real_fvd == pytest.approx(float(frechet_distance(real, tested)), rel=1e-4)
    assert found["video"].pop("fvd_name") == "FVD(motion)"
    assert found == plain


def test_the_nearest_training_images_are_found_by_pixels_and_by_features():
    train = pictures(30)
    samples = torch.cat([255 - pictures(5, seed=3), train[[7, 4]]])
    found = Reference(RandomConvolution(1), train, train[:2]).copies(samples, 2)
    assert found.samples == [5, 6]
    assert found.by_pixels == found.by_features == [7, 4]


def test_samples_without_classes_or_with_half_the_score_are_ranked():
    assert is_ranked(4.5, 9.0)
    assert not is_ranked(4.4, 9.0)
    assert is_ranked(None, 9.0)
    assert is_ranked(1.0, None)


def test_other_images_are_refused():
    train = pictures(9)
    with pytest.raises(ValueError, match=r"train must be images \(n, c, h, w\) as bytes, got"):
        Reference(RandomConvolution(1), train[:0], train)
    reference = Reference(RandomConvolution(1), train, train)
    corruption = PseudoVideoConfig(num_frames=4, kind="blur")
    for call, name in (
        (lambda: reference.measure(pictures(3, channels=3)), "images"),
        (lambda: reference.copies(train[..., :4], 1), "images"),
        (
            lambda: reference.measure_videos(train[:, None].expand(-1, 3, 1, 8, 8), corruption),
            "videos",
        ),
    ):
        with pytest.raises(ValueError, match=f"{name} must have shape"):
            call()
