import math

import pytest
import torch

from probseq.metrics.image import Features, RandomConvolution, frechet_distance
from probseq_apps.data.images import GenerationData, PartLabels, load_generation_data, to_unit
from probseq_apps.experiments.generate_evaluation import (
    evaluate_generation,
    evaluate_reconstruction,
    reference_moments,
)
from probseq_apps.experiments.generate_features import SmallClassifier, make_extractor
from probseq_apps.experiments.generate_groups import FeatureSettings
from pseudovideo.corruptions import PseudoVideoConfig, pseudo_videos
from pseudovideo.grid import TokenGrid


class Levels:
    """A coder of whole frames: token k of a slot is the k-th level, spread over the frame."""

    grid = TokenGrid(codebook_size=16, shape=(4, 1, 1))

    def encode(self, videos):
        mean = videos.mean(dim=(2, 3, 4))
        return ((mean + 1) * 4).round().long().clamp(0, 15)[..., None, None]

    def decode(self, indices):
        return (indices[..., 0, 0] / 4.0 - 1)[..., None, None, None].expand(-1, -1, 1, 8, 8)


def pictures(n=30, seed=0, channels=1):
    generator = torch.Generator().manual_seed(seed)
    bright = torch.randint(0, 256, (n, 1, 1, 1), generator=generator)
    grain = torch.randint(-20, 20, (n, channels, 8, 8), generator=generator)
    return (bright + grain).clamp(0, 255).to(torch.uint8)


def test_reconstruction_is_measured_as_told():
    images, extractor = pictures(), RandomConvolution(1)
    config = PseudoVideoConfig(num_frames=4, kind="high-order-noise")
    found = evaluate_reconstruction(Levels(), images, config, extractor, seed=3, batch_size=7)

    videos = pseudo_videos(to_unit(images), config, seed=3)
    tokens = Levels().encode(videos)
    frames = Levels().decode(tokens)
    decibels = [
        [
            10 * math.log10(4 / float((a - b).double().square().mean()))
            for a, b in zip(v, f, strict=True)
        ]
        for v, f in zip(videos, frames, strict=True)
    ]
    assert found["psnr"] == pytest.approx(sum(d[-1] for d in decibels) / 30, rel=1e-6)
    assert found["psnr_all_frames"] == pytest.approx(sum(map(sum, decibels)) / 120, rel=1e-6)
    distance = frechet_distance(
        extractor(to_unit(images)).features, extractor(frames[:, -1]).features
    )
    assert found["fd"] == pytest.approx(float(distance), rel=1e-4, abs=1e-6)
    counts = [int((tokens == k).sum()) for k in range(16)]
    assert found["usage"] == sum(count > 0 for count in counts) / 16
    entropy = -sum(c / 120 * math.log(c / 120) for c in counts if c)
    assert found["perplexity"] == pytest.approx(math.exp(entropy), rel=1e-9)
    assert (found["num_images"], found["fd_name"]) == (30, "FD(random convolution)")


def test_batches_do_not_change_the_numbers():
    config = PseudoVideoConfig(num_frames=4, kind="first-order-noise")
    one, many = (
        evaluate_reconstruction(Levels(), pictures(), config, RandomConvolution(1), batch_size=size)
        for size in (30, 4)
    )
    for key in ("psnr", "psnr_all_frames", "usage", "perplexity"):
        assert one[key] == pytest.approx(many[key], rel=1e-6)


def test_an_image_that_comes_back_exactly_leaves_the_mean_undefined():
    images = torch.full((2, 1, 8, 8), 255, dtype=torch.uint8)
    config = PseudoVideoConfig(num_frames=4, kind="repeat")
    found = evaluate_reconstruction(Levels(), images, config, RandomConvolution(1))
    assert found["psnr"] is None
    assert found["fd"] == pytest.approx(0.0, abs=1e-9)


def test_the_training_images_themselves_are_at_no_distance():
    images, extractor = pictures(200), RandomConvolution(1)
    reference = reference_moments(extractor, images, batch_size=64)
    assert reference.count == 200
    same = evaluate_generation(images[:, None], reference, extractor)
    assert same["fd"] == pytest.approx(0.0, abs=1e-6)
    # The last frame counts, in bytes or in -1..1.
    frames = torch.stack([images.flip(0) // 2, images], dim=1)
    assert evaluate_generation(frames, reference, extractor)["fd"] == pytest.approx(0.0, abs=1e-6)
    dark = evaluate_generation(frames.flip(1), reference, extractor)
    assert dark["fd"] > 0.1
    scaled = evaluate_generation(to_unit(frames.flip(1)), reference, extractor)
    assert scaled["fd"] == pytest.approx(dark["fd"], rel=1e-6)
    assert (same["is"], same["is_std"], same["num_samples"]) == (None, None, 200)


def test_without_labels_features_are_random_and_say_so(tmp_path):
    data = GenerationData("mine", pictures(), pictures(), pictures())
    extractor = make_extractor(data, FeatureSettings(), tmp_path, seed=0, device="cpu")
    assert extractor.name == "random convolution"
    assert not list(tmp_path.iterdir())


def test_a_missing_file_of_inception_weights_is_named(tmp_path):
    data = GenerationData("mine", pictures(), pictures(), pictures())
    settings = FeatureSettings(inception_weights=str(tmp_path / "none.pth"))
    with pytest.raises(FileNotFoundError, match=r"none\.pth"):
        make_extractor(data, settings, tmp_path / "run", seed=0, device="cpu")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    data = load_generation_data("digits")
    folder = tmp_path_factory.mktemp("classifier")
    extractor = make_extractor(
        data, FeatureSettings(classifier_steps=120), folder, seed=1, device="cpu", progress=False
    )
    return data, folder, extractor


def test_a_classifier_of_the_digits_knows_them_and_scores_them(trained):
    data, _, extractor = trained
    found = extractor(to_unit(data.test))
    right = (found.probabilities.argmax(dim=1) == data.labels.test).float().mean()
    assert float(right) > 0.9
    reference = reference_moments(extractor, data.train)
    real = evaluate_generation(data.test[:, None], reference, extractor)
    assert real["fd_name"] == "FD(classifier)"
    assert 7.0 < real["is"] <= 10.0
    assert real["is_splits"] == 1  # 360 images: a tenth would be 36
    noise = torch.randint(0, 256, data.test.shape, generator=torch.Generator().manual_seed(0))
    other = evaluate_generation(noise.to(torch.uint8)[:, None], reference, extractor)
    assert other["fd"] > 10 * real["fd"]
    assert other["is"] < 0.7 * real["is"]
    eight = data.test[data.labels.test == 8]
    assert evaluate_generation(eight[:, None], reference, extractor)["is"] < 2.0


def test_a_finished_classifier_is_read_again(trained):
    data, folder, extractor = trained
    before = sorted(file.stat().st_mtime_ns for file in folder.rglob("*") if file.is_file())
    again = make_extractor(
        data, FeatureSettings(classifier_steps=120), folder, seed=1, device="cpu"
    )
    images = to_unit(data.test[:5])
    torch.testing.assert_close(again(images), extractor(images), rtol=0.0, atol=0.0)
    after = sorted(file.stat().st_mtime_ns for file in folder.rglob("*") if file.is_file())
    assert before == after


def test_classifiers_take_any_size_and_start_by_their_seed():
    torch.manual_seed(3)
    one = SmallClassifier(3, 5, seed=2)
    expected = torch.rand(3)
    torch.manual_seed(4)
    same, other = SmallClassifier(3, 5, seed=2), SmallClassifier(3, 5, seed=3)
    torch.testing.assert_close(one.state_dict(), same.state_dict())
    assert not torch.equal(one.head.weight, other.head.weight)
    torch.manual_seed(3)
    torch.testing.assert_close(torch.rand(3), expected)
    for size in (8, 28, 33):
        assert one(torch.zeros(2, 3, size, size)).shape == (2, 5)


def test_labels_of_own_folders_may_be_few(tmp_path):
    labels = torch.tensor([0, 1] * 15)
    data = GenerationData(
        "mine",
        pictures(),
        pictures(),
        pictures(),
        PartLabels(labels, labels, labels),
        class_names=("a", "b"),
    )
    extractor = make_extractor(
        data, FeatureSettings(classifier_steps=2), tmp_path, seed=0, device="cpu", progress=False
    )
    assert extractor(to_unit(data.test)).probabilities.shape == (30, 2)


def test_ten_parts_are_scored_where_each_has_a_hundred_samples():
    class Classes:
        name, dimension = "classes", 2

        def __call__(self, images):
            probabilities = images.flatten(1)[:, :3].add(1.01).float()
            shares = probabilities / probabilities.sum(dim=1, keepdim=True)
            return Features(images.flatten(1)[:, :2], shares)

    images, extractor = pictures(1000), Classes()
    reference = reference_moments(extractor, images)
    for count, splits in ((1000, 10), (999, 1)):
        found = evaluate_generation(images[:count, None], reference, extractor)
        assert found["is_splits"] == splits
        shares = extractor(to_unit(images[:count])).probabilities.double()
        scores = [
            (part * (part / part.mean(dim=0)).log()).sum(dim=1).mean().exp()
            for part in shares.split(count // splits)
        ]
        assert found["is"] == pytest.approx(float(sum(scores) / splits), rel=1e-9)


def test_the_classifier_learns_from_training_images_and_never_sees_test_images(
    tmp_path, monkeypatch
):
    fitted = []

    def fit(model, train, config, folder, *, held_out, **_):
        fitted.append((model.head.weight.clone(), train, held_out, config))

    monkeypatch.setattr("probseq_apps.experiments.generate_features.fit", fit)
    labels = PartLabels(*(torch.full((30,), number) for number in range(3)))
    parts = [pictures(seed=number) for number in range(3)]
    data = GenerationData("mine", *parts, labels, class_names=("a", "b", "c"))
    for seed in (4, 5):
        settings = FeatureSettings(classifier_steps=60)
        make_extractor(data, settings, tmp_path, seed=seed, device="cpu")
        head, train, validation, config = fitted[-1]
        assert torch.equal(head, SmallClassifier(1, 3, seed=seed).head.weight)
        assert train[0] is data.train
        assert train[1] is labels.train
        assert validation[0] is data.validation
        assert validation[1] is labels.validation
        assert (config.seed, config.steps, config.warmup_steps) == (seed, 60, 3)
