"""Writing files so that a crash leaves the old state or the new one, never a torn one."""

import hashlib
import os
from pathlib import Path


def sync(path: Path) -> None:
    """Force a file, or a folder's list of names, onto the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replace a file at once: temporary sibling, fsync, rename, fsync of the folder.

    Args:
        path: the file.
        content: text to be stored in UTF-8, or bytes.
    """
    temporary = path.with_name(f".tmp-{path.name}")
    temporary.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    sync(temporary)
    temporary.replace(path)
    sync(path.parent)


def sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
