"""Live streams without torch: their state files, and the marks of their lines."""

from pathlib import Path
from typing import Any

from probseq.files import Format, unpack_head

FORMAT = Format("state of a live stream", 13)
# Of streams, if not told: quiet lines that are outliers, first lines, and stamps to forecast.
FALSE_ALARMS, WARMUP, HORIZON = 0.002, 20, 1


def saved_settings(path: Path) -> dict[str, Any] | None:
    """Return the settings of the model in a state file; None if there is no file.

    Raises:
        ValueError: the file is no such state, damaged, or from another version.
        OSError: it cannot be read.
    """
    state = read_state(path)
    return None if state is None else unpack_head(state, FORMAT, str(path))["model"]


def read_state(path: Path) -> bytes | None:
    """Return the bytes of a state file; None if there is no file.

    Raises:
        OSError: it cannot be read.
    """
    try:
        return path.read_bytes() if path.exists() else None
    except OSError as error:
        raise OSError(f"{path} cannot be read: {error.strerror}") from error


def check_marks(separator: str, decimal: str) -> None:
    """Refuse marks of lines that could be in their cells.

    Raises:
        ValueError: no single mark, one of numbers and dates, or both the same.
    """
    if decimal not in (".", ","):
        raise ValueError(f"decimal must be '.' or ',', got {decimal!r}")
    if len(separator) != 1 or separator.isalnum() or separator in " .+-:#" or separator == decimal:
        raise ValueError(
            "separator must be one mark that is in no number or date, such as ',', ';' or a tab, "
            f"and not the decimal one, got {separator!r}"
        )
