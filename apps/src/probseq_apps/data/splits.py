"""Fixed splits: which rows are for training, validation and test.

The permutations come from torch's CPU generator with a seed of their own, so the same rows are held
out in every run and on every machine.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Int64
from torch import Tensor

from probseq_apps.data.errors import DataError

SPLIT_SEED = 0
MAX_VALIDATION = 5_000


def permutation(size: int, seed: int) -> Int64[Tensor, " n"]:
    """Return a random order of ``size`` rows that depends on the seed alone."""
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed))


def hold_out_validation(size: int) -> tuple[Int64[Tensor, " a"], Int64[Tensor, " b"]]:
    """Split training rows into training and validation: 10%, at most 5,000 rows, are held out.

    CIFAR's 50,000 training images become 45,000 and 5,000 (thesis, app. B.4).

    Returns:
        Row numbers for training and for validation, each in rising order.
    """
    order = permutation(size, SPLIT_SEED)
    held = min(MAX_VALIDATION, size // 10)
    return order[held:].sort().values, order[:held].sort().values


def stratified(
    labels: Int64[Tensor, " n"], fractions: tuple[float, float], class_names: Sequence[str]
) -> tuple[Int64[Tensor, " a"], Int64[Tensor, " b"], Int64[Tensor, " c"]]:
    """Split rows into three parts with the same share of each class in each part.

    Args:
        labels: class numbers of all rows.
        fractions: shares of validation and test; the rest is for training.
        class_names: used in the message about a class with too few rows.

    Returns:
        Row numbers for training, validation and test, each in rising order.

    Raises:
        DataError: a class has fewer than three rows, too few for three parts.
    """
    order = permutation(len(labels), SPLIT_SEED)
    parts: tuple[list[Tensor], ...] = ([], [], [])
    for number, name in enumerate(class_names):
        rows = order[labels[order] == number]
        if len(rows) < 3:
            raise DataError(
                f"class {name!r} has {len(rows)} rows, but a split into training, validation and "
                "test needs at least 3: add rows or leave the class out"
            )
        held = [max(1, round(fraction * len(rows))) for fraction in fractions]
        pieces = rows.split([len(rows) - sum(held), *held])
        for part, piece in zip(parts, pieces, strict=True):
            part.append(piece)
    train, validation, test = (torch.cat(part).sort().values for part in parts)
    return train, validation, test
