"""Readers of image files in standard formats: IDX, MATLAB, NPZ and Parquet.

Each reader returns checked tensors or raises a DataError that names the file. Nothing is unpickled:
NPZ files are read with ``allow_pickle=False``, and MATLAB files hold plain arrays only.
"""

import gzip
import io
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from probseq_apps.data.arrays import image_tensor, label_tensor
from probseq_apps.data.errors import DataError
from probseq_apps.data.tabular import read_parquet_table

Images = UInt8[Tensor, "n c h w"]
Labels = Int64[Tensor, " n"]

_IDX_BYTES = 0x08  # the type code of unsigned bytes, the only one that MNIST's files use


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an IDX file of bytes, gzipped or not.

    Raises:
        DataError: the file is cut off, damaged, or holds something else.
    """
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if len(data) < 4 or data[:3] != bytes((0, 0, _IDX_BYTES)) or not 1 <= data[3] <= 3:
        raise DataError(f"{path} is not an IDX file of bytes")
    header = 4 * (data[3] + 1)
    if len(data) < header:
        raise DataError(f"{path} is cut off in its header")
    shape = struct.unpack(f">{data[3]}I", data[4:header])
    expected = int(np.prod(shape, dtype=np.int64))
    if len(data) - header != expected:
        raise DataError(
            f"{path} should hold {expected} bytes of data, but holds {len(data) - header}"
        )
    return np.frombuffer(data, dtype=np.uint8, offset=header).reshape(shape)


def read_idx_pair(images: Path, labels: Path) -> tuple[Images, Labels]:
    """Read images and labels in MNIST's format."""
    pixels = image_tensor(read_idx(images), images)
    return pixels, label_tensor(read_idx(labels), len(pixels), labels)


def read_mat(path: Path) -> tuple[Images, Labels]:
    """Read a file of SVHN's cropped digits (``X`` of shape (32, 32, 3, N), ``y`` with 10 for 0)."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        content = loadmat(path, variable_names=["X", "y"])
        pixels, classes = content["X"], content["y"]
    except KeyError as error:
        raise DataError(f"{path} has no variable {error}: expected SVHN's X and y") from error
    # scipy reports damage in many ways, among them TypeError and struct's own error.
    except (OSError, ValueError, TypeError, MatReadError, zlib.error, struct.error) as error:
        raise DataError(f"{path} cannot be read as a MATLAB file: {error}") from error
    if pixels.ndim != 4:
        raise DataError(f"{path}: X must have shape (H, W, C, N), got {pixels.shape}")
    images = image_tensor(pixels.transpose(3, 2, 0, 1), path)
    labels = label_tensor(classes, len(images), path)
    return images, torch.where(labels == 10, 0, labels)


def read_npz(path: Path, part: str) -> tuple[Images, Labels] | None:
    """Read ``x_train``/``y_train`` (or ``_test``) of an NPZ file; None if it lacks the part."""
    try:
        # Opened here: of a damaged archive numpy leaves its own file open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            if f"x_{part}" not in content or f"y_{part}" not in content:
                return None
            pixels, classes = content[f"x_{part}"], content[f"y_{part}"]
    except (OSError, ValueError, TypeError, EOFError, BadZipFile, zlib.error) as error:
        raise DataError(f"{path} cannot be read as an NPZ file: {error}") from error
    images = image_tensor(pixels, path)
    return images, label_tensor(classes, len(images), path)


def read_parquet_images(
    paths: Sequence[Path], mode: str, *, limit: int | None = None
) -> tuple[Images, Labels]:
    """Read encoded images from Parquet files.

    Args:
        paths: files with a column ``image`` or ``img`` (a struct with ``bytes``) and a column
            ``label`` or ``fine_label``.
        mode: ``"L"`` for grey or ``"RGB"``.
        limit: decode the first images only, which takes most of the time.
    """
    pixels: list[Tensor] = []
    labels: list[Tensor] = []
    for path in paths:
        left = None if limit is None else limit - sum(map(len, pixels))
        if left == 0:
            break
        table = read_parquet_table(path).slice(0, left)
        encoded = table[_column(table, ("image", "img"), path)].to_pylist()
        classes = table[_column(table, ("label", "fine_label"), path)].to_numpy()
        decoded = [_decode(cell, mode, path, row) for row, cell in enumerate(encoded)]
        if len({image.shape for image in decoded}) != 1:
            raise DataError(
                f"{path}: images must all have one size, and there must be at least one"
            )
        images = image_tensor(np.stack(decoded), path)
        pixels.append(images)
        labels.append(label_tensor(classes, len(images), path))
    return torch.cat(pixels), torch.cat(labels)


def _column(table: Any, names: tuple[str, ...], path: Path) -> str:
    for name in names:
        if name in table.column_names:
            return name
    raise DataError(f"{path} needs a column {' or '.join(names)}, it has {table.column_names}")


def _decode(cell: Any, mode: str, path: Path, row: int) -> NDArray[np.uint8]:
    try:
        with Image.open(io.BytesIO(cell["bytes"])) as image:
            return np.asarray(image.convert(mode))
    except (OSError, TypeError, KeyError, ValueError, SyntaxError) as error:
        raise DataError(f"{path}: row {row} holds no readable image: {error}") from error
