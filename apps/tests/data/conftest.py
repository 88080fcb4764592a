"""What several tests write."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def put(tmp_path):
    """Write a file below the test's folder, whose folders are made."""

    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.fixture
def save(tmp_path):
    """Write an image below the test's folder, of random pixels or of one value."""

    def write(name, *, size=(8, 8), mode="RGB", value=None, seed=0):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shape = (size[1], size[0]) if mode == "L" else (size[1], size[0], 3)
        pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
        if value is not None:
            pixels[:] = value
        Image.fromarray(pixels).save(path)
        return pixels

    return write
