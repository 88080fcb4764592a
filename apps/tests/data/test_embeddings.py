"""Files of precomputed contextual embeddings, and the data sets that take them."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from probseq_apps.data import embeddings
from probseq_apps.data.embeddings import read_embeddings, write_embeddings
from probseq_apps.data.names import DataError
from probseq_apps.data.sets import load_data, load_texts
from probseq_apps.data.texts import EmbeddedTextData

WIDTH = 4


def vectors_of(text):
    """What a model would say of a text: a vector a word, which depends on all words."""
    seed = int.from_bytes(hashlib.md5(text.encode()).digest()[:6], "big")
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(text.split()), WIDTH, generator=generator)


def write_csv(path, texts):
    rows = [f'"{text}",{row % 2}' for row, text in enumerate(texts)]
    path.write_text("text,label\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return f"csv:{path}"


TEXTS = ["word " * (row % 5) + f"naïve {row}" for row in range(40)]


@pytest.fixture
def own_texts(tmp_path):
    """A data set of one's own and a float32 file of its embeddings."""
    name = write_csv(tmp_path / "a.csv", TEXTS)
    path = tmp_path / "mine.safetensors"
    write_embeddings(path, TEXTS, map(vectors_of, TEXTS), dtype=torch.float32)
    return name, path


def test_each_text_of_each_part_gets_its_own_vectors(own_texts):
    name, path = own_texts
    data = load_data(name, embeddings=path)
    assert isinstance(data, EmbeddedTextData)
    assert data.input_dim == WIDTH
    assert data.max_length == 256
    # The words themselves say which text stands where.
    words = load_data(name)
    seen = 0
    for part, tokens in ((data.train, words.train), (data.validation, words.validation)):
        assert torch.equal(part.targets, tokens.targets)
    for part in (data.train, data.validation, data.test):
        padded = data.padded(part.inputs)
        for row in padded:
            length = int((row != 0).any(1).sum())
            matches = [t for t in TEXTS if torch.equal(vectors_of(t), row[:length])]
            assert len(matches) == 1
            assert not row[length:].any()
            seen += 1
    assert seen == len(TEXTS)


def test_texts_are_cut_off_at_the_longest_length(own_texts):
    name, path = own_texts
    data, cut = load_data(name, embeddings=path), load_data(name, embeddings=path, max_length=3)
    whole = data.padded(data.train.inputs)
    assert whole.shape[1] == 6
    assert cut.max_length == 3
    assert torch.equal(cut.padded(cut.train.inputs), whole[:, :3])


def test_the_order_of_the_file_and_repeats_do_not_matter(own_texts, tmp_path):
    name, path = own_texts
    texts = TEXTS[::-1] + TEXTS[:7]
    other = tmp_path / "other.safetensors"
    write_embeddings(other, texts, map(vectors_of, texts), dtype=torch.float32)
    assert len(load_file(other)["lengths"]) == len(TEXTS)
    first, second = (load_data(name, embeddings=file) for file in (path, other))
    assert torch.equal(first.padded(first.train.inputs), second.padded(second.train.inputs))


def test_a_folder_of_files_is_read_as_one(own_texts, tmp_path):
    name, path = own_texts
    folder = tmp_path / "parts"
    folder.mkdir()
    for number, texts in enumerate((TEXTS[:15], TEXTS[15:])):
        file = folder / f"{number}.safetensors"
        write_embeddings(file, texts, map(vectors_of, texts), dtype=torch.float32)
    one, many = (load_data(name, embeddings=where) for where in (path, folder))
    assert len(many.tables) == 2
    assert torch.equal(one.padded(one.train.inputs), many.padded(many.train.inputs))


@pytest.mark.parametrize(("dtype", "digits"), [(torch.float16, 11), (torch.bfloat16, 8)])
def test_half_precision_loses_no_more_than_its_digits(own_texts, tmp_path, dtype, digits):
    name, path = own_texts
    half = tmp_path / "half.safetensors"
    write_embeddings(half, TEXTS, map(vectors_of, TEXTS), dtype=dtype)
    exact, rounded = load_data(name, embeddings=path), load_data(name, embeddings=half)
    found = rounded.padded(rounded.train.inputs)
    assert found.dtype == torch.float32
    # Rounding to a mantissa of so many binary digits.
    assert_close(found, exact.padded(exact.train.inputs), rtol=2.0**-digits, atol=1e-7)


def test_a_padded_array_of_all_texts_can_be_written_in_one_piece(own_texts, tmp_path):
    _, path = own_texts
    padded = np.zeros((len(TEXTS), 9, WIDTH))
    for row, text in enumerate(TEXTS):
        padded[row, : len(text.split())] = vectors_of(text).numpy()
    other = tmp_path / "padded.safetensors"
    write_embeddings(other, TEXTS, padded, dtype=torch.float32)
    first, second = load_file(path), load_file(other)
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_texts_that_changed_since_are_noticed(own_texts, tmp_path):
    _, path = own_texts
    changed = [*TEXTS[:-3], *(text + "!" for text in TEXTS[-3:])]
    with pytest.raises(DataError, match=r"mine\.safetensors has no embeddings for \d of \d+ texts"):
        load_data(write_csv(tmp_path / "b.csv", changed), embeddings=path)


def test_the_texts_of_cola_serve_every_split_and_seed(shared_data, tmp_path):
    texts = load_texts("cola", data_dir=shared_data)
    path = tmp_path / "cola.safetensors"
    write_embeddings(path, texts, (torch.ones(len(text.split()), 2) for text in texts))
    for split, seed in (("thesis", 5), ("official", 0)):
        found, words = (
            load_data("cola", data_dir=shared_data, split=split, seed=seed, embeddings=file)
            for file in (path, None)
        )
        assert len(found.train) == len(words.train)
        assert torch.equal(found.test.targets, words.test.targets)
        assert found.extra_tests.keys() == words.extra_tests.keys()
        assert found.notes == words.notes
        assert found.validation.inputs.shape == (0, 3)
        assert found.train.inputs[:, 2].max() < 64  # no sentence is cut off


def anonymous_memory():
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    (line,) = [line for line in status.splitlines() if line.startswith("RssAnon")]
    return 1024 * int(line.split()[1])


def test_reading_leaves_the_vectors_on_disk(tmp_path):
    if not Path("/proc/self/status").exists():
        pytest.skip("needs Linux's account of memory")
    path = tmp_path / "big.safetensors"
    vectors = torch.ones(16_000, 1024, dtype=torch.float16)  # 31 MiB
    write_embeddings(path, ["text"], [vectors])
    read_embeddings(path)  # brings what is loaded once
    stores, growth = [], []
    for _ in range(3):
        before = anonymous_memory()
        stores.append(read_embeddings(path))
        assert torch.equal(stores[-1].tables[0][-1], vectors[0])
        growth.append(anonymous_memory() - before)
    # Other tests' threads allocate and free at times of their own: what reading takes, all three
    # take, for they are kept.
    assert min(growth) < vectors.nbytes / 4


def test_files_that_are_missing_are_named(own_texts, tmp_path):
    name, _ = own_texts
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "no.safetensors", tmp_path / "empty"):
        with pytest.raises(DataError, match=rf"{path.name} holds no embeddings"):
            load_data(name, embeddings=path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embeddings": torch.tensor([1.0, torch.nan, 1.0])[:, None]}, "row 1 .* NaN or infinity"),
        ({"embeddings": torch.tensor([1.0, 0.0, 1.0])[:, None]}, "row 1 .* zeros alone"),
        ({"embeddings": torch.ones(3)}, r"embeddings \(R, E\).* torch.float32 of shape \(3,\)"),
        ({"embeddings": torch.ones(3, 2).double()}, r"it has torch\.float64"),
        ({"lengths": torch.tensor([1, 3])}, "lengths that sum to 4"),
        ({"lengths": torch.tensor([0, 3])}, "positive lengths"),
        ({"lengths": torch.tensor([3])}, r"torch\.int64 of shape \(1,\)"),
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
    save_file({name: x for name, x in (good | change).items() if x is not None}, path)
    if not change:
        path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DataError, match=rf"bad\.safetensors.*{message}"):
        read_embeddings(path)


def test_a_bad_row_is_found_in_any_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr(embeddings, "_ROWS_AT_ONCE", 4)
    table = torch.ones(10, WIDTH)
    table[9, 2] = torch.inf
    with pytest.raises(DataError, match="row 9 of the embeddings"):
        write_embeddings(tmp_path / "a.safetensors", ["a"], [table])


def test_files_of_different_widths_do_not_go_together(tmp_path):
    for width in (3, 4):
        write_embeddings(tmp_path / f"{width}.safetensors", [f"a {width}"], [torch.ones(2, width)])
    with pytest.raises(DataError, match=r"4\.safetensors has vectors of width 4.* of 3"):
        read_embeddings(tmp_path)


@pytest.mark.parametrize(
    ("texts", "vectors", "message"),
    [
        (["a", "b"], [torch.ones(1, 2)], "no more embeddings after 1"),
        (["a"], [torch.ones(1, 2)] * 2, "no more texts after 1"),
        (["a", "b"], [torch.ones(1, 2), torch.ones(1, 3)], "must be of width 2 .* got 3"),
        (["a"], [torch.full((1, 2), torch.nan)], "embedding 0: row 0 .* has NaN"),
        (["a"], [torch.full((1, 2), 1e6)], r"torch\.float16\) has NaN or infinity"),
        (["a"], [torch.zeros(3, 2)], "none but zeros"),
        (["a"], [torch.tensor([[0.0], [1.0]])], "row 0 .* has zeros alone"),
        (["a"], [torch.ones(2)], r"must be floating \(tokens, width\)"),
        (["a"], [torch.ones(2, 2, dtype=torch.int64)], r"must be floating .* torch\.int64"),
        ([], [], "no texts to write"),
    ],
)
def test_embeddings_that_make_no_sense_are_not_written(tmp_path, texts, vectors, message):
    with pytest.raises(DataError, match=message):
        write_embeddings(tmp_path / "a.safetensors", texts, vectors)
    with pytest.raises(DataError, match=r"named \*\.safetensors, got"):
        write_embeddings(tmp_path / "a.npz", texts, vectors)
    assert not list(tmp_path.iterdir())
