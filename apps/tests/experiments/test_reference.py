"""Features that samples are measured in, and the files of samples and snapshots."""

import numpy as np
import pytest
import torch

from probseq_apps.data.images import GenerationData, PartLabels, load_generation_data, to_unit
from probseq_apps.engine.files import save_arrays
from probseq_apps.experiments.reference import (
    Process,
    Samples,
    SmallClassifier,
    make_extractor,
    to_bytes,
)
from probseq_apps.settings.generate import Features
from pseudovideo.evaluation import generation, reference_moments


def pictures(n=30, seed=0, channels=1):
    generator = torch.Generator().manual_seed(seed)
    bright = torch.randint(0, 256, (n, 1, 1, 1), generator=generator)
    grain = torch.randint(-20, 20, (n, channels, 8, 8), generator=generator)
    return (bright + grain).clamp(0, 255).to(torch.uint8)


def test_without_labels_features_are_random_and_say_so(tmp_path):
    data = GenerationData("mine", pictures(), pictures(), pictures())
    extractor = make_extractor(data, Features(), tmp_path, seed=0, device="cpu")
    assert extractor.name == "random convolution"
    assert not list(tmp_path.iterdir())


def test_a_missing_file_of_inception_weights_is_named(tmp_path):
    data = GenerationData("mine", pictures(), pictures(), pictures())
    settings = Features(inception_weights=str(tmp_path / "none.pth"))
    with pytest.raises(FileNotFoundError, match=r"none\.pth"):
        make_extractor(data, settings, tmp_path / "run", seed=0, device="cpu")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    data = load_generation_data("digits")
    folder = tmp_path_factory.mktemp("classifier")
    extractor = make_extractor(data, Features(classifier_steps=120), folder, seed=1, device="cpu")
    return data, folder, extractor


def test_a_classifier_of_the_digits_knows_them_and_scores_them(trained):
    data, _, extractor = trained
    found = extractor(to_unit(data.test))
    right = (found.probabilities.argmax(dim=1) == data.labels.test).float().mean()
    assert float(right) > 0.9
    reference = reference_moments(extractor, data.train)
    real = generation(data.test, reference, extractor)
    assert real["fd_name"] == "FD(classifier)"
    assert 7.0 < real["is"] <= 10.0
    assert real["is_splits"] == 1  # 360 images: a tenth would be 36
    noise = torch.randint(0, 256, data.test.shape, generator=torch.Generator().manual_seed(0))
    other = generation(noise.to(torch.uint8), reference, extractor)
    assert other["fd"] > 10 * real["fd"]
    assert other["is"] < 0.7 * real["is"]
    eight = data.test[data.labels.test == 8]
    assert generation(eight, reference, extractor)["is"] < 2.0


def test_a_finished_classifier_is_read_again(trained):
    data, folder, extractor = trained
    before = sorted(file.stat().st_mtime_ns for file in folder.rglob("*") if file.is_file())
    again = make_extractor(data, Features(classifier_steps=120), folder, seed=1, device="cpu")
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
    extractor = make_extractor(data, Features(classifier_steps=2), tmp_path, seed=0, device="cpu")
    assert extractor(to_unit(data.test)).probabilities.shape == (30, 2)


def test_the_classifier_learns_from_training_images_and_never_sees_test_images(
    tmp_path, monkeypatch
):
    fitted = []

    def fit(model, train, config, folder, *, held_out, **_):
        fitted.append((model.head.weight.clone(), train, held_out, config))

    monkeypatch.setattr("probseq_apps.experiments.reference.fit", fit)
    labels = PartLabels(*(torch.full((30,), number) for number in range(3)))
    parts = [pictures(seed=number) for number in range(3)]
    data = GenerationData("mine", *parts, labels, class_names=("a", "b", "c"))
    for seed in (4, 5):
        settings = Features(classifier_steps=60)
        make_extractor(data, settings, tmp_path, seed=seed, device="cpu")
        head, train, validation, config = fitted[-1]
        assert torch.equal(head, SmallClassifier(1, 3, seed=seed).head.weight)
        assert train[0] is data.train
        assert train[1] is labels.train
        assert validation[0] is data.validation
        assert validation[1] is labels.validation
        assert (config.seed, config.steps, config.warmup_steps) == (seed, 60, 3)


def test_snapshots_are_bytes_and_come_back_as_they_were(tmp_path):
    frames = torch.linspace(-1.5, 1.5, 2 * 3 * 4 * 8 * 8).reshape(2, 3, 4, 1, 8, 8)
    process = Process(to_bytes(frames), torch.tensor([10, 20, 30]))
    assert (int(process.frames.min()), int(process.frames.max())) == (0, 255)
    inside = frames.abs() < 1
    assert torch.allclose(
        process.frames.float()[inside] / 127.5 - 1, frames[inside], atol=0.5 / 127.5 + 1e-6
    )
    process.save(tmp_path / "p.npz")
    found = Process.load(tmp_path / "p.npz")
    assert torch.equal(found.frames, process.frames)
    assert found.done.tolist() == [10, 20, 30]


@pytest.mark.parametrize("kind", [Samples, Process])
def test_files_that_are_missing_damaged_or_of_something_else_are_refused_by_name(tmp_path, kind):
    with pytest.raises(FileNotFoundError, match=r"none\.npz is not there"):
        kind.load(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("no")
    np.savez(tmp_path / "foreign.npz", a=np.zeros(2))
    save_arrays(tmp_path / "other.npz", {"a": torch.zeros(2)})
    images = torch.zeros(3, 1, 8, 8, dtype=torch.uint8)
    Samples(images, images[:, None], 1.0).save(tmp_path / "samples.npz")
    whole = (tmp_path / "samples.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    for name, said in (
        ("text", "is damaged"),
        ("foreign", "has no sha256"),
        ("other", "has no"),
        ("cut", "is damaged"),
    ):
        with pytest.raises(ValueError, match=rf"{name}\.npz {said}"):
            kind.load(tmp_path / f"{name}.npz")
    flat = {
        name: torch.zeros(2, 3, dtype=torch.uint8)
        for name in ("frames", "done", "images", "videos")
    }
    save_arrays(tmp_path / "flat.npz", flat | {"seconds": torch.tensor(1.0)})
    with pytest.raises(ValueError, match=r"dimensions, and .*flat\.npz has 2"):
        kind.load(tmp_path / "flat.npz")
