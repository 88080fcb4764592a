"""Text sets: files, splits, and words as numbers."""

import pytest
import torch

from probseq_apps.data.names import DataError
from probseq_apps.data.sets import load_data
from probseq_apps.data.settings import DataSettings
from probseq_apps.data.texts import read_parts

COLA = ("in_domain_train", "in_domain_dev", "out_of_domain_dev")


def number_of(data, word):
    ((number,),) = data.vocab.encode_all([word], 1)
    return number


@pytest.fixture
def write_cola(put):
    def write(train, inside=("x y",), outside=("p q",), folder="."):
        for name, sentences in zip(COLA, (train, inside, outside), strict=True):
            lines = [f"src\t{number % 2}\t\t{text}\n" for number, text in enumerate(sentences)]
            put(f"{folder}/{name}.tsv", "".join(lines))

    return write


@pytest.mark.parametrize(
    ("split", "sizes"), [("thesis", (7262 - 18, 0, 1816)), ("official", (8551 - 18, 0, 1043))]
)
def test_the_splits_of_the_real_cola_have_their_sizes(shared_data, split, sizes):
    data = load_data("cola", DataSettings(split=split), data_dir=shared_data)
    parts = (data.train, data.validation, data.test)
    assert tuple(map(len, parts)) == sizes
    extra = {name: len(part) for name, part in data.extra_tests.items()}
    assert extra == {"out-of-domain": 516} | ({"in-domain": 527} if split == "official" else {})
    (note,) = data.notes
    assert note.startswith("cola: 18 texts dropped from training")
    assert data.train.inputs.shape[1] == data.max_length == 64
    assert int((data.train.inputs != 0).sum(1).max()) < 64  # none is cut off


def test_cola_is_split_reproducibly(write_cola, tmp_path):
    # Quotes are literal: read as quoting, they would swallow lines.
    write_cola([f'"word{i} word{i} word{i}' for i in range(40)], folder="cola")
    first, again = (load_data("cola", data_dir=tmp_path) for _ in range(2))
    assert torch.equal(first.train.inputs, again.train.inputs)
    assert torch.equal(first.test.targets, again.test.targets)


def test_repeats_and_the_vocabulary_never_cross_from_test_to_training(write_cola, tmp_path):
    train = ["a a b b", "same", "same", "p q"] * 4
    write_cola(train, inside=["zebra zebra zebra a"], outside=["p q"])
    data = load_data("cola", DataSettings(split="official"), data_dir=tmp_path)
    assert len(data.train) == 12
    assert "4 texts dropped" in data.notes[0]
    assert [number_of(data, word) for word in ("a", "b", "same", "zebra")] == [2, 3, 4, 1]
    assert data.extra_tests["in-domain"].inputs[0, :4].tolist() == [1, 1, 1, 2]


def test_imdb_is_read_from_its_published_folder(put, tmp_path):
    for part in ("train", "test"):
        for sentiment in ("neg", "pos"):
            for number in range(10):
                text = f"{part} {sentiment} {number}<br />a film"
                put(f"aclImdb/{part}/{sentiment}/{number}_1.txt", text)
    data = load_data("imdb", data_dir=tmp_path, max_length=8)
    assert (len(data.train), len(data.validation), len(data.test)) == (28, 4, 8)
    neg, pos = (number_of(data, word) for word in ("neg", "pos"))
    for part in (data.train, data.validation, data.test):
        assert torch.equal((part.inputs == pos).any(1).long(), part.targets)
        assert torch.equal((part.inputs == neg).any(1).long(), 1 - part.targets)
    official = load_data("imdb", DataSettings(split="official"), data_dir=tmp_path)
    assert (len(official.train), len(official.validation), len(official.test)) == (18, 2, 20)
    assert official.max_length == 512
    put("aclImdb/train/neg/0_1.txt", b"\xff")
    with pytest.raises(DataError, match=r"neg/0_1\.txt cannot be read as a text in UTF-8"):
        load_data("imdb", data_dir=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("split", "sizes"), [("thesis", (35_000, 5_000, 10_000)), ("official", (22_500, 2_500, 25_000))]
)
def test_the_splits_of_the_real_imdb_have_their_sizes_and_share_no_text(shared_data, split, sizes):
    pytest.importorskip("pyarrow")
    parts = read_parts("imdb", DataSettings(split=split), data_dir=shared_data)
    texts = [{text for text, _ in part} for part in (parts.train, parts.validation, parts.test)]
    assert not texts[0] & texts[1]
    assert not (texts[0] | texts[1]) & texts[2]
    dropped = [int(note.split()[1]) for note in parts.notes]
    found = len(parts.train), len(parts.validation), len(parts.test)
    assert found == (sizes[0] - dropped[0], sizes[1] - dropped[1], sizes[2])
    # 418 of the 50,000 reviews repeat another: 96 in training, 199 in test, 123 across.
    assert len(set.union(*texts)) == 50_000 - 418


def test_a_damaged_or_missing_part_of_imdb_is_named(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "imdb").mkdir()
    for content, message in (
        ({"text": ["a", None], "label": [0, 1]}, r"train\.parquet .*the text is missing"),
        ({"text": ["a"], "label": [7]}, r"train\.parquet .*label must be 0 or 1, got '7'"),
        ({"text": ["a"], "label": [1]}, "no test part of 'imdb'"),
    ):
        parquet.write_table(arrow.table(content), tmp_path / "imdb" / "train.parquet")
        with pytest.raises(DataError, match=message):
            load_data("imdb", data_dir=tmp_path)


def test_texts_of_ones_own_are_split_by_class_and_named_by_their_labels(put):
    rows = [f'"good, ""really"" good {i}",yes' for i in range(20)]
    rows += [f"bad film {i},no" for i in range(10)]
    path = put("a.csv", "\n".join(["text,label", *rows]))
    data = load_data(f"csv:{path}", max_length=12)
    assert data.class_names == ("no", "yes")
    counts = [p.targets.bincount().tolist() for p in (data.train, data.validation, data.test)]
    assert counts == [[8, 16], [1, 2], [1, 2]]
    assert data.train.inputs.shape == (24, 12)
    quote, really = (number_of(data, word) for word in ('"', "really"))
    assert ((data.test.inputs == quote).sum(1) == 2 * data.test.targets).all()
    assert really in data.test.inputs
    # Numbers are ordered as such, and columns can be named.
    rows = [f"{n}\tword{n} word{n} {n + i}\tx" for n in (10, 30, 2) for i in range(3)]
    path = put("a.tsv", "\n".join(["stars\treview\tother", *rows]))
    data = load_data(f"csv:{path}", DataSettings(text_column="review", label_column="stars"))
    assert data.class_names == ("2", "10", "30")
    named = DataSettings(text_column="review", label_column="stars", unknown=("10",))
    without = load_data(f"csv:{path}", named).train
    # Words of an unknown class are as all that were never read.
    largest = [int(part.inputs[part.targets == 1].max()) for part in (data.train, without)]
    assert largest[0] > largest[1] == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("cola", b"src\t1\t\tgood\nsrc\t2\t\ttext\n", "line 2: label must be 0 or 1, got '2'"),
        ("cola", b"src\t1\t\t  \n", "line 1: the text is missing"),
        ("cola", b"src\t1\t\t\xff\xfe\n", "cannot be read"),
        ("csv", b"text,label\na,1\nb,NaN", r"line 3: the label is missing \(got 'NaN'\)"),
        ("csv", b"text,label\na,1\nb,1\nc,1", "at least two classes"),
    ],
)
def test_a_damaged_file_is_named_with_its_line(write_cola, put, tmp_path, name, content, message):
    write_cola(["a"])
    path = put("in_domain_train.tsv" if name == "cola" else "mine.csv", content)
    with pytest.raises(DataError, match=rf"{path.name}.*{message}"):
        load_data("cola" if name == "cola" else f"csv:{path}", data_dir=tmp_path)


def test_what_does_not_go_together_is_refused(put, tmp_path):
    path = put("a.csv", "review,label\na,1\nb,0\n" + "c,0\n" * 9 + "a,1\na,1\n")
    for name, reading, options, message in (
        (f"csv:{path}", {}, {}, r"needs one column 'text' .*\['review', 'label'\]"),
        ("cola", {}, {"download": True}, "cannot be fetched"),
        (f"csv:{path}", {"text_column": "review", "num_unknown": 1}, {}, "learned once, without"),
        ("digits", {"tokenizer": "bpe:300"}, {}, "is for texts, and 'digits' holds images"),
    ):
        with pytest.raises(DataError, match=message):
            load_data(name, DataSettings(**reading), **options)
