"""Files of precomputed contextual embeddings, and the data sets that take them."""

import hashlib

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from probseq_apps.data import embeddings
from probseq_apps.data.embeddings import read_embeddings, write_embeddings
from probseq_apps.data.names import DataError
from probseq_apps.data.sets import load_data

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
    data, cut = (load_data(name, embeddings=path, max_length=n) for n in (None, 3))
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
    first = load_data(name, embeddings=store(tmp_path / "mine.safetensors"))
    exact = first.padded(first.train.inputs)
    (tmp_path / "parts").mkdir()
    for number, texts in enumerate((TEXTS[::-1][:15], TEXTS)):
        store(tmp_path / "parts" / f"{number}.safetensors", texts)
    for dtype, digits in ((torch.float16, 11), (torch.bfloat16, 8)):
        half = load_data(name, embeddings=store(tmp_path / "half.safetensors", dtype=dtype))
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
        other = load_data(name, embeddings=path)
        assert torch.equal(other.padded(other.train.inputs), exact)


def test_texts_and_files_that_are_missing_or_differ_in_width_are_named(name, tmp_path):
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "no.safetensors", tmp_path / "empty"):
        with pytest.raises(DataError, match=rf"{path.name} holds no embeddings"):
            load_data(name, embeddings=path)
    with pytest.raises(DataError, match=r"few\.safetensors has no embeddings for \d+ of \d+ texts"):
        load_data(name, embeddings=store(tmp_path / "few.safetensors", TEXTS[3:]))
    write_embeddings(tmp_path / "wide.safetensors", ["a"], [torch.ones(2, WIDTH + 1)])
    with pytest.raises(DataError, match=r"wide\.safetensors has vectors of width 5.* of 4"):
        read_embeddings(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embeddings": torch.tensor([1.0, torch.nan, 1.0])[:, None]}, "row 1 .* NaN or infinity"),
        ({"embeddings": torch.tensor([1.0, 0.0, 1.0])[:, None]}, "row 1 .* zeros alone"),
        ({"embeddings": torch.ones(3, 2).double()}, r"it has torch\.float64"),
        ({"lengths": torch.tensor([1, 3])}, "lengths that sum to 4"),
        ({"lengths": torch.tensor([0, 3])}, "positive lengths"),
        ({"texts": torch.zeros(2, 32)}, r"torch\.float32 of shape \(2, 32\)"),
        ({"lengths": None}, "does not contain tensor lengths"),
        ({}, "cannot be read"),
    ],
)
def test_damaged_files_are_named(tmp_path, change, message):
    path = tmp_path / "bad.safetensors"
    good = {
        "embeddings": torch.ones(3, WIDTH),
        "lengths": torch.tensor([1, 2]),
        "texts": torch.zeros(2, 32, dtype=torch.uint8),
    }
    save_file({key: x for key, x in (good | change).items() if x is not None}, path)
    if not change:
        path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DataError, match=rf"bad\.safetensors.*{message}"):
        read_embeddings(path)


@pytest.mark.parametrize(
    ("texts", "vectors", "message"),
    [
        (["a", "b"], [torch.ones(1, 2)], "no more embeddings after 1"),
        (["a"], [torch.ones(1, 2)] * 2, "no more texts after 1"),
        (["a", "b"], [torch.ones(1, 2), torch.ones(1, 3)], "must be of width 2 .* got 3"),
        (["a"], [torch.ones(10, 2) / torch.arange(9, -1, -1)[:, None]], "row 9 .* has NaN"),
        (["a"], [torch.full((1, 2), 1e6)], r"torch\.float16\) has NaN or infinity"),
        (["a"], [torch.zeros(3, 2)], "none but zeros"),
        (["a"], [torch.ones(2, 2, dtype=torch.int64)], r"must be floating .* torch\.int64"),
        ([], [], "no texts to write"),
    ],
)
def test_embeddings_that_make_no_sense_are_not_written(
    tmp_path, monkeypatch, texts, vectors, message
):
    monkeypatch.setattr(embeddings, "_ROWS_AT_ONCE", 4)
    with pytest.raises(DataError, match=message):
        write_embeddings(tmp_path / "a.safetensors", texts, vectors)
    with pytest.raises(DataError, match=r"named \*\.safetensors, got"):
        write_embeddings(tmp_path / "a.npz", texts, vectors)
    assert not list(tmp_path.iterdir())
