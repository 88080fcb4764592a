import pytest
import torch

from probseq_apps.data.names import DataError
from probseq_apps.data.sets import load_data
from probseq_apps.data.texts import encode_texts, read_cola, read_parts
from probseq_apps.data.tokenizers import build_vocabulary


def write_cola(folder, train, inside=("x y",), outside=("p q",)):
    folder.mkdir(parents=True, exist_ok=True)
    parts = {"in_domain_train": train, "in_domain_dev": inside, "out_of_domain_dev": outside}
    for name, sentences in parts.items():
        lines = [f"src\t{number % 2}\t\t{text}\n" for number, text in enumerate(sentences)]
        (folder / f"{name}.tsv").write_text("".join(lines), encoding="utf-8")


def test_the_thesis_split_of_cola_has_its_sizes(shared_data):
    data = load_data("cola", data_dir=shared_data, seed=0)
    assert len(data.test) == 1816
    assert len(data.extra_tests["out-of-domain"]) == 516
    assert len(data.validation) == 0
    assert len(data.train) == 7262 - 18
    assert data.notes == (
        "cola: 18 texts dropped from training, since they occur in validation or test too",
    )
    assert data.train.inputs.shape[1] == data.max_length == 64


def test_the_official_split_of_cola_tests_on_the_development_files(shared_data):
    data = load_data("cola", data_dir=shared_data, split="official")
    assert len(data.test) == 1043
    assert {name: len(part) for name, part in data.extra_tests.items()} == {
        "in-domain": 527,
        "out-of-domain": 516,
    }


def test_no_real_cola_sentence_is_cut_off_or_in_two_parts(shared_data):
    data = load_data("cola", data_dir=shared_data, seed=3)
    assert int((data.train.inputs != 0).sum(1).max()) < 64
    folder = shared_data / "cola"
    names = ("in_domain_train", "in_domain_dev", "out_of_domain_dev")
    sentences = [text for name in names for text in read_cola(folder / f"{name}.tsv").texts]
    assert len(sentences) == 9594
    # Quotes are literal: read as quoting, they would swallow lines.
    assert any('"' in text for text in sentences)


def test_seeds_split_cola_differently_and_reproducibly(tmp_path):
    write_cola(tmp_path / "cola", [f"word{i} word{i} word{i}" for i in range(40)])
    first, again, other = (load_data("cola", data_dir=tmp_path, seed=s) for s in (0, 0, 1))
    assert torch.equal(first.train.inputs, again.train.inputs)
    assert torch.equal(first.test.targets, again.test.targets)
    assert first.vocab == again.vocab
    assert first.vocab != other.vocab


def test_repeated_texts_never_lie_in_training_and_test(tmp_path):
    write_cola(tmp_path, ["same", "a b", "c d", "same", "p q"] * 4, outside=["p q"])
    data = load_data("cola", data_dir=tmp_path, split="official")
    assert len(data.train) == 16
    assert "4 texts dropped" in data.notes[0]


def test_the_vocabulary_knows_nothing_of_the_test_texts(tmp_path):
    write_cola(tmp_path, ["a a b b"] * 3, inside=["zebra zebra zebra a"])
    data = load_data("cola", data_dir=tmp_path, split="official")
    assert data.vocab.tokens[2:] == ("a", "b")
    assert data.extra_tests["in-domain"].inputs[0, :4].tolist() == [1, 1, 1, 2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("src\t2\t\ttext\n", r"line 1: label must be 0 or 1, got '2'"),
        ("src\t1\t\tgood\nsrc\t1\n", r"line 2: expected 4 columns, got 2"),
        ("src\t1\t\t  \n", r"line 1: the text is missing"),
        ("", "holds no texts"),
        (b"src\t1\t\t\xff\xfe\n", "cannot be read"),
    ],
)
def test_a_damaged_cola_file_is_named(tmp_path, content, message):
    write_cola(tmp_path, ["a"])
    data = content if isinstance(content, bytes) else content.encode()
    (tmp_path / "in_domain_train.tsv").write_bytes(data)
    with pytest.raises(DataError, match=r"in_domain_train\.tsv.*" + message):
        load_data("cola", data_dir=tmp_path)


def test_missing_files_of_cola_are_listed(tmp_path):
    write_cola(tmp_path, ["a"])
    (tmp_path / "in_domain_dev.tsv").unlink()
    with pytest.raises(DataError, match=r"lacks files of 'cola': in_domain_dev\.tsv"):
        load_data("cola", data_dir=tmp_path)


def write_reviews(folder, count):
    for part in ("train", "test"):
        for sentiment in ("neg", "pos"):
            (folder / part / sentiment).mkdir(parents=True)
            for number in range(count):
                text = f"{part} {sentiment} {number}<br />a film"
                (folder / part / sentiment / f"{number}_1.txt").write_text(text)


def test_imdb_is_read_from_its_published_folder(tmp_path):
    write_reviews(tmp_path / "aclImdb", 10)
    data = load_data("imdb", data_dir=tmp_path, max_length=8)
    assert (len(data.train), len(data.validation), len(data.test)) == (28, 4, 8)
    neg, pos = (data.vocab.numbers[word] for word in ("neg", "pos"))
    for part in (data.train, data.validation, data.test):
        assert torch.equal((part.inputs == pos).any(1).long(), part.targets)
        assert torch.equal((part.inputs == neg).any(1).long(), 1 - part.targets)
    official = load_data("imdb", data_dir=tmp_path, split="official")
    assert (len(official.train), len(official.validation), len(official.test)) == (18, 2, 20)
    assert official.max_length == 512


def test_imdb_is_read_from_parquet(shared_data, tmp_path):
    pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    (tmp_path / "imdb").mkdir()
    for part in ("train", "test"):
        table = pq.read_table(shared_data / "imdb" / f"{part}.parquet").slice(0, 50)
        pq.write_table(table, tmp_path / "imdb" / f"{part}.parquet")
    data = load_data("imdb", data_dir=tmp_path, split="official")
    assert data.test.targets.tolist() == table["label"].to_pylist()
    assert data.test.inputs.shape == (50, 512)
    expected = encode_texts(data.vocab, table["text"].to_pylist()[:1], 512)
    assert torch.equal(data.test.inputs[:1], expected)


@pytest.mark.parametrize(
    ("split", "sizes"), [("thesis", (35_000, 5_000, 10_000)), ("official", (22_500, 2_500, 25_000))]
)
def test_the_splits_of_the_real_imdb_have_their_sizes_and_share_no_text(shared_data, split, sizes):
    pytest.importorskip("pyarrow")
    parts = read_parts(
        "imdb", data_dir=shared_data, seed=0, split=split, text_column="", label_column=""
    )
    texts = [set(part.texts) for part in (parts.train, parts.validation, parts.test)]
    assert not texts[0] & texts[1]
    assert not (texts[0] | texts[1]) & texts[2]
    dropped = [int(note.split()[1]) for note in parts.notes]
    found = len(parts.train.texts), len(parts.validation.texts), len(parts.test.texts)
    assert found == (sizes[0] - dropped[0], sizes[1] - dropped[1], sizes[2])
    # 418 of the 50,000 reviews repeat another: 96 in training, 199 in test, 123 across.
    assert len(set.union(*texts)) == len(parts.all_texts()) == 50_000 - 418


def test_a_damaged_or_missing_part_of_imdb_is_named(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    (tmp_path / "imdb").mkdir()
    path = tmp_path / "imdb" / "train.parquet"
    for content, message in (
        ({"text": ["a", None], "label": [0, 1]}, "line 1: the text is missing"),
        ({"text": ["a"], "label": [7]}, "label must be 0 or 1, got '7'"),
        ({"review": ["a"], "label": [1]}, "needs columns text and label"),
        ({"text": ["a"], "label": [1]}, "no test part of 'imdb'"),
    ):
        pq.write_table(pa.table(content), path)
        with pytest.raises(DataError, match=message):
            load_data("imdb", data_dir=tmp_path)


def write_csv(path, rows, header="text,label"):
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return f"csv:{path}"


def test_texts_of_ones_own_are_split_by_class_and_named_by_their_labels(tmp_path):
    rows = [f'"good, ""really"" good {i}",yes' for i in range(20)]
    rows += [f"bad film {i},no" for i in range(10)]
    data = load_data(write_csv(tmp_path / "a.csv", rows), max_length=12)
    assert data.class_names == ("no", "yes")
    counts = [p.targets.bincount().tolist() for p in (data.train, data.validation, data.test)]
    assert counts == [[8, 16], [1, 2], [1, 2]]
    assert data.train.inputs.shape == (24, 12)
    quote, really = (data.vocab.numbers[word] for word in ('"', "really"))
    assert ((data.test.inputs == quote).sum(1) == 2 * data.test.targets).all()
    assert really in data.test.inputs


def test_numeric_labels_are_ordered_as_numbers_and_columns_can_be_named(tmp_path):
    rows = [
        f"{label}\ttext {i}\tx" for label in (10, 9, 2) for i in range(3 * label, 3 * label + 3)
    ]
    name = write_csv(tmp_path / "a.tsv", rows, header="stars\treview\tother")
    data = load_data(name, text_column="review", label_column="stars")
    assert data.class_names == ("2", "9", "10")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["a,1", "b"], r"line 3: expected 2 columns, got 1"),
        (["a,1", ",0"], r"line 3: the text is missing"),
        (["a,1", "b,"], r"line 3: the label is missing"),
        (["a,1", "b,NaN"], r"line 3: the label is missing \(got 'NaN'\)"),
        (["a,1", "b,1", "c,1"], "at least two classes"),
        ([], "at least two classes"),
        (['"a,1', "b,0"], "cannot be read"),
        (["a,1", "b,1", "c,1", "d,0"], "class '0' has 1 rows"),
    ],
)
def test_a_damaged_csv_file_is_named_with_its_line(tmp_path, rows, message):
    name = write_csv(tmp_path / "mine.csv", rows)
    with pytest.raises(DataError, match=message) as caught:
        load_data(name)
    assert "mine.csv" in str(caught.value) or "class '0'" in str(caught.value)


def test_a_csv_file_that_is_missing_or_lacks_a_column_is_named(tmp_path):
    with pytest.raises(DataError, match=r"no\.csv does not exist"):
        load_data(f"csv:{tmp_path / 'no.csv'}")
    name = write_csv(tmp_path / "a.csv", ["a,1"], header="review,label")
    with pytest.raises(DataError, match=r"needs one column 'text' .*\['review', 'label'\]"):
        load_data(name)
    (tmp_path / "empty.csv").touch()
    with pytest.raises(DataError, match="needs one column"):
        load_data(f"csv:{tmp_path / 'empty.csv'}")


def test_texts_are_padded_with_zero_and_cut_off():
    vocab = build_vocabulary(["a b a b"])
    tokens = encode_texts(vocab, ["a", "b a b", "?"], 2)
    assert tokens.tolist() == [[2, 0], [3, 2], [1, 0]]


def test_a_length_of_no_tokens_is_refused(tmp_path):
    write_cola(tmp_path, ["a"] * 10)
    with pytest.raises(DataError, match="max_length must be at least 1, got 0"):
        load_data("cola", data_dir=tmp_path, max_length=0)
