import gzip
import io
import struct

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from probseq_apps.data.arrays import image_tensor, label_tensor
from probseq_apps.data.errors import DataError
from probseq_apps.data.image_files import (
    read_idx,
    read_idx_pair,
    read_mat,
    read_npz,
    read_parquet_images,
)


def idx_bytes(array):
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return header + array.tobytes()


def random_bytes(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def test_idx_files_are_read_plain_and_gzipped(tmp_path):
    images, labels = random_bytes(5, 28, 28), np.arange(5, dtype=np.uint8)
    (tmp_path / "i").write_bytes(idx_bytes(images))
    (tmp_path / "l.gz").write_bytes(gzip.compress(idx_bytes(labels)))
    pixels, classes = read_idx_pair(tmp_path / "i", tmp_path / "l.gz")
    np.testing.assert_array_equal(pixels.numpy(), images[:, None])
    assert classes.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not an idx file",
        struct.pack(">HBB", 0, 8, 3),
        idx_bytes(random_bytes(2, 3, 3))[:-1],
        struct.pack(">HBBI", 0, 0x0D, 1, 1) + bytes(4),
    ],
)
def test_a_damaged_idx_file_is_named(tmp_path, content):
    (tmp_path / "broken-idx").write_bytes(content)
    with pytest.raises(DataError, match="broken-idx"):
        read_idx(tmp_path / "broken-idx")


def test_a_damaged_gzip_file_is_named(tmp_path):
    packed = gzip.compress(idx_bytes(random_bytes(50, 9, 9)))
    for content in (b"plain", packed[: len(packed) // 2], b""):
        (tmp_path / "broken.gz").write_bytes(content)
        with pytest.raises(DataError, match=r"broken\.gz"):
            read_idx(tmp_path / "broken.gz")


def test_a_mat_file_of_svhn_has_zero_for_its_ten(tmp_path):
    images = random_bytes(4, 32, 32, 3)
    labels = np.array([[10], [1], [9], [10]], dtype=np.uint8)
    savemat(tmp_path / "test_32x32.mat", {"X": images.transpose(1, 2, 3, 0), "y": labels})
    pixels, classes = read_mat(tmp_path / "test_32x32.mat")
    np.testing.assert_array_equal(pixels.numpy(), images.transpose(0, 3, 1, 2))
    assert classes.tolist() == [0, 1, 9, 0]


def test_a_damaged_mat_file_is_named(tmp_path):
    path = tmp_path / "test_32x32.mat"
    savemat(path, {"X": random_bytes(32, 32, 3, 4)})
    with pytest.raises(DataError, match=r"test_32x32\.mat has no variable 'y'"):
        read_mat(path)
    savemat(path, {"X": random_bytes(32, 32, 3, 4), "y": np.ones((4, 1), np.uint8)})
    whole = path.read_bytes()
    for content in (b"", b"nonsense" * 30, whole[: len(whole) // 2], whole[:150]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"test_32x32\.mat"):
            read_mat(path)


def test_npz_files_are_read_by_part(tmp_path):
    images, labels = random_bytes(3, 28, 28), np.array([3, 1, 2], dtype=np.uint8)
    np.savez(tmp_path / "a.npz", x_test=images, y_test=labels)
    found = read_npz(tmp_path / "a.npz", "test")
    assert found is not None
    assert found[1].tolist() == [3, 1, 2]
    assert read_npz(tmp_path / "a.npz", "train") is None


def test_a_pickle_inside_an_npz_file_is_not_opened(tmp_path):
    np.savez(tmp_path / "a.npz", x_test=np.array([object()]), y_test=np.array([1]))
    with pytest.raises(DataError, match=r"a\.npz.*allow_pickle"):
        read_npz(tmp_path / "a.npz", "test")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut off", b"text"])
def test_a_damaged_npz_file_is_named(tmp_path, content):
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.npz"):
        read_npz(tmp_path / "a.npz", "test")


def test_not_a_number_in_float_images_is_refused_with_its_row(tmp_path):
    images = np.zeros((4, 8, 8), dtype=np.float32)
    images[2, 1, 1] = np.nan
    np.savez(tmp_path / "a.npz", x_test=images, y_test=np.zeros(4, np.int64))
    with pytest.raises(DataError, match=r"a\.npz: image 2 holds NaN"):
        read_npz(tmp_path / "a.npz", "test")


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
    ("labels", "message"),
    [
        (np.zeros(3), "integers"),
        (np.array([1.0, np.nan]), "integers"),
        (np.zeros(3, int), "2 rows"),
    ],
)
def test_labels_of_another_form_are_refused(tmp_path, labels, message):
    rows = 2 if message == "2 rows" else len(labels)
    with pytest.raises(DataError, match=message):
        label_tensor(labels, rows, tmp_path)


def write_parquet(path, images, labels, column="image"):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    cells = []
    for image in images:
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "PNG")
        cells.append({"bytes": buffer.getvalue(), "path": "x.png"})
    pq.write_table(pa.table({column: cells, "label": labels}), path)


def test_parquet_shards_are_joined_in_order(tmp_path):
    images = random_bytes(5, 32, 32, 3)
    write_parquet(tmp_path / "a.parquet", images[:2], [4, 0])
    write_parquet(tmp_path / "b.parquet", images[2:], [1, 2, 3], column="img")
    pixels, labels = read_parquet_images([tmp_path / "a.parquet", tmp_path / "b.parquet"], "RGB")
    np.testing.assert_array_equal(pixels.numpy(), images.transpose(0, 3, 1, 2))
    assert labels.tolist() == [4, 0, 1, 2, 3]


def test_a_damaged_parquet_file_or_image_is_named(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 nothing")
    with pytest.raises(DataError, match=r"a\.parquet"):
        read_parquet_images([path], "RGB")
    pq.write_table(pa.table({"image": [{"bytes": b"no image"}], "label": [1]}), path)
    with pytest.raises(DataError, match=r"a\.parquet: row 0"):
        read_parquet_images([path], "RGB")
    pq.write_table(pa.table({"image": [None], "label": [1]}), path)
    with pytest.raises(DataError, match=r"a\.parquet: row 0"):
        read_parquet_images([path], "RGB")
    pq.write_table(pa.table({"picture": [1], "label": [1]}), path)
    with pytest.raises(DataError, match="needs a column image or img"):
        read_parquet_images([path], "RGB")


def test_missing_labels_in_parquet_are_refused(tmp_path):
    write_parquet(tmp_path / "a.parquet", random_bytes(2, 8, 8), [1, None])
    with pytest.raises(DataError, match="labels must be integers"):
        read_parquet_images([tmp_path / "a.parquet"], "L")


def test_reading_returns_memory_of_its_own(tmp_path):
    array = random_bytes(2, 8, 8)
    tensor = image_tensor(array, tmp_path)
    tensor.zero_()
    assert array.any()
    assert tensor.dtype == torch.uint8
