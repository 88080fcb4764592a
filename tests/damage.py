"""Damage to files, which readers must refuse, and disks that are full."""

import random
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path


class Planted:
    """What a pickle from a stranger may hold: read, it opens a file to write."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return open, (str(self.file), "w")


def flipped_bits(file: Path, count: int) -> Iterator[int]:
    """Flip bits of a file, one at a time, at most `count` and all of a short file; yield each."""
    content = file.read_bytes()
    bits = range(8 * len(content))
    for bit in bits if len(bits) <= count else random.Random(0).sample(bits, count):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        yield bit
    file.write_bytes(content)


@contextmanager
def full_disk(size: int = 0) -> Generator[None]:
    """Let no file of this process grow beyond a size in bytes, as a disk that is full."""
    import resource  # POSIX alone

    limits, silent = resource.getrlimit(resource.RLIMIT_FSIZE), sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # modules that are imported now would be cached cut off
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        sys.dont_write_bytecode = silent
