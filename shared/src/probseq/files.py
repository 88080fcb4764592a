"""Files that no crash tears: written aside, forced onto the disk, renamed into place."""

import hashlib
import os
from pathlib import Path


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file at once, or leave what is there."""
    temporary = path.with_name(f".tmp-{path.name}")
    try:
        temporary.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        sync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


def sync(path: Path) -> None:
    """Force a file, or a folder's list of names, onto the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
