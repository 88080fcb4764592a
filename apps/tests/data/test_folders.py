import numpy as np
import pytest
import torch
from PIL import Image

from probseq_apps.data.images import load_images, load_ood_images
from probseq_apps.data.names import DataError


def save(path, *, size=(8, 8), mode="RGB", value=None, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (size[1], size[0]) if mode == "L" else (size[1], size[0], 3)
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    if value is not None:
        pixels[:] = value
    Image.fromarray(pixels).save(path)
    return pixels


@pytest.fixture
def flat(tmp_path):
    for label, name in enumerate(("cat", "dog")):
        for number in range(10):
            save(tmp_path / name / f"{number}.png", value=10 * number + label, seed=number)
    return tmp_path


def test_a_flat_folder_is_split_80_10_10_in_each_class(flat):
    data = load_images(f"folder:{flat}")
    assert data.class_names == ("cat", "dog")
    counts = [p.targets.bincount().tolist() for p in (data.train, data.validation, data.test)]
    assert counts == [[8, 8], [1, 1], [1, 1]]
    everything = torch.cat([p.inputs for p in (data.train, data.validation, data.test)])
    labels = torch.cat([p.targets for p in (data.train, data.validation, data.test)])
    assert torch.equal(everything[:, 0, 0, 0] % 10, labels)
    expected = data.train.inputs.double().div(255)
    torch.testing.assert_close(torch.tensor(data.mean).double(), expected.mean((0, 2, 3)))
    torch.testing.assert_close(
        torch.tensor(data.std).double(), expected.std((0, 2, 3), correction=0)
    )


@pytest.mark.parametrize("validation", ["val", "validation", "valid", None])
def test_parts_given_by_folders_are_kept(tmp_path, validation):
    for part, count in (("train", 10), (validation, 2), ("test", 3)):
        for name in "ab":
            for number in range(count if part else 0):
                save(tmp_path / part / name / f"{number}.bmp", seed=number)
    data = load_images(f"folder:{tmp_path}")
    sizes = (len(data.train), len(data.validation), len(data.test))
    assert sizes == ((20, 4, 6) if validation else (18, 2, 6))


def test_grey_images_stay_grey_and_one_in_colour_makes_all_colour(tmp_path):
    pixels = {}
    for name in "ab":
        for number in range(3):
            path = tmp_path / name / f"{number}.png"
            pixels[name, number] = save(path, mode="L", seed=number)
    assert load_images(f"folder:{tmp_path}").channels == 1
    save(tmp_path / "a" / "colour.png")
    data = load_images(f"folder:{tmp_path}")
    assert data.channels == 3
    first = data.train.inputs[data.train.targets == 1][0]
    assert torch.equal(first[0], first[1])
    assert any(np.array_equal(first[0].numpy(), pixels["b", number]) for number in range(3))


def test_mixed_sizes_are_refused_unless_a_size_is_given(flat):
    save(flat / "dog" / "wide.png", size=(24, 12), value=77)
    with pytest.raises(DataError, match=r"8x8 pixels, .*wide\.png has 24x12; set image_size"):
        load_images(f"folder:{flat}")
    data = load_images(f"folder:{flat}", image_size=6)
    assert data.image_size == 6
    everything = torch.cat([p.inputs for p in (data.train, data.validation, data.test)])
    assert (everything == 77).all((1, 2, 3)).sum() == 1


def test_images_that_are_not_square_are_refused_unless_a_size_is_given(tmp_path):
    for name in "ab":
        for number in range(3):
            save(tmp_path / name / f"{number}.png", size=(9, 8))
    with pytest.raises(DataError, match="must be square"):
        load_images(f"folder:{tmp_path}")
    assert load_images(f"folder:{tmp_path}", image_size=8).image_size == 8


@pytest.mark.parametrize("content", [b"", b"not an image", None])
def test_a_damaged_image_is_named(flat, content):
    path = flat / "cat" / "5.png"
    if content is None:  # a good header, and the pixels cut off
        save(path, size=(8, 8))
        content = path.read_bytes()[:60]
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"cat.5\.png cannot be read as an image"):
        load_images(f"folder:{flat}")


def test_a_deep_image_is_refused_rather_than_cut_to_8_bits(flat):
    Image.fromarray(np.full((8, 8), 60_000, dtype=np.uint16)).save(flat / "cat" / "deep.png")
    with pytest.raises(DataError, match=r"deep\.png has more than 8 bits"):
        load_images(f"folder:{flat}")


def test_hidden_and_other_files_are_passed_over(flat):
    (flat / ".hidden").mkdir()
    (flat / "cat" / "notes.txt").write_text("no image")
    (flat / "cat" / "._0.png").write_bytes(b"no image")
    data = load_images(f"folder:{flat}")
    assert len(data.train) + len(data.validation) + len(data.test) == 20


def test_missing_and_empty_folders_are_named(tmp_path):
    with pytest.raises(DataError, match="nowhere does not exist"):
        load_images(f"folder:{tmp_path}/nowhere")
    with pytest.raises(DataError, match="at least two sub-folders, one for each class, it has 0"):
        load_images(f"folder:{tmp_path}")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with pytest.raises(DataError, match="a holds no images"):
        load_images(f"folder:{tmp_path}")


def test_parts_that_disagree_about_the_classes_are_refused(tmp_path):
    for part, names in (("train", "ab"), ("test", "abc")):
        for name in names:
            save(tmp_path / part / name / "0.png")
    with pytest.raises(DataError, match="classes that the training part lacks: c"):
        load_images(f"folder:{tmp_path}")


def test_training_images_without_test_images_are_refused(tmp_path):
    for name in "ab":
        save(tmp_path / "train" / name / "0.png")
    with pytest.raises(DataError, match="no folder test"):
        load_images(f"folder:{tmp_path}")


@pytest.mark.parametrize("folder", ["", "cat"])
def test_a_folder_serves_as_out_of_distribution_data_without_classes_or_parts(flat, folder):
    like = load_images("digits")
    found = load_ood_images(f"folder:{flat / folder}", like)
    assert found.inputs.shape == (10 if folder else 20, 1, 8, 8)
    # A folder of its own for the test is all that is taken, where there is one.
    save(flat / "test" / "a.png", value=3)
    assert len(load_ood_images(f"folder:{flat}", like)) == 1


def test_a_decompression_bomb_is_named(flat, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(DataError, match=r"\.png cannot be read as an image: .*bomb"):
        load_images(f"folder:{flat}")
