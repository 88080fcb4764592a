"""What is measured of samples, against the same by hand."""

import pytest
import torch

from probseq.metrics.image import (
    FeatureMoments,
    ImageFeatures,
    RandomConvolution,
    extract_features,
    frechet_distance,
    kernel_distance,
)
from pseudovideo.beyond.sample_evaluator import SampleEvaluator, is_ranked


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
        return ImageFeatures(images.flatten(1)[:, :2], shares)


def test_the_training_images_themselves_are_at_no_distance():
    train = pictures(200)
    reference = SampleEvaluator(RandomConvolution(1), train, pictures(60, seed=1))
    same = reference.measure(train)
    assert same["fd"] == pytest.approx(0.0, abs=1e-6)
    assert same["fd_name"] == "FD(random convolution)"
    assert (same["is"], same["is_std"]) == (None, None)
    assert same["num_samples"] == 200
    assert reference.measure(train.flip(0) // 2)["fd"] > 0.1


def test_samples_are_measured_as_told():
    train, test, samples = pictures(80), pictures(40, seed=1), pictures(50, seed=2) // 2
    extractor = Classes()
    reference = SampleEvaluator(extractor, train, test)
    found = reference.measure(samples)
    known, own = (extract_features(extractor, x) for x in (train, samples))
    moments = FeatureMoments.of(known.features)
    assert found["fd"] == pytest.approx(float(frechet_distance(moments, own.features)))
    # The kernel distance is from as many training images.
    rows = torch.randperm(80, generator=torch.Generator().manual_seed(0))[:50]
    expected = kernel_distance(known.features[rows], own.features)
    assert found["kid"] == pytest.approx(float(expected))


@pytest.mark.parametrize(("count", "splits"), [(1000, 10), (999, 1)])
def test_ten_parts_are_scored_where_each_has_a_hundred_samples(count, splits):
    images, extractor = pictures(count), Classes()
    found = SampleEvaluator(extractor, images[:30], images[:20]).measure(images)
    assert found["is_splits"] == splits
    shares = extractor(to_unit(images)).probabilities.double()
    scores = [
        (part * (part / part.mean(dim=0)).log()).sum(dim=1).mean().exp()
        for part in shares.split(count // splits)
    ]
    assert found["is"] == pytest.approx(float(sum(scores) / splits), rel=1e-9)


def test_known_moments_take_the_place_of_the_training_images():
    train, samples = pictures(30), pictures(20, seed=2)
    moments = FeatureMoments(2, torch.zeros(2).double(), torch.eye(2).double())
    reference = SampleEvaluator(Classes(), train, train, moments=moments)
    found = reference.measure(samples)
    own = extract_features(Classes(), samples).features
    assert found["fd"] == pytest.approx(float(frechet_distance(moments, own)))


def test_samples_without_classes_or_with_half_the_score_are_ranked():
    assert is_ranked(4.5, 9.0)
    assert not is_ranked(4.4, 9.0)
    assert is_ranked(None, 9.0)
    assert is_ranked(1.0, None)


def test_other_images_are_refused():
    train = pictures(9)
    with pytest.raises(ValueError, match=r"train must be images \(n, c, h, w\) as bytes, got"):
        SampleEvaluator(RandomConvolution(1), train[:0], train)
    reference = SampleEvaluator(RandomConvolution(1), train, train)
    with pytest.raises(ValueError, match="images must have shape"):
        reference.measure(pictures(3, channels=3))
