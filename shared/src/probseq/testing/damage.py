"""Damage to files, which readers must refuse."""

import random
from collections.abc import Iterator
from pathlib import Path


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
