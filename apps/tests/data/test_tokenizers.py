"""Tokenizers of the library ``tokenizers``: learned byte pairs and pretrained files."""

import random
import sys

import pytest
import torch

from probseq.errors import MissingExtraError
from probseq_apps.data.names import DataError
from probseq_apps.data.sets import load_data
from probseq_apps.data.settings import DataSettings
from probseq_apps.data.texts import make_tokenizer, read_parts
from probseq_apps.data.tokenizers import build_vocabulary, encode_texts, train_byte_pairs

library = pytest.importorskip("tokenizers")

TEXTS = ["the cat sat on the mat", "the hat of the cat", "a fat rat sat", "naïve größe"] * 5


@pytest.mark.parametrize("content", [b"{}", b"\xff\xfe", None])
def test_a_file_that_is_no_tokenizer_is_named(tmp_path, content):
    path = tmp_path / "t.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"t\.json cannot be read"):
        make_tokenizer(str(path), TEXTS)


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
