"""Files of the standard image sets: every format gives the same images, and damage is named."""

import hashlib
import io
import pickle
import struct
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat
from torchvision.datasets import CIFAR10, MNIST, SVHN

from probseq_apps.data.image_files import IMAGE_INFO, available_cifar_c, read_cifar_c, read_part
from probseq_apps.data.images import load_generation_data, load_images
from probseq_apps.data.names import DataError


def random_bytes(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def idx_bytes(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def npz_bytes(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def cell_of(image):
    """A cell of a Parquet file: an image, or one of random pixels."""
    file = io.BytesIO()
    image = random_bytes(image, image, 3) if isinstance(image, int) else image
    Image.fromarray(image).save(file, "PNG")
    return {"bytes": file.getvalue()}


def parquet_bytes(cells, labels, column="image"):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = io.BytesIO()
    parquet.write_table(arrow.table({column: cells, "label": labels}), file)
    return file.getvalue()


def put_mnist(put, train=20, test=5):
    for part, count in (("train", train), ("t10k", test)):
        labels = idx_bytes(np.arange(count, dtype=np.uint8) % 10)
        put(f"MNIST/raw/{part}-images-idx3-ubyte", idx_bytes(random_bytes(count, 28, 28)))
        put(f"MNIST/raw/{part}-labels-idx1-ubyte", labels)


def test_mnist_is_read_as_torchvision_stores_it(put, tmp_path):
    put_mnist(put)
    before = sorted(tmp_path.rglob("*"))
    data = load_images("mnist", data_dir=tmp_path)
    assert sorted(tmp_path.rglob("*")) == before  # nothing is written
    known = MNIST(tmp_path, train=False)
    assert torch.equal(data.test.inputs[:, 0], known.data)
    assert torch.equal(data.test.targets, known.targets)
    assert (len(data.train), len(data.validation)) == (18, 2)
    assert (data.mean, data.std) == ((0.1307,), (0.3081,))
    assert any("20 of the standard 60,000" in note for note in data.notes)


def test_a_mat_file_of_svhn_has_zero_for_its_ten(tmp_path, monkeypatch):
    images, path = random_bytes(4, 32, 32, 3), tmp_path / "test_32x32.mat"
    labels = np.array([[10], [1], [9], [10]], dtype=np.uint8)
    savemat(path, {"X": images.transpose(1, 2, 3, 0), "y": labels})
    known = ["", path.name, hashlib.md5(path.read_bytes()).hexdigest()]
    monkeypatch.setitem(SVHN.split_list, "test", known)
    test = read_part("svhn", "test", tmp_path, download=False)
    np.testing.assert_array_equal(test.inputs.numpy(), images.transpose(0, 3, 1, 2))
    assert test.targets.tolist() == [0, 1, 9, 0]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"no files of 'svhn' under .*not found or corrupted"):
        read_part("svhn", "test", tmp_path, download=False)


def test_parquet_files_are_joined_in_order(put, tmp_path):
    images = random_bytes(5, 32, 32, 3)
    cells = list(map(cell_of, images))
    put("cifar10/test-0.parquet", parquet_bytes(cells[:2], [4, 0]))
    put("cifar10/test-1.parquet", parquet_bytes(cells[2:5], [1, 2, 3], column="img"))
    test = read_part("cifar10", "test", tmp_path, download=False)
    np.testing.assert_array_equal(test.inputs.numpy(), images[:5].transpose(0, 3, 1, 2))
    assert test.targets.tolist() == [4, 0, 1, 2, 3]
    with pytest.raises(DataError, match=r"no files of .cifar10."):
        load_images("cifar10", data_dir=tmp_path)


@pytest.fixture
def python_batches(monkeypatch):
    """Files of a CIFAR-10 of eight images, published with their sums."""
    contents = {
        "data_batch_1": {"data": random_bytes(3, 3072), "labels": [0, 2, 9]},
        "data_batch_2": {"data": random_bytes(3, 3072, seed=1), "labels": [1, 2, 9]},
        "test_batch": {"data": random_bytes(2, 3072, seed=2), "labels": [5, 6]},
        "batches.meta": {"label_names": ["x"] * 10},
    }
    files = {name: pickle.dumps(content, protocol=2) for name, content in contents.items()}
    sums = [[name, hashlib.md5(content).hexdigest()] for name, content in files.items()]
    monkeypatch.setattr(CIFAR10, "train_list", sums[:2])
    monkeypatch.setattr(CIFAR10, "test_list", sums[2:3])
    monkeypatch.setitem(CIFAR10.meta, "md5", sums[3][1])
    return files


def test_python_batches_are_read(put, tmp_path, python_batches):
    for name, content in python_batches.items():
        put(f"cifar-10-batches-py/{name}", content)
    data = load_images("cifar10", data_dir=tmp_path)
    expected = np.concatenate((random_bytes(3, 3072), random_bytes(3, 3072, seed=1)))
    np.testing.assert_array_equal(data.train.inputs.numpy(), expected.reshape(6, 3, 32, 32))
    assert data.train.targets.tolist() == [0, 2, 9, 1, 2, 9]
    assert data.test.targets.tolist() == [5, 6]


@pytest.mark.parametrize("name", ["test_batch", "data_batch_1", "batches.meta"])
def test_a_batch_that_is_not_the_published_one_is_never_unpickled(
    put, tmp_path, python_batches, name
):
    evil = f"cos\nmkdir\n(V{tmp_path / 'ran'}\ntR."  # a call that makes a folder
    for file, content in (python_batches | {name: evil}).items():
        put(f"cifar-10-batches-py/{file}", content)
    with pytest.raises(DataError, match=r"no files of 'cifar10' under .*corrupted"):
        read_part("cifar10", "test", tmp_path, download=False)
    assert not (tmp_path / "ran").exists()


NPZ = npz_bytes(x_test=random_bytes(30, 28, 28))
PICKLE = npz_bytes(x_test=np.array([object()]), y_test=np.array([1]))
DAMAGED = {
    "mnist/a.npz": (b"", b"text", NPZ, NPZ[: len(NPZ) // 2], PICKLE),
    "cifar100/test.parquet": (
        b"PAR1 nothing",
        *(lambda cell=cell: parquet_bytes([cell], [1]) for cell in ({"bytes": b"no"}, None)),
        lambda: parquet_bytes([1], [1], column="picture"),
        lambda: parquet_bytes([cell_of(32)] * 2, [1, None]),
        lambda: parquet_bytes([cell_of(32), cell_of(8)], [1, 2]),
    ),
}


@pytest.mark.parametrize(
    ("name", "content"), [(name, content) for name, many in DAMAGED.items() for content in many]
)
def test_a_damaged_file_is_named_in_one_line(put, tmp_path, name, content):
    put(name, content() if callable(content) else content)
    with pytest.raises(DataError) as caught:
        read_part(name.partition("/")[0], "test", tmp_path, download=False)
    message = str(caught.value)
    assert "\n" not in message
    assert str(tmp_path / name) in message


def test_missing_files_images_of_another_size_and_other_labels_are_named(put, tmp_path):
    with pytest.raises(DataError, match="none does not exist"):
        load_images("mnist", data_dir=tmp_path / "none")
    with pytest.raises(DataError, match=r"no files of 'mnist' under .*those of torchvision there"):
        load_images("mnist", data_dir=tmp_path)
    for side, label, message in (
        (27, 0, r"\(1, 28, 28\), got \(1, 27, 27\)"),
        (28, 10, "row 1 has 10"),
    ):
        images, labels = random_bytes(2, side, side), np.array([0, label])
        put("mnist/a.npz", npz_bytes(x_test=images, y_test=labels))
        with pytest.raises(DataError, match=message):
            read_part("mnist", "test", tmp_path, download=False)


@pytest.mark.parametrize("name", IMAGE_INFO)
def test_missing_files_are_fetched_by_torchvision_and_those_there_are_not(
    put, tmp_path, monkeypatch, name
):
    info, fetched = IMAGE_INFO[name], []

    def fetch(root, **options):
        fetched.append((root, options["download"]))
        raise RuntimeError("no network")

    monkeypatch.setattr(f"torchvision.datasets.{info.published}", fetch)
    with pytest.raises(DataError, match=f"'{name}' could not be fetched: no network; put .*"):
        read_part(name, "test", tmp_path / "new", download=True)
    assert fetched == [(str(tmp_path / "new"), True)]
    images = random_bytes(3, info.size, info.size, info.channels).squeeze()
    put(f"{name}/a.npz", npz_bytes(x_test=images, y_test=np.arange(3)))
    assert len(read_part(name, "test", tmp_path, download=True)) == 3


@pytest.fixture
def cifar_c(tmp_path):
    images, folder = random_bytes(20, 32, 32, 3), tmp_path / "CIFAR-10-C"
    labels = np.tile(np.array([3, 1, 0, 9], dtype=np.uint8), 5)
    arrays = {"fog": images, "labels": labels, "snow": images[:19]}
    folder.mkdir()
    for name, array in (arrays | {"rain": np.array([object()] * 5)}).items():
        np.save(folder / f"{name}.npy", array, allow_pickle=True)
    return folder


def test_a_severity_of_cifar_c_is_a_fifth_of_the_file(cifar_c, tmp_path):
    assert available_cifar_c("cifar10", tmp_path) == ("fog", "rain", "snow")
    assert available_cifar_c("cifar100", tmp_path) == available_cifar_c("mnist", tmp_path) == ()
    part, images = read_cifar_c("cifar10", tmp_path, "fog", 2), np.load(cifar_c / "fog.npy")
    np.testing.assert_array_equal(part.inputs.numpy(), images[4:8].transpose(0, 3, 1, 2))
    assert part.targets.tolist() == [3, 1, 0, 9]
    part.inputs.zero_()
    np.testing.assert_array_equal(np.load(cifar_c / "fog.npy"), images)


@pytest.fixture
def faces(tmp_path):
    """20 + 3 + 2 images whose border beyond the crop is white, whose inside tells their number."""
    folder = tmp_path / "celeba" / "img_align_celeba"
    folder.mkdir(parents=True)
    for number in range(25):
        image = Image.new("RGB", (178, 218), (255, 255, 255))
        image.paste((10 * number, 100, 200), (19, 39, 159, 179))
        image.save(folder / f"{number:06}.jpg", quality=95)
    lines = [f"{n:06}.jpg {0 if n < 20 else 1 if n < 23 else 2}" for n in range(25)]
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


def test_celeba_that_is_missing_or_of_another_kind_is_refused(faces, monkeypatch):
    partition = faces / "celeba" / "list_eval_partition.txt"
    face = faces / "celeba" / "img_align_celeba" / "000003.jpg"

    def refused(message, **options):
        with pytest.raises(DataError, match=message):
            load_generation_data("celeba", data_dir=faces, **options)

    Image.new("RGB", (64, 64)).save(face)
    refused(r"000003.jpg.* 178x218 pixels.*got 64x64")
    face.write_bytes(b"no image")
    refused(r"000003.jpg.*cannot be read")
    partition.write_text("000099.jpg 3\n")
    refused(r"partition\.txt cannot be read as lines of a file name and 0, 1 or 2")
    partition.unlink()
    refused("no files of 'celeba'")
    face.parent.rename(faces / "celeba" / "aside")
    monkeypatch.setitem(sys.modules, "gdown", None)
    refused("gdown is needed", download=True)
