"""Files of the standard image sets: every format gives the same images, and damage is named."""

import gzip
import hashlib
import io
import pickle
import struct
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat
from torchvision.datasets import CIFAR10, CIFAR100, SVHN

from probseq_apps.data.images import load_images, load_test_images
from probseq_apps.data.names import DataError
from probseq_apps.data.parts import image_tensor, label_tensor


def idx_bytes(array):
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return header + array.tobytes()


def random_bytes(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_idx_files_are_read_plain_and_gzipped(tmp_path):
    images, labels = random_bytes(5, 28, 28), np.arange(5, dtype=np.uint8)
    put(tmp_path / "mnist" / "t10k-images-idx3-ubyte", idx_bytes(images))
    put(tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz", gzip.compress(idx_bytes(labels)))
    test = load_test_images("mnist", data_dir=tmp_path)
    np.testing.assert_array_equal(test.inputs.numpy(), images[:, None])
    assert test.targets.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not an idx file",
        struct.pack(">HBB", 0, 8, 3),
        idx_bytes(random_bytes(5, 28, 28))[:-1],
        struct.pack(">HBBI", 0, 0x0D, 1, 1) + bytes(4),
    ],
)
def test_a_damaged_idx_file_is_named(tmp_path, content):
    folder = tmp_path / "mnist"
    put(folder / "t10k-labels-idx1-ubyte", idx_bytes(random_bytes(5)))
    put(folder / "t10k-images-idx3-ubyte", content)
    with pytest.raises(DataError, match="t10k-images-idx3-ubyte"):
        load_test_images("mnist", data_dir=tmp_path)


def test_a_damaged_gzip_file_is_named(tmp_path):
    folder = tmp_path / "mnist"
    put(folder / "t10k-labels-idx1-ubyte", idx_bytes(random_bytes(50)))
    packed = gzip.compress(idx_bytes(random_bytes(50, 28, 28)))
    for content in (b"plain", packed[: len(packed) // 2], b""):
        put(folder / "t10k-images-idx3-ubyte.gz", content)
        with pytest.raises(DataError, match=r"ubyte\.gz"):
            load_test_images("mnist", data_dir=tmp_path)


def publish_svhn(monkeypatch, folder, content):
    path = folder / "test_32x32.mat"
    savemat(path, content)
    md5 = hashlib.md5(path.read_bytes()).hexdigest()
    monkeypatch.setitem(SVHN.split_list, "test", ["", "test_32x32.mat", md5])
    return path


def test_a_mat_file_of_svhn_has_zero_for_its_ten(tmp_path, monkeypatch):
    images = random_bytes(4, 32, 32, 3)
    labels = np.array([[10], [1], [9], [10]], dtype=np.uint8)
    publish_svhn(monkeypatch, tmp_path, {"X": images.transpose(1, 2, 3, 0), "y": labels})
    test = load_test_images("svhn", data_dir=tmp_path)
    np.testing.assert_array_equal(test.inputs.numpy(), images.transpose(0, 3, 1, 2))
    assert test.targets.tolist() == [0, 1, 9, 0]


def test_a_mat_file_that_is_not_the_published_one_is_named(tmp_path, monkeypatch):
    path = publish_svhn(monkeypatch, tmp_path, {"X": random_bytes(32, 32, 3, 4)})
    with pytest.raises(DataError, match=r"test_32x32\.mat"):  # lacks y
        load_test_images("svhn", data_dir=tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"test_32x32\.mat"):
        load_test_images("svhn", data_dir=tmp_path)


def save_npz(folder, images, labels):
    (folder / "mnist").mkdir(exist_ok=True)
    np.savez(folder / "mnist" / "a.npz", x_test=images, y_test=labels)


def test_npz_files_are_read_by_part(tmp_path):
    save_npz(tmp_path, random_bytes(3, 28, 28), np.array([3, 1, 2], dtype=np.uint8))
    assert load_test_images("mnist", data_dir=tmp_path).targets.tolist() == [3, 1, 2]
    with pytest.raises(DataError, match="only the test part"):
        load_images("mnist", data_dir=tmp_path)


def test_a_pickle_inside_an_npz_file_is_not_opened(tmp_path):
    save_npz(tmp_path, np.array([object()]), np.array([1]))
    with pytest.raises(DataError, match=r"a\.npz.*allow_pickle"):
        load_test_images("mnist", data_dir=tmp_path)


def test_a_damaged_npz_file_is_named(tmp_path):
    save_npz(tmp_path, random_bytes(30, 28, 28), np.arange(30) % 10)
    path = tmp_path / "mnist" / "a.npz"
    whole = path.read_bytes()
    for content in (b"", b"PK\x03\x04 cut off", b"text", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"a\.npz"):
            load_test_images("mnist", data_dir=tmp_path)


def test_not_a_number_in_float_images_is_refused_with_its_row(tmp_path):
    images = np.zeros((4, 8, 8), dtype=np.float32)
    images[2, 1, 1] = np.nan
    with pytest.raises(DataError, match=r"image 2 holds NaN"):
        image_tensor(images, tmp_path)


def test_float_images_in_0_to_1_become_bytes(tmp_path):
    levels = np.array([[[0.0, 1.0], [0.5, 51 / 255]]])
    assert image_tensor(levels, tmp_path).flatten().tolist() == [0, 255, 128, 51]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.full((1, 8, 8), 1.5), r"must lie in 0\.\.1"),
        (np.full((1, 8, 8), 256), r"must lie in 0\.\.255"),
        (np.zeros((8, 8)), "must have shape"),
        (np.zeros((2, 8, 8, 4), np.uint8), "must have shape"),
        (np.zeros((0, 8, 8), np.uint8), "at least one row"),
        (np.zeros((1, 8, 8), bool), "must be numbers"),
    ],
)
def test_images_of_another_form_are_refused(tmp_path, array, message):
    with pytest.raises(DataError, match=message):
        image_tensor(array, tmp_path)


@pytest.mark.parametrize(
    ("labels", "rows", "message"),
    [
        (np.zeros(3), 3, "integers"),
        (np.array([1.0, np.nan]), 2, "integers"),
        (np.zeros(3, int), 2, "2 rows"),
    ],
)
def test_labels_of_another_form_are_refused(tmp_path, labels, rows, message):
    with pytest.raises(DataError, match=message):
        label_tensor(labels, rows, tmp_path)


def test_reading_returns_memory_of_its_own(tmp_path):
    array = random_bytes(2, 8, 8)
    image_tensor(array, tmp_path).zero_()
    assert array.any()


def png(image):
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def write_parquet(path, cells, labels, column="image"):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({column: cells, "label": labels}), path)


def test_parquet_shards_are_joined_in_order_and_only_what_is_asked_for_is_decoded(tmp_path):
    images = random_bytes(22, 32, 32, 3)
    cells = [{"bytes": png(image)} for image in images]
    folder = tmp_path / "cifar10"
    write_parquet(folder / "test-0.parquet", cells[:2], [4, 0])
    write_parquet(folder / "test-1.parquet", cells[2:5], [1, 2, 3], column="img")
    test = load_test_images("cifar10", data_dir=tmp_path)
    np.testing.assert_array_equal(test.inputs.numpy(), images[:5].transpose(0, 3, 1, 2))
    assert test.targets.tolist() == [4, 0, 1, 2, 3]
    broken = [*cells[:20], {"bytes": b"no image"}, {"bytes": b"nor this"}]
    write_parquet(folder / "train.parquet", broken, list(range(10)) * 2 + [0, 0])
    data = load_images("cifar10", data_dir=tmp_path, limit=20)
    assert (len(data.train), len(data.validation)) == (18, 2)


def bomb():
    """Return a PNG of a few kilobytes that would fill gigabytes."""
    small = png(np.zeros((1, 1), np.uint8))
    place = small.index(b"IHDR")
    head = b"IHDR" + struct.pack(">II", 60_000, 60_000) + small[place + 12 : place + 17]
    import zlib

    return small[:place] + head + struct.pack(">I", zlib.crc32(head)) + small[place + 21 :]


@pytest.mark.parametrize("cell", [{"bytes": b"no image"}, None, {"bytes": bomb()}])
def test_an_image_in_parquet_that_cannot_be_decoded_is_named(tmp_path, cell):
    path = tmp_path / "cifar10" / "test.parquet"
    write_parquet(path, [cell], [1])
    with pytest.raises(DataError, match=r"test\.parquet cannot be read as .*row 0"):
        load_test_images("cifar10", data_dir=tmp_path)


def test_a_damaged_parquet_file_or_another_table_is_named(tmp_path):
    path = tmp_path / "cifar10" / "test.parquet"
    write_parquet(path, [1], [1], column="picture")
    with pytest.raises(DataError, match="needs a column image or img"):
        load_test_images("cifar10", data_dir=tmp_path)
    write_parquet(path, [{"bytes": png(random_bytes(32, 32, 3))}] * 2, [1, None])
    with pytest.raises(DataError, match="labels must be integers"):
        load_test_images("cifar10", data_dir=tmp_path)
    path.write_bytes(b"PAR1 nothing")
    with pytest.raises(DataError, match=r"test\.parquet"):
        load_test_images("cifar10", data_dir=tmp_path)


class Python2Pickler(pickle._Pickler):
    """Writes strings of bytes as Python 2 did, the language that the published files come from."""

    dispatch = pickle._Pickler.dispatch.copy()

    def save_bytes(self, obj):
        self.write(b"T" + struct.pack("<i", len(obj)) + obj)
        self.memoize(obj)

    dispatch[bytes] = save_bytes


def python2_pickle(content):
    buffer = io.BytesIO()
    Python2Pickler(buffer, protocol=2).dump(content)
    return buffer.getvalue()


def rows(count, seed):
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)


def md5(content):
    return hashlib.md5(content).hexdigest()


@pytest.fixture
def python_batches(monkeypatch):
    """Files of a CIFAR-10 of eight images, published with their sums."""
    files = {
        "data_batch_1": {b"data": rows(3, 0), b"labels": [0, 2, 9]},
        "data_batch_2": {b"data": rows(3, 1), b"labels": [1, 2, 9]},
        "test_batch": {b"data": rows(2, 2), b"labels": [5, 6]},
        "batches.meta": {b"label_names": [b"x"] * 10},
    }
    files = {name: python2_pickle(content) for name, content in files.items()}
    sums = [[name, md5(content)] for name, content in files.items()]
    monkeypatch.setattr(CIFAR10, "train_list", sums[:2])
    monkeypatch.setattr(CIFAR10, "test_list", sums[2:3])
    monkeypatch.setitem(CIFAR10.meta, "md5", sums[3][1])
    return files


def check_batches(data_dir):
    data = load_images("cifar10", data_dir=data_dir)
    expected = np.concatenate((rows(3, 0), rows(3, 1))).reshape(6, 3, 32, 32)
    np.testing.assert_array_equal(data.train.inputs.numpy(), expected)
    assert data.train.targets.tolist() == [0, 2, 9, 1, 2, 9]
    assert data.test.targets.tolist() == [5, 6]


def test_python_batches_are_read_from_the_folder(tmp_path, python_batches):
    for name, content in python_batches.items():
        put(tmp_path / "cifar-10-batches-py" / name, content)
    check_batches(tmp_path)


def test_archives_are_read_and_nothing_is_left(tmp_path, python_batches):
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as archive:
        for name, content in python_batches.items():
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    check_batches(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["cifar-10-python.tar.gz"]
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"cifar-100-python\.tar\.gz"):
        load_test_images("cifar100", data_dir=tmp_path)


def test_binary_batches_of_both_sets_are_read(tmp_path):
    pixels = rows(4, 5)
    labels = np.array([[3], [0], [9], [1]], dtype=np.uint8)
    path = tmp_path / "cifar-10-batches-bin" / "test_batch.bin"
    put(path, np.hstack((labels, pixels)).tobytes())
    fine = np.array([[99], [0], [50], [7]], dtype=np.uint8)
    content = np.hstack((labels, fine, pixels)).tobytes()
    put(tmp_path / "cifar-100-binary" / "test.bin", content)
    for name, expected in (("cifar10", labels), ("cifar100", fine)):
        test = load_test_images(name, data_dir=tmp_path)
        np.testing.assert_array_equal(test.inputs.numpy().reshape(4, 3072), pixels)
        assert test.targets.tolist() == expected.flatten().tolist()
    path.write_bytes(bytes(3072))
    with pytest.raises(DataError, match="cifar-10-batches-bin cannot be read"):
        load_test_images("cifar10", data_dir=tmp_path)


class Evil:
    """Pickles to a call that makes a folder."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        import os

        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("name", ["test_batch", "data_batch_1", "batches.meta"])
def test_a_batch_that_is_not_the_published_one_is_never_unpickled(tmp_path, python_batches, name):
    evil = pickle.dumps({"data": Evil(tmp_path / "ran"), "labels": []}, protocol=2)
    for file, content in (python_batches | {name: evil}).items():
        put(tmp_path / "cifar-10-batches-py" / file, content)
    with pytest.raises(DataError, match="cifar-10-batches-py cannot be read"):
        load_test_images("cifar10", data_dir=tmp_path)
    assert not (tmp_path / "ran").exists()


def test_the_sums_of_cifar100_are_checked_too(tmp_path):
    put(tmp_path / CIFAR100.base_folder / "test", b"no batch")
    with pytest.raises(DataError, match="cifar-100-python cannot be read"):
        load_test_images("cifar100", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mnist", "MNIST"),
        ("fashion-mnist", "FashionMNIST"),
        ("cifar10", "CIFAR10"),
        ("cifar100", "CIFAR100"),
        ("svhn", "SVHN"),
    ],
)
def test_missing_files_are_fetched_by_torchvision(tmp_path, monkeypatch, name, kind):
    fetched = []

    def fetch(root, **options):
        fetched.append((root, options))
        raise RuntimeError("no network")

    monkeypatch.setattr(f"torchvision.datasets.{kind}", fetch)
    with pytest.raises(DataError, match=f"'{name}' could not be fetched: no network"):
        load_test_images(name, data_dir=tmp_path / "new", download=True)
    [(root, options)] = fetched
    assert (root, options["download"]) == (str(tmp_path / "new"), True)


def test_what_is_there_is_not_fetched_again(tmp_path, monkeypatch):
    save_npz(tmp_path, random_bytes(3, 28, 28), np.arange(3))
    monkeypatch.delattr("torchvision.datasets.MNIST")
    assert len(load_test_images("mnist", data_dir=tmp_path, download=True)) == 3


def test_fetched_files_are_found(tmp_path, monkeypatch):
    def fetch(root, **options):
        save_npz(tmp_path, random_bytes(3, 28, 28), np.arange(3))

    monkeypatch.setattr("torchvision.datasets.MNIST", fetch)
    test = load_test_images("mnist", data_dir=tmp_path, download=True)
    assert torch.equal(test.targets, torch.arange(3))


def test_fetching_needs_a_directory(tmp_path):
    with pytest.raises(DataError, match="--data-dir"):
        load_images("mnist", download=True)
