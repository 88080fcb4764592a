"""Data sets that take precomputed contextual embeddings."""

import hashlib

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

from probseq_apps.data.embeddings import write_embeddings
from probseq_apps.data.sets import load_data
from probseq_apps.data.settings import DataSettings

WIDTH = 4
TEXTS = ["word " * (row % 5) + f"naïve {row}" for row in range(40)]


def vectors_of(text):
    """What a model would say of a text: a vector a word, which depends on all words."""
    seed = int.from_bytes(hashlib.md5(text.encode()).digest()[:6], "big")
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(text.split()), WIDTH, generator=generator)


def store(path, texts=TEXTS, dtype=torch.float32):
    write_embeddings(path, texts, map(vectors_of, texts), dtype=dtype)
    return path


@pytest.fixture
def name(put):
    """A data set of one's own."""
    rows = "".join(f'"{text}",{row % 2}\n' for row, text in enumerate(TEXTS))
    path = put("a.csv", "text,label\n" + rows)
    return f"csv:{path}"


def test_each_text_of_each_part_gets_its_own_vectors_and_label(name, tmp_path):
    path = store(tmp_path / "mine.safetensors")
    data, cut = (
        load_data(name, DataSettings(embeddings=str(path)), max_length=n) for n in (None, 3)
    )
    assert (data.input_dim, data.max_length, cut.max_length) == (WIDTH, 256, 3)
    seen = []
    for part, short in ((data.train, cut.train), (data.validation, cut.validation)):
        padded = data.padded(part.inputs)
        assert padded.shape[1] == part.inputs[:, 2].max()  # no further than the longest
        assert torch.equal(cut.padded(short.inputs), padded[:, :3])
        for vectors, span, label in zip(padded, part.inputs, part.targets.tolist(), strict=True):
            length = int(span[2])
            (row,) = [
                r for r, t in enumerate(TEXTS) if torch.equal(vectors_of(t), vectors[:length])
            ]
            assert row % 2 == label
            assert not vectors[length:].any()
            seen.append(row)
    assert len(set(seen)) == len(seen) == 36


def test_order_repeats_files_padding_and_precision_do_not_matter(name, tmp_path):
    first = load_data(name, DataSettings(embeddings=str(store(tmp_path / "mine.safetensors"))))
    exact = first.padded(first.train.inputs)
    (tmp_path / "parts").mkdir()
    for number, texts in enumerate((TEXTS[::-1][:15], TEXTS)):
        store(tmp_path / "parts" / f"{number}.safetensors", texts)
    for dtype, digits in ((torch.float16, 11), (torch.bfloat16, 8)):
        half = load_data(
            name, DataSettings(embeddings=str(store(tmp_path / "half.safetensors", dtype=dtype)))
        )
        # Rounding to a mantissa of so many binary digits; the vectors are left on disk.
        assert half.tables[0].dtype == dtype
        found = half.padded(half.train.inputs)
        assert_close(found, exact, rtol=2.0**-digits, atol=1e-7)
    padded = np.zeros((len(TEXTS), 9, WIDTH))
    for row, text in enumerate(TEXTS):
        padded[row, : len(text.split())] = vectors_of(text).numpy()
    whole = tmp_path / "padded.safetensors"
    write_embeddings(whole, TEXTS + TEXTS[:7], [*padded, *padded[:7]], dtype=torch.float32)
    assert len(load_file(whole)["lengths"]) == len(TEXTS)
    for path in (tmp_path / "parts", whole):
        other = load_data(name, DataSettings(embeddings=str(path)))
        assert torch.equal(other.padded(other.train.inputs), exact)


def test_texts_and_files_that_are_missing_are_named(name, tmp_path):
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "no.safetensors", tmp_path / "empty"):
        with pytest.raises(ValueError, match=rf"{path.name} holds no embeddings"):
            load_data(name, DataSettings(embeddings=str(path)))
    with pytest.raises(ValueError, match=r"few\.safetensors has no embeddings for 3 of \d+ texts"):
        load_data(
            name, DataSettings(embeddings=str(store(tmp_path / "few.safetensors", TEXTS[3:])))
        )
