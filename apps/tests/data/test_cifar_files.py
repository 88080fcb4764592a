import hashlib
import io
import pickle
import struct
import tarfile

import numpy as np
import pytest
from torchvision.datasets import CIFAR10, CIFAR100

from probseq_apps.data.cifar_files import read_cifar
from probseq_apps.data.errors import DataError


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


def publish(monkeypatch, kind, part, contents):
    sums = [[name, hashlib.md5(data).hexdigest()] for name, data in contents.items()]
    monkeypatch.setattr(kind, f"{part}_list", sums)


@pytest.fixture
def python_batches(monkeypatch):
    contents = {
        name: python2_pickle({b"data": rows(3, seed), b"labels": [seed, 2, 9]})
        for seed, name in enumerate(("data_batch_1", "data_batch_2"))
    }
    publish(monkeypatch, CIFAR10, "train", contents)
    return contents


def check_batches(found):
    images, labels = found
    expected = np.concatenate((rows(3, 0), rows(3, 1))).reshape(6, 3, 32, 32)
    np.testing.assert_array_equal(images.numpy(), expected)
    assert labels.tolist() == [0, 2, 9, 1, 2, 9]


def test_python_batches_are_read_from_the_folder(tmp_path, python_batches):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name, data in python_batches.items():
        (folder / name).write_bytes(data)
    check_batches(read_cifar("cifar10", "train", tmp_path))


def test_python_batches_are_read_from_the_archive_and_nothing_is_unpacked(tmp_path, python_batches):
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as archive:
        for name, data in python_batches.items():
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    check_batches(read_cifar("cifar10", "train", tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["cifar-10-python.tar.gz"]


def test_binary_batches_of_both_sets_are_read(tmp_path):
    pixels = rows(4, 5)
    (tmp_path / "cifar-10-batches-bin").mkdir()
    labels = np.array([[3], [0], [9], [1]], dtype=np.uint8)
    (tmp_path / "cifar-10-batches-bin" / "test_batch.bin").write_bytes(
        np.hstack((labels, pixels)).tobytes()
    )
    (tmp_path / "cifar-100-binary").mkdir()
    fine = np.array([[99], [0], [50], [7]], dtype=np.uint8)
    (tmp_path / "cifar-100-binary" / "test.bin").write_bytes(
        np.hstack((labels, fine, pixels)).tobytes()
    )
    for name, expected in (("cifar10", labels), ("cifar100", fine)):
        images, found = read_cifar(name, "test", tmp_path)
        np.testing.assert_array_equal(images.numpy().reshape(4, 3072), pixels)
        assert found.tolist() == expected.flatten().tolist()


def test_no_files_are_no_error(tmp_path):
    assert read_cifar("cifar10", "train", tmp_path) is None


def test_a_batch_that_is_not_the_published_one_is_never_unpickled(tmp_path, monkeypatch):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "test_batch").write_bytes(Evil(tmp_path / "ran").pickled())
    with pytest.raises(DataError, match=r"test_batch is damaged or not the published file"):
        read_cifar("cifar10", "test", tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_batch_that_calls_a_function_is_refused_even_with_the_right_sum(tmp_path, monkeypatch):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    data = Evil(tmp_path / "ran").pickled()
    publish(monkeypatch, CIFAR100, "test", {"test": data})
    (folder / "test").write_bytes(data)
    with pytest.raises(DataError, match=r"is refused"):
        read_cifar("cifar100", "test", tmp_path)
    assert not (tmp_path / "ran").exists()
    # The same bytes do run code in the plain unpickler: the test above can fail.
    pickle.loads(data)
    assert (tmp_path / "ran").exists()


class Evil:
    """Pickles to a call that makes a folder."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        import os

        return os.mkdir, (str(self.folder),)

    def pickled(self):
        return pickle.dumps({"data": self, "fine_labels": []}, protocol=2)


def test_an_incomplete_or_cut_off_set_is_named(tmp_path, python_batches):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "data_batch_1").write_bytes(python_batches["data_batch_1"])
    with pytest.raises(DataError, match=r"is incomplete: .*data_batch_2"):
        read_cifar("cifar10", "train", tmp_path)
    (tmp_path / "b" / "cifar-10-batches-bin").mkdir(parents=True)
    (tmp_path / "b" / "cifar-10-batches-bin" / "test_batch.bin").write_bytes(bytes(3072))
    with pytest.raises(DataError, match=r"test_batch\.bin must hold rows of 3073 bytes"):
        read_cifar("cifar10", "test", tmp_path / "b")
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"cifar-100-python\.tar\.gz"):
        read_cifar("cifar100", "test", tmp_path)
