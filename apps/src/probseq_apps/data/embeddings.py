"""Files of precomputed contextual embeddings, such as ELMo's: one vector a token of each text.

`probseq.transformers.SequenceTransformer` takes such vectors, and `probseq classify` such files. A
file is in the safetensors format (extra ``embeddings``), plain arrays that are read memory-mapped:

- ``embeddings`` (R, E): the vectors of all texts, one after the other, without padding; float16,
  bfloat16 or float32.
- ``lengths`` (N,), int64: number of vectors of each text; they sum to R.
- ``texts`` (N, 32), uint8: SHA-256 of each text in UTF-8.

A text finds its vectors by its hash. So a file serves every split and seed, wrong or changed texts
are noticed, and the order of the texts is free. A folder of such files is read as one.
"""

import hashlib
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
"""The dtypes in which vectors may be stored."""
_ROWS_AT_ONCE = 16_384


class EmbeddingStore(NamedTuple):
    """The vectors of many texts, left on disk until they are used."""

    tables: tuple[Tensor, ...]  # vectors (R, E) of each file
    places: dict[bytes, tuple[int, int, int]]  # of a text, by its hash: table, first row, rows
    source: Path  # file or folder, for messages

    def spans(self, texts: Sequence[str], max_length: int) -> Int64[Tensor, "n 3"]:
        """Return (table, start, length) of the vectors of texts, cut off at ``max_length``."""
        if missing := [text for text in texts if _hash(text) not in self.places]:
            raise ValueError(
                f"{self.source} has no embeddings for {len(missing)} of {len(texts)} texts, the "
                f"first is {missing[0][:60]!r}: write them for the very texts of the data set"
            )
        places = [self.places[_hash(text)] for text in texts]
        rows = [(table, start, min(length, max_length)) for table, start, length in places]
        return torch.tensor(rows, dtype=torch.int64).reshape(-1, 3)


def write_embeddings(
    path: Path,
    texts: Iterable[str],
    embeddings: Iterable[Tensor | NDArray[np.floating]],
    *,
    dtype: torch.dtype = torch.float16,
) -> None:
    """Write the contextual embeddings of texts to a file.

    Split what doesn't fit into memory over several files in one folder.

    Args:
        path: file to write; its name ends in ``.safetensors``.
        texts: the texts; one given twice is stored once.
        embeddings: for each text its vectors (tokens, E); rows of zeros at the end are padding and
            dropped, so (N, T, E) in one piece will do as well.
        dtype: of the stored vectors: float16, bfloat16 or float32.

    Raises:
        ValueError: texts and embeddings are not equally many, a text has no vector, or vectors are
            of different widths, not finite, or zero.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "mine.safetensors"
        ...     write_embeddings(path, ["a text", "another one"], [torch.ones(2, 4)] * 2)
        ...     store = read_embeddings(path)
        >>> store.spans(["another one"], max_length=10).tolist()
        [[0, 2, 2]]
    """
    if dtype not in DTYPES or path.suffix != ".safetensors":
        raise ValueError(
            f"embeddings are stored as {', '.join(map(str, DTYPES))} in a file named "
            f"*.safetensors, got {dtype} and {path.name!r}"
        )
    pieces: dict[bytes, Tensor] = {}
    for row, (text, vectors) in enumerate(zip_longest(texts, embeddings)):
        if text is None or vectors is None:
            raise ValueError(
                "there must be as many texts as embeddings, but there are no more "
                f"{'texts' if text is None else 'embeddings'} after {row}"
            )
        piece = _stripped(torch.as_tensor(vectors), dtype, f"embedding {row}")
        if pieces and piece.shape[1] != (width := next(iter(pieces.values())).shape[1]):
            raise ValueError(
                f"embedding {row} must be of width {width} as those before it, got {piece.shape[1]}"
            )
        pieces.setdefault(_hash(text), piece)
    if not pieces:
        raise ValueError(f"there are no texts to write to {path}")
    hashes = np.frombuffer(b"".join(pieces), dtype=np.uint8).reshape(-1, 32)
    temporary = path.with_name(f".tmp-{path.name}")
    save_file(
        {
            "embeddings": torch.cat(list(pieces.values())),
            "lengths": torch.tensor([len(piece) for piece in pieces.values()]),
            "texts": torch.from_numpy(hashes.copy()),
        },
        temporary,
    )
    temporary.replace(path)


def read_embeddings(path: Path) -> EmbeddingStore:
    """Open a file that ``write_embeddings`` wrote, or a folder of them."""
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        raise ValueError(f"{path} holds no embeddings: expected a file *.safetensors or a folder")
    tables: list[Tensor] = []
    places: dict[bytes, tuple[int, int, int]] = {}
    for number, file in enumerate(files):
        table, lengths, hashes = _read_file(file)
        if tables and table.shape[1] != tables[0].shape[1]:
            raise ValueError(
                f"{file} has vectors of width {table.shape[1]}, but {files[0]} of "
                f"{tables[0].shape[1]}"
            )
        tables.append(table)
        starts = (lengths.cumsum(0) - lengths).tolist()
        for key, start, length in zip(hashes, starts, lengths.tolist(), strict=True):
            places.setdefault(key, (number, start, length))
    return EmbeddingStore(tuple(tables), places, path)


def _read_file(path: Path) -> tuple[Tensor, Tensor, list[bytes]]:
    try:
        with safe_open(path, framework="pt") as file:
            names = ("embeddings", "lengths", "texts")
            table, lengths, texts = (file.get_tensor(name) for name in names)  # memory-mapped
        fit = (
            table.ndim == 2
            and table.dtype in DTYPES
            and (lengths.ndim, lengths.dtype) == (1, torch.int64)
            and (texts.shape, texts.dtype) == ((len(lengths), 32), torch.uint8)
        )
        if not fit or len(lengths) == 0 or lengths.min() < 1 or lengths.sum() != len(table):
            actual = ", ".join(
                f"{t.dtype} of shape {tuple(t.shape)}" for t in (table, lengths, texts)
            )
            raise ValueError(
                "it must have embeddings (R, E), positive lengths (N,) that sum to R, and texts "
                f"(N, 32), as write_embeddings stores them; it has {actual}, and lengths that sum "
                f"to {int(lengths.sum())}"
            )
    except (SafetensorError, OSError, ValueError) as error:
        raise ValueError(
            f"{path} cannot be read as a safetensors file of embeddings: {error}"
        ) from error
    _check_vectors(table, str(path))
    return table, lengths, [row.tobytes() for row in texts.numpy()]


def _stripped(vectors: Tensor, dtype: torch.dtype, source: str) -> Tensor:
    """Return vectors as they are stored, without the padding at their end."""
    if vectors.ndim != 2 or not vectors.is_floating_point():
        raise ValueError(
            f"{source} must be floating (tokens, width), got {vectors.dtype} of shape "
            f"{tuple(vectors.shape)}"
        )
    stored = vectors.detach().to("cpu", dtype)
    real = (stored != 0).any(1).nonzero()
    if len(real) == 0:
        raise ValueError(f"{source} must have at least one vector, got none but zeros")
    stored = stored[: int(real[-1]) + 1]
    _check_vectors(stored, source)
    return stored.contiguous()


def _check_vectors(table: Tensor, source: str) -> None:
    for first, rows in enumerate(table.split(_ROWS_AT_ONCE)):
        for wrong, fault in (
            (~rows.isfinite().all(1), "NaN or infinity"),
            ((rows == 0).all(1), "zeros alone, which would be padding"),
        ):
            if wrong.any():
                row = first * _ROWS_AT_ONCE + int(wrong.nonzero()[0])
                place = f"row {row} of the embeddings ({table.dtype})"
                raise ValueError(f"{source}: {place} has {fault}")


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
