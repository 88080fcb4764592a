import random

from probseq_apps.data.tokenizers import build_vocabulary, tokenize


def test_words_keep_apostrophes_and_marks_stand_alone():
    text = "It's \"GOOD\",<br /><br />isn't it?"
    assert tokenize(text) == ["it's", '"', "good", '"', ",", "isn't", "it", "?"]


def test_numbers_follow_frequency_and_ties_the_alphabet():
    vocab = build_vocabulary(["b a c", "a b", "a"], min_frequency=1)
    assert vocab.tokens == ("<pad>", "<unk>", "a", "b", "c")
    tied = build_vocabulary(["z y x"], min_frequency=1)
    assert tied.tokens[2:] == ("x", "y", "z")


def test_the_order_of_the_texts_does_not_matter():
    texts = [f"w{i % 7} w{i % 5} w{i}" for i in range(50)]
    shuffled = texts.copy()
    random.Random(0).shuffle(shuffled)
    assert build_vocabulary(texts) == build_vocabulary(shuffled)


def test_rare_tokens_and_those_beyond_the_size_are_unknown():
    vocab = build_vocabulary(["a a b b c"], min_frequency=2, max_size=3)
    assert vocab.tokens == ("<pad>", "<unk>", "a")
    assert vocab.encode("A b c", 10) == [2, 1, 1]


def test_encoding_is_cut_off_and_never_empty():
    vocab = build_vocabulary(["a a a"], min_frequency=1)
    assert vocab.encode("a a a a", 2) == [2, 2]
    assert vocab.encode("<br />", 5) == [1]
