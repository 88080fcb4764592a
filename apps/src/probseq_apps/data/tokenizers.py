"""Texts to numbers: words, byte pairs learned from the training texts, pretrained tokenizers.

The last two are the work of the library ``tokenizers`` (extra ``tokenizers``); nothing is fetched.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from probseq.errors import require
from probseq_apps.data.names import DataError, reading, tokenizer_choice

PAD = "<pad>"
UNKNOWN = "<unk>"
PAD_ID = 0
UNKNOWN_ID = 1

_LINE_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
# A word keeps its inner apostrophes ("won't"); every other sign is a token of its own.
_TOKEN = re.compile(r"\w+(?:'\w+)*|[^\w\s]")


def drop_line_breaks(text: str) -> str:
    """Replace HTML line breaks, of which IMDB is full, by spaces."""
    return _LINE_BREAK.sub(" ", text)


def tokenize(text: str) -> list[str]:
    """Split a text into lower-cased words and punctuation marks; HTML line breaks are dropped.

    Example:
        >>> tokenize("I won't go.<br />Never!")
        ['i', "won't", 'go', '.', 'never', '!']
    """
    return _TOKEN.findall(drop_line_breaks(text).lower())


@runtime_checkable
class Tokenizer(Protocol):
    """What turns texts into numbers; 0 is padding."""

    def __len__(self) -> int:
        """Return how many numbers there are, padding included."""
        ...

    def encode_all(self, texts: Iterable[str], max_length: int) -> Iterator[list[int]]:
        """Yield 1 to ``max_length`` numbers for each text, none of them 0."""
        ...


@dataclass(frozen=True)
class Vocabulary:
    """Known tokens in the order of their numbers; 0 is padding, 1 any unknown token."""

    tokens: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Number of each token."""
        return {token: number for number, token in enumerate(self.tokens)}

    def encode_all(self, texts: Iterable[str], max_length: int) -> Iterator[list[int]]:
        """Yield the numbers of the first ``max_length`` tokens of each text.

        A text without any token becomes one unknown token: a row of padding alone would hide
        everything from attention.
        """
        for text in texts:
            words = tokenize(text)[:max_length]
            yield [self.numbers.get(word, UNKNOWN_ID) for word in words] or [UNKNOWN_ID]


def build_vocabulary(
    texts: Iterable[str], *, min_frequency: int = 2, max_size: int = 20_000
) -> Vocabulary:
    """Learn a vocabulary: the most frequent tokens, ties in alphabetical order."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(tokenize(text))
    frequent = [(-count, token) for token, count in counts.items() if count >= min_frequency]
    kept = [token for _, token in sorted(frequent)[: max_size - 2]]
    return Vocabulary((PAD, UNKNOWN, *kept))


# What tokenizers call padding if they don't say so in a section of their own.
_PADDING_NAMES = ("[PAD]", "<pad>", "<PAD>", "<|pad|>")
_TEXTS_AT_ONCE = 1_000  # an encoding holds far more than its numbers


class SubwordTokenizer:
    """A tokenizer of the library ``tokenizers``, its numbers moved so that 0 is padding.

    If it has a padding token, that one becomes 0 and those before it move up by one; otherwise all
    move up by one. One more number at the end stands for a text without any token, since a row of
    padding alone would hide everything from attention. Unknown words and special tokens ([CLS],
    [SEP]) are the tokenizer's own matter: it adds its special tokens, and they count in
    ``max_length`` and survive cutting off. HTML line breaks are dropped first.

    Args:
        tokenizer: a ``tokenizers.Tokenizer``; its own padding and cutting off are switched off.
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

    def __len__(self) -> int:
        return self._empty + 1

    def encode_all(self, texts: Iterable[str], max_length: int) -> Iterator[list[int]]:
        """Yield the numbers of each text, cut off at ``max_length``."""
        special = self._tokenizer.num_special_tokens_to_add(False)
        if max_length <= special:
            raise DataError(
                f"max_length must be above the tokenizer's {special} special tokens, "
                f"got {max_length}"
            )
        cleaned = (drop_line_breaks(text) for text in texts)
        while chunk := list(islice(cleaned, _TEXTS_AT_ONCE)):
            self._tokenizer.enable_truncation(max_length)
            with reading("the texts", "numbers of the tokenizer"):
                encodings = self._tokenizer.encode_batch_fast(chunk)
            self._tokenizer.no_truncation()
            for encoding in encodings:
                # Padding inside a text is its name in plain letters, and would hide it.
                kept = [self._moved[i] for i in encoding.ids if i != self._padding]
                yield kept or [self._empty]


def load_tokenizer(path: Path) -> SubwordTokenizer:
    """Read a pretrained tokenizer from a ``tokenizer.json`` of the library ``tokenizers``."""
    library = require("tokenizers", extra="tokenizers", distribution="probseq-apps")
    with reading(path, "a tokenizer.json"):
        return SubwordTokenizer(library.Tokenizer.from_str(path.read_text(encoding="utf-8")))


def train_byte_pairs(texts: Iterable[str], size: int) -> SubwordTokenizer:
    """Learn a byte-level tokenizer by byte pair encoding (Sennrich et al. 2016).

    Texts are lower-cased, as for words. Every byte is a token, so no text is unknown.
    """
    library = require("tokenizers", extra="tokenizers", distribution="probseq-apps")
    parts, normalizers = library.pre_tokenizers, library.normalizers
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = parts.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=size - 2,  # padding, and a text without any token
        min_frequency=2,
        initial_alphabet=sorted(parts.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((drop_line_breaks(text) for text in texts), trainer)
    return SubwordTokenizer(tokenizer)


def make_tokenizer(name: str, train_texts: Sequence[str]) -> Tokenizer:
    """Build the tokenizer that an option names.

    Args:
        name: ``"words"``, ``"bpe:SIZE"`` or the path of a ``tokenizer.json``.
        train_texts: what the first two learn from.
    """
    choice = tokenizer_choice(name)
    if isinstance(choice, Path):
        return load_tokenizer(choice)
    if isinstance(choice, int):
        return train_byte_pairs(train_texts, choice)
    return build_vocabulary(train_texts)


def _padding_number(tokenizer: Any) -> int | None:
    if tokenizer.padding is not None:
        return tokenizer.token_to_id(tokenizer.padding["pad_token"])
    found = (tokenizer.token_to_id(name) for name in _PADDING_NAMES)
    return next((number for number in found if number is not None), None)
