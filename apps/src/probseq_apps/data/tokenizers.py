"""Texts as numbers of tokens: words, or the subwords of a tokenizer of the library `tokenizers`.

0 is padding, as `probseq.transformers.TextTransformer` has it, and no text is padding alone: a row
of it would hide everything from attention.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from probseq.errors import require

PAD, UNKNOWN = "<pad>", "<unk>"
_UNKNOWN_ID = 1
_RARE, _MOST_WORDS = 2, 20_000  # occurrences that a word needs; numbers of a vocabulary
_RARE_CHARACTER = 5
_LINE_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
# A word keeps its inner apostrophes ("won't"); every other sign is a token.
_TOKEN = re.compile(r"\w+(?:'\w+)*|[^\w\s]")
# Names of padding in tokenizers without a section `padding`.
_PADDING_NAMES = ("[PAD]", "<pad>", "<PAD>", "<|pad|>")
_TEXTS_AT_ONCE = 1_000  # an encoding holds far more than its numbers


def drop_line_breaks(text: str) -> str:
    """Replace HTML line breaks, of which film reviews are full, by spaces."""
    return _LINE_BREAK.sub(" ", text)


def words(text: str) -> list[str]:
    """Split a text into lower-cased words and punctuation marks; HTML line breaks are dropped.

    Example:
        >>> words("I won't go.<br />Never!")
        ['i', "won't", 'go', '.', 'never', '!']
    """
    return _TOKEN.findall(drop_line_breaks(text).lower())


@dataclass(frozen=True)
class Vocabulary:
    """Known words in the order of their numbers; 0 is padding, 1 any unknown word."""

    tokens: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Number of each word."""
        return {token: number for number, token in enumerate(self.tokens)}

    def encode_all(self, texts: Iterable[str], max_length: int) -> Iterator[list[int]]:
        """Yield 1 to `max_length` numbers for each text; one without any word is an unknown one."""
        for text in texts:
            tokens = words(text)[:max_length]
            yield [self.numbers.get(token, _UNKNOWN_ID) for token in tokens] or [_UNKNOWN_ID]


def build_vocabulary(texts: Iterable[str]) -> Vocabulary:
    """Learn a vocabulary of training texts: the most frequent words, ties in alphabetical order.

    Words need two occurrences, and there are 20,000 numbers in all.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(words(text))
    frequent = [(-count, word) for word, count in counts.items() if count >= _RARE]
    tokens = [word for _, word in sorted(frequent)[: _MOST_WORDS - 2]]
    return Vocabulary((PAD, UNKNOWN, *tokens))


class SubwordTokenizer:
    """A tokenizer of the library `tokenizers`, its numbers moved so that 0 is padding.

    If it has a padding token, that one becomes 0 and those before it move up by one; otherwise all
    move up by one. One more number at the end stands for a text without any token. Unknown words
    and special tokens ([CLS], [SEP]) are the tokenizer's own matter: it adds its special tokens,
    and they count in `max_length` and survive cutting off. HTML line breaks are dropped first.

    Args:
        tokenizer: a `tokenizers.Tokenizer`; its own padding and cutting off are switched off.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._padding = _padding_number(tokenizer)
        tokenizer.no_padding()
        tokenizer.no_truncation()
        # Numbers of a vocabulary may have gaps.
        self._top = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        first = self._top if self._padding is None else self._padding
        self._moved = [number + (number < first) for number in range(self._top)]
        self._empty = self._top + (self._padding is None)

    @classmethod
    def from_file(cls, path: Path) -> "SubwordTokenizer":
        """Read a pretrained ``tokenizer.json`` (extra ``tokenizers``)."""
        library = require("tokenizers", extra="tokenizers", distribution="probseq-apps")
        return cls(library.Tokenizer.from_str(path.read_text("utf-8")))

    def __len__(self) -> int:
        return self._empty + 1

    def original_numbers(self, padding: int) -> list[int]:
        """Return the file's number of each of ours, `padding` where it has none."""
        numbers = [padding] * len(self)
        for number, moved in enumerate(self._moved):
            if number != self._padding:
                numbers[moved] = number
        return numbers

    def encode_all(self, texts: Iterable[str], max_length: int) -> Iterator[list[int]]:
        """Yield 1 to `max_length` numbers for each text.

        Raises:
            ValueError: special tokens leave no room, or the tokenizer cannot read a text.
        """
        special = self._tokenizer.num_special_tokens_to_add(False)
        if max_length <= special:
            raise ValueError(
                f"max_length must be above the tokenizer's {special} special tokens, "
                f"got {max_length}"
            )
        cleaned = (drop_line_breaks(text) for text in texts)
        while chunk := list(islice(cleaned, _TEXTS_AT_ONCE)):
            self._tokenizer.enable_truncation(max_length)
            try:
                encodings = self._tokenizer.encode_batch_fast(chunk)
            except Exception as error:  # the library raises bare exceptions
                raise ValueError(
                    f"the texts cannot be read as numbers of the tokenizer: {error}"
                ) from error
            self._tokenizer.no_truncation()
            for encoding in encodings:
                # Padding inside a text is its name in plain letters, and would hide it.
                numbers = [self._moved[i] for i in encoding.ids if i != self._padding]
                yield numbers or [self._empty]


def train_byte_pairs(texts: Iterable[str], size: int) -> SubwordTokenizer:
    """Learn a byte-level tokenizer by byte pair encoding (Sennrich et al. 2016).

    Texts are lower-cased, as for words. Every byte is a token, so no text is unknown.

    Args:
        texts: training texts.
        size: numbers in all, at least 258: all bytes, padding, and a text without any token.

    Raises:
        MissingExtraError: tokenizers is not installed.
    """
    library = require("tokenizers", extra="tokenizers", distribution="probseq-apps")
    splitters, normalizers = library.pre_tokenizers, library.normalizers
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = splitters.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=size - 2,  # padding, and a text without any token
        min_frequency=2,
        initial_alphabet=sorted(splitters.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((drop_line_breaks(text) for text in texts), trainer)
    return SubwordTokenizer(tokenizer)


Tokenizer = Vocabulary | SubwordTokenizer


def encode_texts(
    tokenizer: Tokenizer, texts: Sequence[str], max_length: int
) -> Int64[Tensor, "n t"]:
    """Turn texts into token numbers (N, T), cut off at `max_length` and padded with 0 to it."""
    tokens = torch.zeros(len(texts), max_length, dtype=torch.int64)
    for row, encoded in enumerate(tokenizer.encode_all(texts, max_length)):
        tokens[row, : len(encoded)] = torch.tensor(encoded)
    return tokens


def trim_padding(tokens: Int64[Tensor, "n t"]) -> Int64[Tensor, "n s"]:
    """Cut off the columns that are padding in every text; one column stays."""
    return tokens[:, : max(1, int((tokens != 0).sum(1).max()))]


def _padding_number(tokenizer: Any) -> int | None:
    if tokenizer.padding is not None:
        return tokenizer.token_to_id(tokenizer.padding["pad_token"])
    numbers = (tokenizer.token_to_id(name) for name in _PADDING_NAMES)
    return next((number for number in numbers if number is not None), None)
