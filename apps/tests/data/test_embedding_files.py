"""Files of precomputed contextual embeddings."""

import pytest
import torch

from probseq_apps.data import embeddings
from probseq_apps.data.embeddings import read_embeddings, write_embeddings

safetensors = pytest.importorskip("safetensors.torch")
WIDTH = 4


def test_each_text_finds_its_vectors_in_any_file_of_a_folder_cut_off_and_without_padding(tmp_path):
    texts = ["naïve", "one two", "", "one two three", "one two"]
    vectors = [torch.randn(n, WIDTH) for n in (1, 2, 1, 3)]
    padded = [torch.cat([rows, torch.zeros(2, WIDTH)]).numpy() for rows in vectors]
    write_embeddings(tmp_path / "a.safetensors", texts[:2], padded[:2], dtype=torch.float32)
    more = texts[2:], [*vectors[2:], vectors[1]]
    write_embeddings(tmp_path / "b.safetensors", *more, dtype=torch.float32)
    store = read_embeddings(tmp_path)
    assert [len(table) for table in store.tables] == [3, 6]
    for text, rows in zip(texts, vectors, strict=False):
        ((table, start, length),) = store.spans([text], max_length=9).tolist()
        assert torch.equal(store.tables[table][start : start + length], rows)
    assert store.spans(texts, max_length=2)[:, 2].tolist() == [1, 2, 1, 2, 2]
    with pytest.raises(ValueError, match="has no embeddings for 1 of 2 texts, the first is 'two'"):
        store.spans(["naïve", "two"], max_length=2)


def test_files_that_are_missing_or_differ_in_width_are_named(tmp_path):
    with pytest.raises(ValueError, match="holds no embeddings: expected a file"):
        read_embeddings(tmp_path)
    for name, width in (("narrow", WIDTH), ("wide", WIDTH + 1)):
        write_embeddings(tmp_path / f"{name}.safetensors", ["a"], [torch.ones(2, width)])
    with pytest.raises(ValueError, match=r"wide\.safetensors has vectors of width 5.* of 4"):
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
    safetensors.save_file({key: x for key, x in (good | change).items() if x is not None}, path)
    if not change:
        path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match=rf"bad\.safetensors.*{message}"):
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
    with pytest.raises(ValueError, match=message):
        write_embeddings(tmp_path / "a.safetensors", texts, vectors)
    with pytest.raises(ValueError, match=r"named \*\.safetensors, got"):
        write_embeddings(tmp_path / "a.npz", texts, vectors)
    assert not list(tmp_path.iterdir())
