"""Live streams without torch: what their state files tell, and the marks of their lines."""

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

SCHEMA = "probseq-online-live-7"
_LARGEST_HEADER = 1 << 24


def saved_settings(path: Path) -> dict[str, Any] | None:
    """Return the settings of the model in a state file; None if there is no file.

    Raises:
        ValueError: the file is no such state, damaged, or from another version.
        OSError: it cannot be read.
    """
    facts = read_facts(path)
    return None if facts is None else dict(json.loads(facts["model"]))


def read_facts(path: Path) -> dict[str, str] | None:
    """Return the text that a state file holds beside its tensors; None if there is no file.

    Raises:
        ValueError: the file is no such state, damaged, or from another version.
        OSError: it cannot be read.
    """
    # A safetensors file begins with the length of a JSON header.
    try:
        if not path.exists():
            return None
        with path.open("rb") as file:
            start = file.read(8)
            size = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
            header = file.read(size) if size <= _LARGEST_HEADER else b""
    except OSError as error:
        raise OSError(f"{path} cannot be read: {error.strerror}") from error
    return parse_facts(start + header, str(path))


def parse_facts(state: bytes, source: str) -> dict[str, str]:
    """Return the text that the bytes of a state file hold beside its tensors.

    Args:
        state: the bytes, those of the tensors may be left out.
        source: what they are, for errors.

    Raises:
        ValueError: they are no such state, damaged, or from another version.
    """
    try:
        (size,) = struct.unpack("<Q", state[:8])
        facts = json.loads(state[8 : 8 + size])["__metadata__"]
        schema, sha256 = facts["schema"], facts["sha256"]
        damaged = schema == SCHEMA and sha256 != checksum(facts["model"], facts["position"])
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{source} is no state of a live stream, or damaged") from error
    if schema != SCHEMA:
        raise ValueError(f"{source} is from another version: {schema!r} instead of {SCHEMA!r}")
    if damaged:
        raise ValueError(f"{source} is damaged: its checksum is another")
    return facts


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


def checksum(model: str, position: str) -> str:
    """Return SHA-256 over the text that a state file holds; its tensors have another checksum."""
    return hashlib.sha256(f"{model}\n{position}".encode()).hexdigest()
