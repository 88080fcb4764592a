"""Texts as numbers of tokens, by the library `tokenizers`: words, byte pairs, or a pretrained file.

0 is padding, as `probseq.transformers.TextTransformer` has it, and no text is padding alone: a row
of it would hide everything from attention.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import torch
from jaxtyping import Int64
from tokenizers import Regex, Tokenizer
from tokenizers.models import BPE, WordLevel
from tokenizers.normalizers import NFC, Lowercase
from tokenizers.normalizers import Sequence as Normalizers
from tokenizers.pre_tokenizers import ByteLevel, Split
from tokenizers.trainers import BpeTrainer, WordLevelTrainer
from torch import Tensor

PAD, UNKNOWN = "<pad>", "<unk>"
_RARE, _MOST_WORDS = 2, 20_000  # occurrences that a word needs; numbers of a vocabulary
_LINE_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
# A word keeps its inner apostrophes ("won't"); every other sign is a token.
_WORD = r"[\p{L}\p{N}_]+(?:'[\p{L}\p{N}_]+)*|[^\p{L}\p{N}_\s]"
# Names of padding in tokenizers without a section `padding`.
_PADDING_NAMES = ("[PAD]", "<pad>", "<PAD>", "<|pad|>")
_TEXTS_AT_ONCE = 1_000  # an encoding holds far more than its numbers


def drop_line_breaks(text: str) -> str:
    """Replace HTML line breaks, of which film reviews are full, by spaces."""
    return _LINE_BREAK.sub(" ", text)


class TextTokenizer:
    """A tokenizer of the library `tokenizers`, its numbers moved so that 0 is padding.

    If it has a padding token, that one becomes 0 and those before it move up by one; otherwise all
    move up by one. Its special tokens ([CLS], [SEP]) count in `max_length` and survive cutting off.
    HTML line breaks are dropped first. `empty` is the number of a text without any token, None for
    one more at the end.
    """

    def __init__(self, tokenizer: Tokenizer, *, empty: int | None = None) -> None:
        self._tokenizer = tokenizer
        self._padding = _padding_number(tokenizer)
        tokenizer.no_padding()
        tokenizer.no_truncation()
        # Numbers of a vocabulary may have gaps.
        top = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        first = top if self._padding is None else self._padding
        self._moved = [number + (number < first) for number in range(top)]
        self._size = top + (self._padding is None) + (empty is None)
        self._empty = self._size - 1 if empty is None else empty

    def __len__(self) -> int:
        return self._size

    def encode_all(self, texts: Iterable[str], max_length: int) -> Iterator[list[int]]:
        """Yield 1 to `max_length` numbers for each text."""
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
            finally:
                self._tokenizer.no_truncation()
            for encoding in encodings:
                # Padding inside a text is its name in plain letters, and would hide it.
                numbers = [self._moved[i] for i in encoding.ids if i != self._padding]
                yield numbers or [self._empty]


def read_tokenizer(path: Path) -> TextTokenizer:
    """Read a pretrained ``tokenizer.json``."""
    return TextTokenizer(Tokenizer.from_str(path.read_text("utf-8")))


def build_vocabulary(texts: Iterable[str]) -> TextTokenizer:
    """Learn the words of training texts: the most frequent ones, ties in alphabetical order.

    They are lower-cased and need two occurrences; there are 20,000 numbers in all, of which 0 is
    padding and 1 any other word, and a text without any.
    """
    tokenizer = Tokenizer(WordLevel())
    tokenizer.normalizer = Lowercase()
    tokenizer.pre_tokenizer = Split(Regex(_WORD), "removed", invert=True)
    trainer = WordLevelTrainer(vocab_size=_MOST_WORDS - 2, min_frequency=_RARE, show_progress=False)
    tokenizer.train_from_iterator(map(drop_line_breaks, texts), trainer)
    numbers = {word: number + 2 for word, number in tokenizer.get_vocab().items()}
    tokenizer.model = WordLevel({PAD: 0, UNKNOWN: 1} | numbers, unk_token=UNKNOWN)
    return TextTokenizer(tokenizer, empty=1)


def train_byte_pairs(texts: Iterable[str], size: int) -> TextTokenizer:
    """Learn a byte-level tokenizer by byte pair encoding (Sennrich et al. 2016).

    Texts are lower-cased, as for words. Every byte is a token, so no text is unknown. The size is
    that of all numbers, at least 258: all bytes, padding, and a text without any token.
    """
    tokenizer = Tokenizer(BPE())
    tokenizer.normalizer = Normalizers([NFC(), Lowercase()])
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=True)
    trainer = BpeTrainer(
        vocab_size=size - 2,  # padding, and a text without any token
        min_frequency=_RARE,
        initial_alphabet=sorted(ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(map(drop_line_breaks, texts), trainer)
    return TextTokenizer(tokenizer)


def encode_texts(
    tokenizer: TextTokenizer, texts: Sequence[str], max_length: int
) -> Int64[Tensor, "n t"]:
    """Turn texts into token numbers (N, T), cut off at `max_length` and padded with 0 to it."""
    tokens = torch.zeros(len(texts), max_length, dtype=torch.int64)
    for row, encoded in enumerate(tokenizer.encode_all(texts, max_length)):
        tokens[row, : len(encoded)] = torch.tensor(encoded)
    return tokens


def trim_padding(tokens: Int64[Tensor, "n t"]) -> Int64[Tensor, "n s"]:
    """Cut off the columns that are padding in every text; one column stays."""
    return tokens[:, : max(1, int((tokens != 0).sum(1).max()))]


def _padding_number(tokenizer: Tokenizer) -> int | None:
    if tokenizer.padding is not None:
        return tokenizer.token_to_id(tokenizer.padding["pad_token"])
    numbers = (tokenizer.token_to_id(name) for name in _PADDING_NAMES)
    return next((number for number in numbers if number is not None), None)
