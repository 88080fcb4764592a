"""Load a data set by its name."""

from pathlib import Path

from probseq_apps.data.containers import ImageData, ImageSplit, TextData, TextSplit
from probseq_apps.data.digits import digits
from probseq_apps.data.errors import DataError
from probseq_apps.data.names import data_kind

__all__ = ["ImageData", "ImageSplit", "TextData", "TextSplit", "load_data"]


def load_data(
    name: str,
    *,
    data_dir: Path | None = None,
    seed: int = 0,
    download: bool = False,
    max_length: int | None = None,
) -> ImageData | TextData:
    """Load a data set."""
    data_kind(name)
    if name == "digits":
        return digits()
    raise DataError(f"data set {name!r} cannot be read yet")
