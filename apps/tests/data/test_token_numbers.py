"""Texts as numbers of words and of subwords."""

import random
import unicodedata

import pytest
import tokenizers as library
import torch

from probseq_apps.data import tokenizers
from probseq_apps.data.names import DataError
from probseq_apps.data.sets import load_data
from probseq_apps.data.settings import DataSettings
from probseq_apps.data.texts import make_tokenizer, read_parts
from probseq_apps.data.tokenizers import (
    TextTokenizer,
    build_vocabulary,
    encode_texts,
    train_byte_pairs,
    trim_padding,
)

TEXTS = ["the cat sat on the mat", "the hat of the cat", "a fat rat sat", "naïve größe"] * 5
BERT = {"the": 0, "[UNK]": 1, "[CLS]": 2, "[PAD]": 3, "[SEP]": 4, "cat": 5, "sat": 6}


def numbers_of(vocab, *words):
    """Numbers of single words."""
    return [encode(vocab, word) for word in words]


def test_words_keep_apostrophes_and_marks_stand_alone():
    told = ["it's", '"', "good", ",", "isn't", "it", "?", "½", "naïve"]
    vocab = build_vocabulary([" ".join(told)] * 2)
    text = "It's \"GOOD\",<br /><br />isn't it? ½ naïve"
    words = ["it's", '"', "good", '"', ",", "isn't", "it", "?", "½", "naïve"]
    assert [[n] for n in encode(vocab, text, 20)] == numbers_of(vocab, *words)
    assert 1 not in encode(vocab, text, 20)


def test_numbers_follow_frequency_and_ties_the_alphabet_whatever_the_order():
    vocab = build_vocabulary(["b a c", "a b", "a c"])
    assert (len(vocab), encode(vocab, "a b c")) == (5, [2, 3, 4])
    assert encode(build_vocabulary(["z y x"] * 2), "x y z") == [2, 3, 4]
    many = [f"w{i % 7} w{i % 5} w{i}" for i in range(50)]
    first, other = build_vocabulary(many), build_vocabulary(random.Random(0).sample(many, 50))
    assert torch.equal(encode_texts(first, many, 3), encode_texts(other, many, 3))


def test_rare_words_are_unknown_and_texts_cut_off_padded_and_never_empty(monkeypatch):
    assert len(build_vocabulary(["a a b b c"])) == 4
    monkeypatch.setattr(tokenizers, "_MOST_WORDS", 3)
    vocab = build_vocabulary(["a a b b c"])
    assert len(vocab) == 3
    tokens = encode_texts(vocab, ["A b c", "a", "<br />", "?", "<pad>"], 2)
    assert tokens.tolist() == [[2, 1], [2, 0], [1, 0], [1, 0], [1, 1]]
    assert trim_padding(tokens).tolist() == tokens.tolist()
    assert trim_padding(tokens[1:4]).tolist() == [[2], [1], [1]]
    assert trim_padding(0 * tokens).shape == (5, 1)


def word_level(tokens, *, unknown="[UNK]", template=False):
    """A tokenizer of whole words with the numbers of ``tokens``."""
    model = library.models.WordLevel(dict(tokens), **({"unk_token": unknown} if unknown else {}))
    tokenizer = library.Tokenizer(model)
    tokenizer.pre_tokenizer = library.pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([token for token in tokens if token.startswith("[")])
    if template:
        tokenizer.post_processor = library.processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[(t, tokens[t]) for t in ("[CLS]", "[SEP]")]
        )
    return tokenizer


def encode(tokenizer, text, max_length=10):
    return next(tokenizer.encode_all([text], max_length))


def test_the_padding_token_becomes_zero_and_those_before_it_move_up():
    raw = word_level(BERT, template=True)
    raw.enable_truncation(2)  # the file's own setting must not count
    tokenizer = TextTokenizer(raw)
    # the 0->1, [UNK] 1->2, [CLS] 2->3, [PAD] 3->0, [SEP] 4, cat 5, sat 6, and 7 for no token.
    assert encode(tokenizer, "the cat sat") == [3, 1, 5, 6, 4]
    assert encode(tokenizer, "the zebra") == [3, 1, 2, 4]
    assert len(tokenizer) == 8
    assert encode(tokenizer, "cat sat the cat", 4) == [3, 5, 6, 4]
    with pytest.raises(ValueError, match="above the tokenizer's 2 special tokens, got 2"):
        encode(tokenizer, "cat", 2)


def test_without_a_padding_token_all_numbers_move_up():
    tokenizer = TextTokenizer(word_level({"a": 0, "b": 7}, unknown=None))
    assert encode(tokenizer, "b a") == [8, 1]
    # Padding, 0 to 7, and a text of no token.
    assert len(tokenizer) == 10
    words = word_level({"a": 0}, unknown=None)
    with pytest.raises(ValueError, match=r"the texts cannot be read as numbers .*UNK"):
        encode(TextTokenizer(words), "b")
    assert words.truncation is None


def test_neither_padding_alone_nor_padding_inside_a_text_is_left():
    tokenizer = TextTokenizer(word_level(BERT))
    assert encode(tokenizer, "the [PAD] cat") == [1, 5]
    for text in ("[PAD]", "<br />", " [PAD] [PAD] "):
        assert encode(tokenizer, text) == [len(tokenizer) - 1]


def test_chunks_keep_the_order(monkeypatch):
    tokenizer = TextTokenizer(word_level(BERT))
    whole = list(tokenizer.encode_all(TEXTS, 30))
    monkeypatch.setattr(tokenizers, "_TEXTS_AT_ONCE", 3)
    assert list(tokenizer.encode_all(iter(TEXTS), 30)) == whole


def test_learned_byte_pairs_give_every_text_back():
    tokenizer = train_byte_pairs(TEXTS, 300)
    raw = tokenizer._tokenizer
    raw.decoder = library.decoders.ByteLevel()
    decode = raw.decode
    for text in ("the cat sat", "ÜBER naïve 日本語 🙂", "e\u0301", "<pad> [PAD] \x00"):
        numbers = encode(tokenizer, text, 99)
        assert 0 < min(numbers) <= max(numbers) < len(tokenizer) - 1
        expected = unicodedata.normalize("NFC", text).lower()
        assert decode([number - 1 for number in numbers]) == f" {expected}"
    assert len(encode(tokenizer, "the cat")) == 2
    assert len(encode(tokenizer, "qqqq")) == 5  # with the space in front
    assert encode(tokenizer, "THE<br />Cat") == encode(tokenizer, "the cat")
    assert len(train_byte_pairs(TEXTS, 270)) == 270
    assert len(encode(train_byte_pairs(TEXTS, 258), "größe", 99)) == 1 + len("größe".encode())


@pytest.mark.parametrize("content", [b"{}", b"\xff\xfe", None])
def test_a_file_that_is_no_tokenizer_is_named(tmp_path, content):
    path = tmp_path / "t.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"t\.json cannot be read"):
        make_tokenizer(str(path), TEXTS)


def test_a_data_set_is_loaded_with_byte_pairs_of_its_training_texts_or_a_pretrained_one(
    put, tmp_path
):
    # A word of each text's own, twice: it is learned if the text is.
    words = ["".join(random.Random(i).choices("abcdefgh", k=6)) for i in range(40)]
    kinds = ("bad", "good")
    rows = [f"the {kinds[i % 2]} film {word} {word},{i % 2}" for i, word in enumerate(words)]
    name = f"csv:{put('a.csv', chr(10).join(['text,label', *rows]))}"
    data, again = (
        load_data(name, DataSettings(tokenizer="bpe:900"), max_length=20) for _ in range(2)
    )
    assert torch.equal(data.train.inputs, again.train.inputs)
    assert data.train.inputs.shape == (32, 20)
    parts = read_parts(name, DataSettings(), data_dir=None)
    train, test = ([text for text, _ in rows] for rows in (parts.train, parts.test))
    learned, everything = (
        train_byte_pairs(texts, 900)
        for texts in (train, [text for rows in parts.all_parts() for text, _ in rows])
    )
    assert torch.equal(encode_texts(learned, test, 20), data.test.inputs)
    assert not torch.equal(encode_texts(everything, test, 20), data.test.inputs)
    numbers = {"[PAD]": 0, "[UNK]": 1, "the": 2, "film": 3, "good": 4, "bad": 5}
    tokenizer = library.Tokenizer(library.models.WordLevel(numbers, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = library.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    data = load_data(name, DataSettings(tokenizer=str(tmp_path / "tokenizer.json")), max_length=6)
    expected = torch.tensor([[2, 5, 3, 1, 1, 0], [2, 4, 3, 1, 1, 0]])
    assert torch.equal(data.train.inputs, expected[data.train.targets])
    assert len(data.vocab) == 7
