"""Data sets that take precomputed contextual embeddings."""

import hashlib
import re

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from probseq_apps.data.embeddings import read_embeddings
from probseq_apps.data.sets import load_data
from probseq_apps.data.settings import DataSettings

WIDTH = 4
TEXTS = ["word " * (row % 5) + f"naïve {row}" for row in range(40)]


def vectors_of(text):
    """The vectors of a model for a text: one a word, each depends on all words."""
    seed = int.from_bytes(hashlib.md5(text.encode()).digest()[:6], "big")
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(text.split()), WIDTH, generator=generator)


def store(path, texts=TEXTS, dtype=np.float32):
    vectors = [vectors_of(text).numpy().astype(dtype) for text in texts]
    lengths = [len(rows) for rows in vectors]
    np.savez(path, texts=list(texts), lengths=lengths, embeddings=np.concatenate(vectors))
    return path


@pytest.fixture
def name(put):
    """A data set of one's own."""
    rows = "".join(f'"{text}",{row % 2}\n' for row, text in enumerate(TEXTS))
    path = put("a.csv", "text,label\n" + rows)
    return f"csv:{path}"


def test_each_text_of_each_part_gets_its_own_vectors_and_label(name, tmp_path):
    path = store(tmp_path / "mine.npz")
    data, cut = (
        load_data(name, DataSettings(embeddings=str(path)), max_length=n) for n in (None, 3)
    )
    assert (data.input_dim, data.max_length, cut.max_length) == (WIDTH, 256, 3)
    seen = []
    for part, short in ((data.train, cut.train), (data.validation, cut.validation)):
        padded = data.padded(part.inputs)
        assert padded.shape[1] == part.inputs[:, 1].max()  # no further than the longest
        assert torch.equal(cut.padded(short.inputs), padded[:, :3])
        for vectors, span, label in zip(padded, part.inputs, part.targets.tolist(), strict=True):
            length = int(span[1])
            (row,) = [
                r for r, t in enumerate(TEXTS) if torch.equal(vectors_of(t), vectors[:length])
            ]
            assert row % 2 == label
            assert not vectors[length:].any()
            seen.append(row)
    assert len(set(seen)) == len(seen) == 36


def test_the_order_of_the_texts_and_half_precision_do_not_matter(name, tmp_path):
    first = load_data(name, DataSettings(embeddings=str(store(tmp_path / "mine.npz"))))
    exact = first.padded(first.train.inputs)
    turned = store(tmp_path / "turned.npz", TEXTS[::-1], np.float16)
    half = load_data(name, DataSettings(embeddings=str(turned)))
    # Rounding to a mantissa of 11 binary digits.
    assert_close(half.padded(half.train.inputs), exact, rtol=2.0**-11, atol=1e-7)


def test_texts_that_are_missing_are_named(name, tmp_path):
    few = store(tmp_path / "few.npz", TEXTS[3:])
    with pytest.raises(ValueError, match=r"few\.npz has no embeddings for 3 of \d+ texts"):
        load_data(name, DataSettings(embeddings=str(few)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embeddings": [[1.0], [0.0], [1.0]]}, "row 1 has NaN or infinity, or zeros alone"),
        ({"embeddings": np.ones((3, 2), int)}, "embeddings int64"),
        ({"lengths": [1, 3]}, "sum to 3 vectors"),
        ({"lengths": [0, 3]}, "must be positive"),
        ({"texts": np.array([object()])}, "pickle"),
        ({"lengths": None}, "lengths"),
        ({}, ""),
    ],
)
def test_damaged_files_are_named(tmp_path, change, message):
    path = tmp_path / "bad.npz"
    good = {"embeddings": np.ones((3, WIDTH)), "lengths": [1, 2], "texts": ["a", "b"]}
    np.savez(path, **{key: x for key, x in (good | change).items() if x is not None})
    if not change:
        path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match=rf"bad\.npz cannot be read as embeddings.*{message}"):
        read_embeddings(path)
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / "none.npz"))):
        read_embeddings(tmp_path / "none.npz")
