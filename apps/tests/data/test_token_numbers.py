"""Texts as numbers of words and of subwords."""

import random
import unicodedata

import pytest

from probseq_apps.data import tokenizers
from probseq_apps.data.tokenizers import (
    SubwordTokenizer,
    build_vocabulary,
    encode_texts,
    train_byte_pairs,
    trim_padding,
    words,
)

TEXTS = ["the cat sat on the mat", "the hat of the cat", "a fat rat sat", "naïve größe"] * 5
BERT = {"the": 0, "[UNK]": 1, "[CLS]": 2, "[PAD]": 3, "[SEP]": 4, "cat": 5, "sat": 6}


def test_words_keep_apostrophes_and_marks_stand_alone():
    found = words("It's \"GOOD\",<br /><br />isn't it?")
    assert found == ["it's", '"', "good", '"', ",", "isn't", "it", "?"]


def test_numbers_follow_frequency_and_ties_the_alphabet_whatever_the_order():
    vocab = build_vocabulary(["b a c", "a b", "a c"])
    assert vocab.tokens == ("<pad>", "<unk>", "a", "b", "c")
    assert build_vocabulary(["z y x"] * 2).tokens[2:] == ("x", "y", "z")
    many = [f"w{i % 7} w{i % 5} w{i}" for i in range(50)]
    assert build_vocabulary(many) == build_vocabulary(random.Random(0).sample(many, 50))


def test_rare_words_are_unknown_and_texts_cut_off_padded_and_never_empty(monkeypatch):
    assert build_vocabulary(["a a b b c"]).tokens == ("<pad>", "<unk>", "a", "b")
    monkeypatch.setattr(tokenizers, "_MOST_WORDS", 3)
    vocab = build_vocabulary(["a a b b c"])
    assert vocab.tokens == ("<pad>", "<unk>", "a")
    tokens = encode_texts(vocab, ["A b c", "a", "<br />", "?"], 2)
    assert tokens.tolist() == [[2, 1], [2, 0], [1, 0], [1, 0]]
    assert trim_padding(tokens).tolist() == tokens.tolist()
    assert trim_padding(tokens[1:]).tolist() == [[2], [1], [1]]
    assert trim_padding(0 * tokens).shape == (4, 1)


def word_level(tokens, *, unknown="[UNK]", template=False):
    """A tokenizer of whole words with the numbers of ``tokens``."""
    library = pytest.importorskip("tokenizers")
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
    tokenizer = SubwordTokenizer(raw)
    # the 0->1, [UNK] 1->2, [CLS] 2->3, [PAD] 3->0, [SEP] 4, cat 5, sat 6, and 7 for no token.
    assert encode(tokenizer, "the cat sat") == [3, 1, 5, 6, 4]
    assert encode(tokenizer, "the zebra") == [3, 1, 2, 4]
    assert len(tokenizer) == 8
    assert encode(tokenizer, "cat sat the cat", 4) == [3, 5, 6, 4]
    with pytest.raises(ValueError, match="above the tokenizer's 2 special tokens, got 2"):
        encode(tokenizer, "cat", 2)


def test_without_a_padding_token_all_numbers_move_up():
    tokenizer = SubwordTokenizer(word_level({"a": 0, "b": 7}, unknown=None))
    assert encode(tokenizer, "b a") == [8, 1]
    # Padding, 0 to 7, and a text of no token.
    assert len(tokenizer) == 10
    tokenizer = SubwordTokenizer(word_level({"a": 0}, unknown=None))
    with pytest.raises(ValueError, match=r"the texts cannot be read as numbers .*UNK"):
        encode(tokenizer, "b")


@pytest.mark.parametrize("tokens", [BERT, {"a": 0, "[UNK]": 1, "b": 7}])
def test_own_numbers_are_those_before_the_move(tokens):
    raw = word_level(tokens)
    tokenizer = SubwordTokenizer(raw)
    own = tokenizer.original_numbers(99)
    assert len(own) == len(tokenizer)
    for text in (" ".join(word for word in tokens if word != "[PAD]"), "zebra"):
        assert [own[number] for number in encode(tokenizer, text)] == raw.encode(text).ids
    assert own[0] == own[encode(tokenizer, "")[0]] == 99


def test_neither_padding_alone_nor_padding_inside_a_text_is_left():
    tokenizer = SubwordTokenizer(word_level(BERT))
    assert encode(tokenizer, "the [PAD] cat") == [1, 5]
    for text in ("[PAD]", "<br />", " [PAD] [PAD] "):
        assert encode(tokenizer, text) == [len(tokenizer) - 1]


def test_chunks_keep_the_order(monkeypatch):
    tokenizer = SubwordTokenizer(word_level(BERT))
    whole = list(tokenizer.encode_all(TEXTS, 30))
    monkeypatch.setattr(tokenizers, "_TEXTS_AT_ONCE", 3)
    assert list(tokenizer.encode_all(iter(TEXTS), 30)) == whole


def test_learned_byte_pairs_give_every_text_back():
    pytest.importorskip("tokenizers")
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
    assert len(encode(train_byte_pairs(TEXTS, 258), "größe", 99)) == 1 + len("größe".encode())
