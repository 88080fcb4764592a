"""Pictures that say whether samples are copies, and what lies between them."""

from pathlib import Path

from jaxtyping import UInt8
from torch import Tensor

from pseudovideo.beyond.reference import Copies
from pseudovideo.pixels import to_unit
from pseudovideo.plots.images import save_rows


def save_copies(
    copies: Copies,
    samples: UInt8[Tensor, "n c h w"],
    train: UInt8[Tensor, "m c h w"],
    file: Path | str,
    *,
    features: str,
    title: str,
) -> Path:
    """Write samples above the training images that are nearest to them, as PNG.

    Args:
        copies: of `Reference.copies`.
        samples: all samples, bytes.
        train: all training images, bytes.
        file: the file; its folder is made.
        features: name of the extractor.
        title: stands above all.
    """
    rows = [samples[copies.samples], train[copies.by_pixels], train[copies.by_features]]
    labels = ["sample", "nearest training image by pixels", f"nearest by {features}"]
    return save_rows(labels, [to_unit(row) for row in rows], file, title=title)


def save_between(rows: UInt8[Tensor, "n k c h w"], file: Path | str, *, title: str) -> Path:
    """Write images between pairs of samples, a row for each pair, as PNG.

    Args:
        rows: of `interpolate`, bytes.
        file: the file; its folder is made.
        title: stands above all.
    """
    labels = [f"pair {number + 1}" for number in range(len(rows))]
    heads = ["sample", *[""] * (rows.shape[1] - 2), "sample"]
    return save_rows(labels, [to_unit(row) for row in rows], file, heads, title=title)
