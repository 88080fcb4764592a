"""All metrics of samples against torch-fidelity and torchmetrics."""

import sys

import pytest
import torch
from torch import nn

from probseq.errors import MissingExtraError
from probseq.metrics.image import (
    ClassifierFeatures,
    RandomConvolution,
    check_torch_fidelity,
    extract_features,
    frechet_distance,
    inception_score,
    kernel_distance,
    torch_fidelity_metrics,
)

pytest.importorskip("torch_fidelity")


def images(n, seed, channels=1, least=0, most=256):
    generator = torch.Generator().manual_seed(seed)
    shape = (n, channels, 8, 8)
    return torch.randint(least, most, shape, generator=generator).to(torch.uint8)


def classifier(channels=1):
    """Random layers in float64: features of 6 numbers, 4 classes that are told apart."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = (nn.Flatten(), nn.Linear(64 * channels, 6), nn.Tanh())
        trunk, head = nn.Sequential(*layers).double(), nn.Linear(6, 4).double()
        head.weight.data *= 20
    return ClassifierFeatures(trunk, head, name="random")


@pytest.mark.parametrize("channels", [1, 3])
def test_torch_fidelitys_numbers_are_ours(channels):
    extractor = classifier(channels)
    real, fake = images(90, 1, channels), images(70, 2, channels, 60, 200)
    found = torch_fidelity_metrics(extractor, real, fake, splits=7, neighbours=2, batch_size=16)
    ours, theirs = (extract_features(extractor, x) for x in (fake, real))
    assert found["fd"] == pytest.approx(float(frechet_distance(theirs[0], ours[0])), rel=1e-6)
    score = inception_score(ours.probabilities, splits=7)
    assert (found["is"], found["is_std"]) == pytest.approx(score[:2], rel=1e-9)
    # Of all 70 samples and 70 of 90 real images in each subset: the mean over 100 draws.
    whole = float(kernel_distance(theirs[0], ours[0]))
    error = found["kid_std"] / 10
    assert error > 0.0
    assert abs(found["kid"] - whole) < 5 * error


def test_the_kernel_distance_of_equally_many_is_torch_fidelitys():
    extractor, real, fake = classifier(), images(60, 1), images(60, 2, least=60, most=200)
    found = torch_fidelity_metrics(extractor, real, fake)
    ours, theirs = (extract_features(extractor, x).features for x in (fake, real))
    whole = float(kernel_distance(theirs, ours))
    assert found["kid"] == pytest.approx(whole, rel=1e-6)
    assert found["kid_std"] == pytest.approx(0.0, abs=1e-9)


def test_features_without_classes_have_no_score_and_nothing_stays_registered():
    registry = pytest.importorskip("torch_fidelity.registry").FEATURE_EXTRACTORS_REGISTRY
    before = dict(registry)
    found = torch_fidelity_metrics(RandomConvolution(1), images(20, 1), images(20, 2))
    assert found.keys() == {"fd", "kid", "kid_std", "precision", "recall"}
    assert registry == before


def test_bad_images_and_counts_are_refused(plain_calls):
    real, fake, extractor = images(9, 1), images(9, 2), classifier()
    for call, message in (
        ((real.float(), fake), "real must be levels of 0..255 as uint8, got torch.float32"),
        ((real, fake[:3]), "fake must hold more images than neighbours=3, got 3"),
        ((real, fake), "splits must be at most the 9 samples, got 10"),
    ):
        with pytest.raises(ValueError, match=message):
            torch_fidelity_metrics(extractor, *call)


def test_without_the_extra_its_name_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_fidelity", None)
    for call in (
        check_torch_fidelity,
        lambda: torch_fidelity_metrics(RandomConvolution(1), images(9, 1), images(9, 2)),
    ):
        with pytest.raises(MissingExtraError, match=r"torch_fidelity is needed.*probseq\[image\]"):
            call()


class _Rows(nn.Module):
    """What torchmetrics takes for a network: images that are features already."""

    num_features = 5

    def forward(self, rows):
        return rows.flatten(1)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_distances_and_scores_are_torchmetrics_own():
    library = pytest.importorskip("torchmetrics.image")
    generator = torch.Generator().manual_seed(0)
    real, fake = (
        scale * torch.randn(80, 5, generator=generator, dtype=torch.float64) + 0.2
        for scale in (1.0, 1.4)
    )
    fid = library.fid.FrechetInceptionDistance(
        feature=_Rows(), normalize=True, input_img_size=(1, 1, 5)
    ).set_dtype(torch.float64)
    kid = library.kid.KernelInceptionDistance(feature=_Rows(), subsets=2, subset_size=80)
    for side, is_real in ((real, True), (fake, False)):
        fid.update(side[:, None, None], real=is_real)
        kid.update(side[:, None, None], real=is_real)
    assert float(fid.compute()) == pytest.approx(float(frechet_distance(real, fake)), rel=1e-6)
    ours = float(kernel_distance(real, fake))
    assert float(kid.compute()[0]) == pytest.approx(ours, rel=1e-6)
    score = library.inception.InceptionScore(feature=_Rows(), splits=1)
    score.update(fake[:, None, None])
    expected = inception_score(fake.softmax(dim=1), splits=1).mean
    assert float(score.compute()[0]) == pytest.approx(expected, rel=1e-6)
