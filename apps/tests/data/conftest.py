"""Real data beside the repository, and small files in the standard formats."""

from pathlib import Path

import pytest


def _find_shared_data() -> Path | None:
    for folder in Path(__file__).resolve().parents:
        if (folder / "uv.lock").is_file():
            data = folder.parent / "shared" / "data"
            return data if data.is_dir() else None
    return None


@pytest.fixture(scope="session")
def shared_data() -> Path:
    found = _find_shared_data()
    if found is None:
        pytest.skip("no folder shared/data beside the repository")
    return found


@pytest.fixture(scope="session")
def natural_images(shared_data: Path):
    """100 test images of CIFAR-10 as bytes (N, 3, 32, 32)."""
    pytest.importorskip("pyarrow")
    import io

    import numpy as np
    import pyarrow.parquet as pq
    import torch
    from PIL import Image

    table = pq.read_table(shared_data / "cifar10" / "test.parquet").slice(0, 100)
    cells = table["image"].to_pylist()
    pixels = [np.asarray(Image.open(io.BytesIO(cell["bytes"])).convert("RGB")) for cell in cells]
    return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous()
