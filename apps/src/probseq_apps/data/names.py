"""Names of data sets and corruptions, and the error of the data layer; needs no numpy."""

import os
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from textwrap import shorten
from typing import Literal

from probseq.errors import MissingExtraError

IMAGE_NAMES = ("digits", "digit-sets", "mnist", "fashion-mnist", "cifar10", "cifar100", "svhn")
TEXT_NAMES, SEQUENCE_NAMES = ("cola", "imdb"), ("speakers",)
DATA_NAMES: tuple[str, ...] = SEQUENCE_NAMES + IMAGE_NAMES + TEXT_NAMES
SERIES_NAMES = ("sp500", "solar", "audio", "covid", "toy")
TABLE_NAMES = ("skillcraft", "powerplant", "two-moons")
GENERATION_NAMES = ("digits", "gaussian-digits", "mnist", "cifar10", "celeba")

IMAGE_ENDINGS = (
    *(".avif", ".bmp", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".pgm", ".png", ".ppm"),
    *(".tif", ".tiff", ".webp"),
)

# Sets of one's own are named by a prefix and a path: "folder:/path/to/images", "csv:/path/to/file".
FOLDER_PREFIX, CSV_PREFIX, SEQUENCES_PREFIX = "folder:", "csv:", "sequences:"

_MOST_NAMES = 24  # in a message
WORDS, BPE_PREFIX = "words", "bpe:"
_SMALLEST_BPE = 258  # all bytes, padding, and a text without any token

CORRUPTION_NAMES = (
    *("gaussian_noise", "shot_noise", "impulse_noise"),
    *("defocus_blur", "gaussian_blur", "motion_blur", "zoom_blur"),
    *("fog", "snow", "brightness"),
    *("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)
SEQUENCE_CORRUPTION_NAMES = ("frame_noise", "dropped_frames", "channel_gain", "truncation")


class DataError(ValueError):
    """Data that are missing, damaged, or not what was asked for; the message names the thing."""


@contextmanager
def reading(path: object, kind: str) -> Generator[None]:
    """Turn what a library raises on a damaged file into one line that names the file.

    Readers of archives, images and tables raise errors of a dozen kinds.
    """
    try:
        yield
    except (DataError, MissingExtraError, MemoryError):
        raise
    except Exception as error:
        reason = shorten(str(error), 300) or type(error).__name__
        raise DataError(f"{path} cannot be read as {kind}: {reason}") from error


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """Return the known name that looks most like ``name``, or None if none does."""
    name = name.lower().replace("_", "-")
    matches = get_close_matches(name, list(names), n=3, cutoff=0.6)
    # Of equally near names the one with the same letters: sgpa for sgap, and not sngp.
    return max(matches, key=lambda match: sorted(match) == sorted(name), default=None)


def unknown_name_message(kind: str, name: str, names: Iterable[str]) -> str:
    """Return the message on an unknown name, with the nearest known name, and others."""
    names = tuple(names)
    if not name:
        return f"{kind} must be named, one of {some_names(names)}"
    path = os.path.expanduser(name)  # raises nothing, as pathlib would
    prefix = FOLDER_PREFIX if os.path.isdir(path) else CSV_PREFIX if os.path.isfile(path) else ""
    prefix = SEQUENCES_PREFIX if path.endswith(".npz") and prefix else prefix
    nearest = f"{prefix}{name}" if f"{prefix}PATH" in names else nearest_name(name, names)
    hint = f"; did you mean {nearest!r}?" if nearest else ";"
    return f"unknown {kind} {name!r}{hint} known: {some_names(names)}"


def some_names(names: tuple[str, ...]) -> str:
    """Return names in a list, of very many the first."""
    listed = ", ".join(names[:_MOST_NAMES])
    return listed if len(names) <= _MOST_NAMES else f"{listed}, … ({len(names)} in all)"


def user_path(name: str) -> Path | None:
    """Return the path behind ``folder:``, ``csv:`` or ``sequences:``, None for a known name."""
    prefix, colon, path = name.partition(":")
    if prefix + colon not in (FOLDER_PREFIX, CSV_PREFIX, SEQUENCES_PREFIX):
        return None
    if not path:
        raise DataError(f"data set {name!r} needs a path after the colon")
    return Path(path).expanduser()


def data_folder(name: str, data_dir: Path | None) -> Path:
    """Return the folder of the standard sets; raise if it is None or no folder."""
    if data_dir is None:
        raise DataError(f"data set {name!r} is read from files: give their folder with --data-dir")
    if not data_dir.is_dir():
        raise DataError(f"data directory {data_dir} does not exist or is no directory")
    return data_dir


def data_kind(name: str) -> Literal["image", "text", "sequence"]:
    """Return whether a data set holds images, texts or sequences; raise if it is unknown."""
    user_path(name)
    if name in IMAGE_NAMES or name.startswith(FOLDER_PREFIX):
        return "image"
    if name in TEXT_NAMES or name.startswith(CSV_PREFIX):
        return "text"
    if name in SEQUENCE_NAMES or name.startswith(SEQUENCES_PREFIX):
        return "sequence"
    prefixes = (FOLDER_PREFIX, CSV_PREFIX, SEQUENCES_PREFIX)
    names = (*DATA_NAMES, *(f"{prefix}PATH" for prefix in prefixes))
    raise DataError(unknown_name_message("data set", name, names))


def check_generation_name(name: str) -> None:
    """Raise if a name is neither one of ``GENERATION_NAMES`` nor ``folder:PATH``."""
    user_path(name)
    if name not in GENERATION_NAMES and not name.startswith(FOLDER_PREFIX):
        names = (*GENERATION_NAMES, f"{FOLDER_PREFIX}PATH")
        raise DataError(unknown_name_message("data set for generation", name, names))


def tokenizer_choice(name: str) -> int | Path | None:
    """Return the tokenizer of a name: None for words, the size of byte pairs, or a path."""
    if name == WORDS:
        return None
    if name.startswith(BPE_PREFIX):
        size = name[len(BPE_PREFIX) :]
        if not (size.isascii() and size.isdigit()) or int(size) < _SMALLEST_BPE:
            raise DataError(
                f"tokenizer 'bpe:SIZE' needs a whole number of at least {_SMALLEST_BPE}, "
                f"got {size!r}"
            )
        return int(size)
    if name.endswith(".json"):
        return Path(name).expanduser()
    names = (WORDS, f"{BPE_PREFIX}SIZE", "PATH/tokenizer.json")
    raise DataError(unknown_name_message("tokenizer", name, names))
