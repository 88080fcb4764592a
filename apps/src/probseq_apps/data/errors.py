"""The error of the data layer; needs neither torch nor numpy."""

import csv
import struct
import tarfile
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from zipfile import BadZipFile

# What the readers of files raise, in the standard library and out of it, on damaged files.
_DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    SyntaxError,
    RuntimeError,
    AssertionError,
    struct.error,
    zlib.error,
    csv.Error,
    tarfile.TarError,
    BadZipFile,
)


class DataError(ValueError):
    """Data that are missing, damaged, or not what was asked for; the message names the thing."""


@contextmanager
def reading(path: Path, what: str, *more: type[Exception]) -> Generator[None]:
    """Turn what a reader raises on a damaged file into one error that names the file.

    Args:
        path: the file.
        what: what it should be, with its article.
        more: further exceptions of the reader.

    Raises:
        DataError: the file is missing, damaged or of another kind.
    """
    try:
        yield
    except DataError:
        raise
    except (*_DAMAGE, *more) as error:
        raise DataError(f"{path} cannot be read as {what}: {error}") from error
