"""Data for generation: each set's sizes, parts and refusals."""

import sys
import types
import zipfile
from itertools import chain

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from probseq_apps.data.images import load_generation_data, to_unit
from probseq_apps.data.names import DataError, check_generation_name
from probseq_apps.data.parts import hold_out_validation


def write_mnist(folder, *, train=40, test=10):
    pixels = np.random.default_rng(0).integers(1, 256, (train + test, 28, 28), dtype=np.uint8)
    classes = np.arange(train + test) % 10
    folder.mkdir(parents=True)
    np.savez(
        folder / "mnist.npz",
        x_train=pixels[:train],
        y_train=classes[:train],
        x_test=pixels[train:],
        y_test=classes[train:],
    )
    return torch.from_numpy(pixels[:train])[:, None]


def save(path, *, size=(12, 12), mode="RGB", value=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, 7, 7)).save(path)


def first_values(data):
    return [part[:, 0, 0, 0].tolist() for part in (data.train, data.validation, data.test)]


def test_bytes_become_numbers_from_minus_one_to_one():
    images = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16)
    expected = torch.linspace(-1, 1, 256, dtype=torch.float64).reshape(1, 1, 16, 16)
    torch.testing.assert_close(to_unit(images).double(), expected, atol=1e-7, rtol=0)


def test_digits_are_enlarged_bilinearly_to_16_pixels_and_have_their_labels():
    data = load_generation_data("digits")
    sizes = [len(part) for part in (data.train, data.validation, data.test)]
    assert sum(sizes) == 1797
    assert data.train.shape[1:] == (1, 16, 16)
    assert data.train.dtype == torch.uint8
    assert [len(labels) for labels in data.labels] == sizes
    pixels, classes = load_digits(return_X_y=True)
    small = torch.as_tensor(pixels).view(-1, 1, 8, 8) * (255 / 16)
    whole = torch.nn.functional.interpolate(small, size=16, mode="bilinear")
    # Our images are rounded twice, before and after.
    distances = torch.cdist(data.test.double().flatten(1), whole.flatten(1), p=float("inf"))
    assert distances.min(1).values.max() <= 1.01
    nearest = torch.as_tensor(classes)[distances.argmin(1)]
    assert torch.equal(nearest, data.labels.test)
    assert any("from 8 to 16 pixels" in note for note in data.notes)


def test_mnist_is_padded_with_background_and_a_tenth_is_held_out(tmp_path):
    images = write_mnist(tmp_path / "mnist")
    data = load_generation_data("mnist", data_dir=tmp_path)
    kept, held = hold_out_validation(40)
    assert torch.equal(data.train[:, :, 2:30, 2:30], images[kept])
    assert torch.equal(data.validation[:, :, 2:30, 2:30], images[held])
    border = torch.ones(32, 32, dtype=torch.bool)
    border[2:30, 2:30] = False
    assert not data.train[:, :, border].any()
    assert load_generation_data("mnist", data_dir=tmp_path, image_size=28).test.shape[-1] == 28
    odd = load_generation_data("mnist", data_dir=tmp_path, image_size=31)
    assert torch.equal(odd.train[:, :, 1:29, 1:29], images[kept])


def test_images_that_shrink_by_a_whole_factor_are_means_of_blocks(tmp_path):
    images = write_mnist(tmp_path / "mnist")
    data = load_generation_data("mnist", data_dir=tmp_path, image_size=14)
    blocks = images[hold_out_validation(40)[0]].double().reshape(-1, 1, 14, 2, 14, 2)
    assert (data.train.double() - blocks.mean((3, 5))).abs().max() <= 0.5
    assert load_generation_data("mnist", data_dir=tmp_path, image_size=20).train.shape[-1] == 20


def test_no_image_is_lost_where_they_shrink_in_chunks(tmp_path):
    images = write_mnist(tmp_path / "mnist", train=1250)
    data = load_generation_data("mnist", data_dir=tmp_path, image_size=7)
    kept, held = hold_out_validation(1250)
    assert (len(data.train), len(data.validation), len(data.labels.train)) == (1125, 125, 1125)
    for part, rows in ((data.train, kept), (data.validation, held)):
        blocks = images[rows].double().reshape(-1, 1, 7, 4, 7, 4)
        assert (part.double() - blocks.mean((3, 5))).abs().max() <= 0.5


def test_images_of_a_folder_keep_the_order_of_their_names_in_each_part(tmp_path):
    for number in range(40):
        save(tmp_path / f"{number:02}.png", mode="L", value=number)
    parts = first_values(load_generation_data(f"folder:{tmp_path}"))
    assert parts == [sorted(part) for part in parts]
    assert sorted(number for part in parts for number in part) == list(range(40))
    # A few of them are no run of neighbours, which in folders would be of a few classes.
    fewer = first_values(load_generation_data(f"folder:{tmp_path}", num_train=11))[0]
    assert fewer == sorted(fewer)
    assert fewer not in [parts[0][k : k + 11] for k in range(len(parts[0]))]


def test_cifar_averages_to_16_pixels(shared_data):
    pytest.importorskip("pyarrow")
    small = load_generation_data("cifar10", data_dir=shared_data, image_size=16, num_train=45)
    large = load_generation_data("cifar10", data_dir=shared_data, num_train=45)
    assert small.train.shape == (45, 3, 16, 16)
    assert len(small.validation) == 5
    mean = large.train.double().reshape(45, 3, 16, 2, 16, 2).mean((3, 5))
    assert (small.train.double() - mean).abs().max() <= 0.5


@pytest.mark.parametrize("count", [1, 9, 10, 33])
def test_fewer_training_images_are_exactly_as_many_as_asked_for(tmp_path, count):
    write_mnist(tmp_path / "mnist")
    if count == 1:
        with pytest.raises(DataError, match="no validation images"):
            load_generation_data("mnist", data_dir=tmp_path, num_train=count)
        return
    data = load_generation_data("mnist", data_dir=tmp_path, num_train=count)
    assert len(data.train) == len(data.labels.train) == count
    assert len(data.test) == 10
    with pytest.raises(DataError, match=r"num_train must be at most 36 .*got 37"):
        load_generation_data("mnist", data_dir=tmp_path, num_train=37)


@pytest.mark.parametrize("folders", [("",), ("a",), ("a", "b")])
def test_a_folder_without_parts_is_split_by_a_fixed_permutation(tmp_path, folders):
    for number in range(40):
        save(tmp_path / folders[number % len(folders)] / f"{number:02}.png", value=number)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "notes.txt").write_text("no image")
    data = load_generation_data(f"folder:{tmp_path}")
    assert [len(p) for p in (data.train, data.validation, data.test)] == [33, 3, 4]
    assert sorted(chain(*first_values(data))) == list(range(40))
    again = load_generation_data(f"folder:{tmp_path}")
    assert first_values(again) == first_values(data)
    if len(folders) < 2:
        assert data.labels is None
    else:
        assert data.class_names == folders
        for values, labels in zip(first_values(data), data.labels, strict=True):
            assert [value % 2 for value in values] == labels.tolist()
    fewer = load_generation_data(f"folder:{tmp_path}", num_train=11)
    assert len(fewer.train) == 11
    assert set(first_values(fewer)[0]) < set(first_values(data)[0])
    assert first_values(fewer)[1:] == first_values(data)[1:]


@pytest.mark.parametrize("validation", ["valid", None])
def test_parts_given_by_folders_are_kept(tmp_path, validation):
    counts = {"train": 20, "test": 4, **({validation: 3} if validation else {})}
    for part, count in counts.items():
        for number in range(count):
            save(tmp_path / part / f"{number}.png", mode="L", value=number)
    data = load_generation_data(f"folder:{tmp_path}")
    sizes = [len(p) for p in (data.train, data.validation, data.test)]
    assert sizes == ([20, 3, 4] if validation else [18, 2, 4])
    assert data.channels == 1


def test_folders_that_make_no_data_set_are_refused_with_the_reason(tmp_path):
    name = f"folder:{tmp_path}"
    with pytest.raises(DataError, match="does not exist"):
        load_generation_data(f"{name}/none")
    with pytest.raises(DataError, match="holds no images"):
        load_generation_data(name)
    for number in range(19):
        save(tmp_path / f"{number}.png")
    with pytest.raises(DataError, match=r"at least 20 images.* holds 19"):
        load_generation_data(name)
    save(tmp_path / "wide.png", size=(20, 10))
    with pytest.raises(DataError, match=r"one size: .*12x12 pixels, .*20x10; set image_size"):
        load_generation_data(name)
    assert load_generation_data(name, image_size=8).train.shape[1:] == (3, 8, 8)
    save(tmp_path / "more" / "x.png")
    with pytest.raises(DataError, match=r"images and folders of images \(more\)"):
        load_generation_data(name, image_size=8)


@pytest.fixture
def faces(tmp_path):
    """20 + 3 + 2 images whose border beyond the crop is white, whose inside tells their number."""
    folder = tmp_path / "celeba" / "img_align_celeba"
    folder.mkdir(parents=True)
    lines = []
    for number in range(25):
        image = Image.new("RGB", (178, 218), (255, 255, 255))
        image.paste((10 * number, 100, 200), (19, 39, 159, 179))
        image.save(folder / f"{number:06}.jpg", quality=95)
        lines.append(f"{number:06}.jpg {0 if number < 20 else 1 if number < 23 else 2}")
    (tmp_path / "celeba" / "list_eval_partition.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_celeba_is_cropped_and_in_its_authors_parts(faces):
    data = load_generation_data("celeba", data_dir=faces, image_size=16)
    assert [len(p) for p in (data.train, data.validation, data.test)] == [20, 3, 2]
    assert data.labels is None
    # The resize reads nothing from beyond the crop; JPEG blurs the edge a little.
    for part, start in ((data.train, 0), (data.validation, 20), (data.test, 23)):
        red = part[:, 0].double()
        expected = 10.0 * torch.arange(start, start + len(part)).view(-1, 1, 1)
        assert (red[:, 1:-1, 1:-1] - expected).abs().max() <= 3
        assert (red - expected).abs().max() <= 24
    assert load_generation_data("celeba", data_dir=faces).image_size == 64


def test_celeba_reads_the_archive_and_keeps_what_it_decoded(faces, monkeypatch):
    from probseq_apps.data import image_files

    from_folder = load_generation_data("celeba", data_dir=faces, image_size=8)
    root = faces / "celeba"
    for kept in root.glob("*.npy"):
        kept.unlink()
    with zipfile.ZipFile(root / "img_align_celeba.zip", "w") as archive:
        for path in sorted((root / "img_align_celeba").iterdir()):
            archive.write(path, f"img_align_celeba/{path.name}")
            path.unlink()
    (root / "img_align_celeba").rmdir()
    from_archive = load_generation_data("celeba", data_dir=faces, image_size=8)
    assert torch.equal(from_archive.train, from_folder.train)
    assert sorted(p.name.split("-")[0] for p in root.glob("*.npy")) == [
        "test",
        "train",
        "validation",
    ]
    (kept,) = root.glob("test-*.npy")
    kept.write_bytes(kept.read_bytes()[:-5])
    decoded = []
    inner = image_files._face
    monkeypatch.setattr(
        image_files, "_face", lambda path, *rest: decoded.append(path.name) or inner(path, *rest)
    )
    again = load_generation_data("celeba", data_dir=faces, image_size=8)
    assert sorted(decoded) == ["000023.jpg", "000024.jpg"]
    assert torch.equal(again.test, from_archive.test)
    assert torch.equal(again.train, from_archive.train)
    fewer = load_generation_data("celeba", data_dir=faces, image_size=8, num_train=4)
    assert torch.equal(fewer.train, again.train[:4])
    assert not list(root.glob(".tmp-*"))


def test_celeba_that_is_missing_or_of_another_kind_is_refused(faces):
    root = faces / "celeba"
    with pytest.raises(DataError, match="num_train must be at most 20"):
        load_generation_data("celeba", data_dir=faces, num_train=21)
    Image.new("RGB", (64, 64)).save(root / "img_align_celeba" / "000003.jpg")
    with pytest.raises(DataError, match=r"000003.jpg.* 178x218 pixels.*got 64x64"):
        load_generation_data("celeba", data_dir=faces)
    (root / "img_align_celeba" / "000003.jpg").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"000003.jpg.*cannot be read"):
        load_generation_data("celeba", data_dir=faces)
    with (root / "list_eval_partition.txt").open("a") as file:
        file.write("000099.jpg 3\n")
    with pytest.raises(DataError, match="line 26"):
        load_generation_data("celeba", data_dir=faces)
    (root / "list_eval_partition.txt").unlink()
    with pytest.raises(DataError, match="no files of 'celeba'"):
        load_generation_data("celeba", data_dir=faces)


def test_celeba_is_fetched_by_torchvision(tmp_path, monkeypatch):
    def refuse(root, download):
        raise RuntimeError("too many users")

    monkeypatch.setattr("torchvision.datasets.CelebA", refuse)
    monkeypatch.setitem(sys.modules, "gdown", None)
    with pytest.raises(DataError, match="gdown is needed here"):
        load_generation_data("celeba", data_dir=tmp_path / "new", download=True)
    monkeypatch.setitem(sys.modules, "gdown", types.ModuleType("gdown"))
    with pytest.raises(DataError, match=r"could not be fetched: too many users; put .* yourself"):
        load_generation_data("celeba", data_dir=tmp_path / "new", download=True)


@pytest.mark.parametrize("name", ["imdb", "svhn", "cifar_10", "folder:"])
def test_other_names_are_refused_before_anything_is_read(name):
    with pytest.raises(DataError, match="cifar10" if name == "cifar_10" else None):
        load_generation_data(name)
    with pytest.raises(DataError):
        check_generation_name(name)


@pytest.mark.parametrize("setting", ["image_size", "num_train"])
def test_numbers_below_one_are_refused_by_name(setting):
    with pytest.raises(DataError, match=f"{setting} must be at least 1, got 0"):
        load_generation_data("digits", **{setting: 0})
