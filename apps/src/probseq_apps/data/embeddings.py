"""Precomputed contextual embeddings, such as ELMo's: one vector a token of each text.

A file ``.npz``, as ``numpy.savez`` writes it, has

- ``texts`` (N,): the texts,
- ``lengths`` (N,): number of vectors of each text,
- ``embeddings`` (R, E): the vectors of all texts, one after the other; R is the sum of the lengths.

A text finds its vectors by itself: a file serves every split and seed, in any order of its texts.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from probseq_apps.data.names import DataError, reading


class EmbeddingStore(NamedTuple):
    """The vectors of many texts."""

    vectors: Tensor  # (R, E)
    rows: dict[str, tuple[int, int]]  # of a text: its first row, and their number
    source: Path  # for messages

    def spans(self, texts: Sequence[str], max_length: int) -> Int64[Tensor, "n 2"]:
        """Return (start, length) of the vectors of texts, cut off at ``max_length``."""
        if missing := [text for text in texts if text not in self.rows]:
            raise DataError(
                f"{self.source} has no embeddings for {len(missing)} of {len(texts)} texts, the "
                f"first is {missing[0][:60]!r}: write them for the very texts of the data set"
            )
        spans = [(start, min(n, max_length)) for start, n in (self.rows[t] for t in texts)]
        return torch.tensor(spans, dtype=torch.int64).reshape(-1, 2)


def read_embeddings(path: Path) -> EmbeddingStore:
    """Read a file of embeddings; raise if it is damaged, or vectors are not finite or zero."""
    with (
        reading(path, "embeddings, an .npz of texts (N,), lengths (N,) and embeddings (R, E)"),
        path.open("rb") as file,
        np.load(file, allow_pickle=False) as arrays,
    ):
        texts, lengths, vectors = (arrays[name] for name in ("texts", "lengths", "embeddings"))
        if vectors.ndim != 2 or vectors.dtype.kind != "f" or texts.dtype.kind != "U":
            raise ValueError(
                f"texts are {texts.dtype}, embeddings {vectors.dtype} of shape {vectors.shape}"
            )
        if not len(texts) == len(lengths) > 0 or lengths.min() < 1 or lengths.sum() != len(vectors):
            raise ValueError(
                f"{len(texts)} texts have {len(lengths)} lengths, which must be positive and sum "
                f"to {len(vectors)} vectors"
            )
        # Zeros would be padding.
        wrong = ~np.isfinite(vectors).all(1) | (vectors == 0).all(1)
        if wrong.any():
            raise ValueError(f"row {int(wrong.argmax())} has NaN or infinity, or zeros alone")
    starts = np.cumsum(lengths) - lengths
    spans = zip(starts.tolist(), lengths.tolist(), strict=True)
    return EmbeddingStore(
        torch.from_numpy(vectors), dict(zip(texts.tolist(), spans, strict=True)), path
    )
