"""Tokenizers of the library ``tokenizers``: learned byte pairs and pretrained files."""

import random
import sys
import unicodedata

import pytest
import torch

from probseq.errors import MissingExtraError
from probseq_apps.data import texts
from probseq_apps.data.names import DataError
from probseq_apps.data.sets import load_data, load_texts
from probseq_apps.data.texts import (
    SubwordTokenizer,
    build_vocabulary,
    encode_texts,
    load_tokenizer,
    make_tokenizer,
    read_parts,
    train_byte_pairs,
)

library = pytest.importorskip("tokenizers")

TEXTS = ["the cat sat on the mat", "the hat of the cat", "a fat rat sat", "naïve größe"] * 5


def word_level(tokens, *, unknown="[UNK]", template=None):
    """A tokenizer of whole words with the numbers of ``tokens``."""
    model = library.models.WordLevel(dict(tokens), **({"unk_token": unknown} if unknown else {}))
    tokenizer = library.Tokenizer(model)
    tokenizer.pre_tokenizer = library.pre_tokenizers.WhitespaceSplit()
    special = [token for token in tokens if token.startswith("[")]
    tokenizer.add_special_tokens(special)
    if template:
        tokenizer.post_processor = library.processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[(t, tokens[t]) for t in ("[CLS]", "[SEP]")]
        )
    return tokenizer


BERT = {"the": 0, "[UNK]": 1, "[CLS]": 2, "[PAD]": 3, "[SEP]": 4, "cat": 5, "sat": 6}


def encode(tokenizer, text, max_length=10):
    return next(tokenizer.encode_all([text], max_length))


def write(tokenizer, path):
    path.write_text(tokenizer.to_str(), encoding="utf-8")
    return path


def test_the_padding_token_becomes_zero_and_those_before_it_move_up(tmp_path):
    tokenizer = load_tokenizer(write(word_level(BERT, template=True), tmp_path / "t.json"))
    # the 0->1, [UNK] 1->2, [CLS] 2->3, [PAD] 3->0, [SEP] 4, cat 5, sat 6, and 7 for no token.
    assert encode(tokenizer, "the cat sat") == [3, 1, 5, 6, 4]
    assert encode(tokenizer, "the zebra") == [3, 1, 2, 4]
    assert len(tokenizer) == 8


def test_without_a_padding_token_all_numbers_move_up():
    tokenizer = SubwordTokenizer(word_level({"a": 0, "b": 7}, unknown=None))
    assert encode(tokenizer, "b a") == [8, 1]
    # Padding, 0 to 7, and a text of no token.
    assert len(tokenizer) == 10
    tokenizer = SubwordTokenizer(word_level({"a": 0}, unknown=None))
    with pytest.raises(DataError, match=r"the texts cannot be read as numbers .*UNK"):
        encode(tokenizer, "b")


def test_a_texts_end_is_cut_off_and_neither_padding_alone_nor_padding_inside_is_left():
    tokenizer = SubwordTokenizer(word_level(BERT))
    assert encode(tokenizer, "the [PAD] cat") == [1, 5]
    for text in ("[PAD]", "<br />", " [PAD] [PAD] "):
        assert encode(tokenizer, text) == [len(tokenizer) - 1]
    raw = word_level(BERT, template=True)
    raw.enable_truncation(2)  # the file's own setting must not count
    tokenizer = SubwordTokenizer(raw)
    assert encode(tokenizer, "cat sat the cat", 4) == [3, 5, 6, 4]
    assert encode(tokenizer, "cat sat the cat", 5) == [3, 5, 6, 1, 4]
    with pytest.raises(DataError, match="above the tokenizer's 2 special tokens, got 2"):
        encode(tokenizer, "cat", 2)


def test_byte_pairs_give_every_text_back():
    tokenizer = train_byte_pairs(TEXTS, 300)
    decode = tokenizer._tokenizer.decode
    for text in ("the cat sat", "ÜBER naïve 日本語 🙂", "e\u0301", "<pad> [PAD] \x00"):
        numbers = encode(tokenizer, text, 99)
        assert 0 < min(numbers) <= max(numbers) < len(tokenizer) - 1
        expected = unicodedata.normalize("NFC", text).lower()
        assert decode([number - 1 for number in numbers]) == f" {expected}"
    assert len(encode(tokenizer, "the cat")) == 2
    assert len(encode(tokenizer, "qqqq")) == 5  # with the space in front
    assert encode(tokenizer, "THE<br />Cat") == encode(tokenizer, "the cat")
    assert len(train_byte_pairs(TEXTS, 270)) == 270
    bytes_alone = train_byte_pairs(TEXTS, 258)
    assert len(bytes_alone) == 258
    assert len(encode(bytes_alone, "größe", 99)) == 1 + len("größe".encode())


def test_a_saved_tokenizer_gives_the_same_numbers_and_chunks_keep_the_order(tmp_path, monkeypatch):
    for tokenizer in (train_byte_pairs(TEXTS, 280), SubwordTokenizer(word_level(BERT))):
        whole = list(tokenizer.encode_all(TEXTS, 30))
        again = load_tokenizer(write(tokenizer._tokenizer, tmp_path / "t.json"))
        assert len(again) == len(tokenizer)
        with monkeypatch.context() as patch:
            patch.setattr(texts, "_TEXTS_AT_ONCE", 3)
            assert list(again.encode_all(iter(TEXTS), 30)) == whole


@pytest.mark.parametrize("content", [b"{}", b"no json", b"\xff\xfe", None])
def test_a_file_that_is_no_tokenizer_is_named(tmp_path, content):
    path = tmp_path / "t.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"t\.json cannot be read"):
        load_tokenizer(path)


def test_without_the_library_its_extra_is_named_and_words_still_work(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    for name in ("bpe:300", str(tmp_path / "t.json")):
        with pytest.raises(MissingExtraError, match=r"pip install 'probseq-apps\[tokenizers\]'"):
            make_tokenizer(name, TEXTS)
    assert make_tokenizer("words", TEXTS) == build_vocabulary(TEXTS)


def test_a_data_set_is_loaded_with_byte_pairs_of_its_training_texts_or_a_pretrained_one(
    put, tmp_path
):
    # A word of each text's own, twice: it is learned if the text is.
    words = ["".join(random.Random(i).choices("abcdefgh", k=6)) for i in range(40)]
    kinds = ("bad", "good")
    rows = [f"the {kinds[i % 2]} film {word} {word},{i % 2}" for i, word in enumerate(words)]
    name = f"csv:{put('a.csv', chr(10).join(['text,label', *rows]))}"
    data, again = (load_data(name, tokenizer="bpe:900", max_length=20) for _ in range(2))
    assert torch.equal(data.train.inputs, again.train.inputs)
    assert data.train.inputs.shape == (32, 20)
    columns = {"text_column": "text", "label_column": "label"}
    parts = read_parts(name, data_dir=None, seed=0, split="thesis", **columns)
    train, test = ([text for text, _ in rows] for rows in (parts.train, parts.test))
    learned = train_byte_pairs(train, 900)
    assert torch.equal(encode_texts(learned, test, 20), data.test.inputs)
    everything = train_byte_pairs(load_texts(name), 900)
    assert not torch.equal(encode_texts(everything, test, 20), data.test.inputs)
    numbers = {"[PAD]": 0, "[UNK]": 1, "the": 2, "film": 3, "good": 4, "bad": 5}
    path = write(word_level(numbers), tmp_path / "tokenizer.json")
    data = load_data(name, tokenizer=str(path), max_length=6)
    expected = torch.tensor([[2, 5, 3, 1, 1, 0], [2, 4, 3, 1, 1, 0]])
    assert torch.equal(data.train.inputs, expected[data.train.targets])
    assert len(data.vocab) == 7
