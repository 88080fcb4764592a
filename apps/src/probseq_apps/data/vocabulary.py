"""Words to numbers: a tokenizer and a vocabulary learned from the training texts alone."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from probseq_apps.data.errors import DataError

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


@dataclass(frozen=True)
class Vocabulary:
    """Known tokens in the order of their numbers; 0 is padding, 1 any unknown token."""

    tokens: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.tokens[:2] != (PAD, UNKNOWN):
            raise DataError(f"a vocabulary must begin with {PAD}, {UNKNOWN}, got {self.tokens[:2]}")
        if len(set(self.tokens)) != len(self.tokens):
            raise DataError("a vocabulary must hold each token once, but some are repeated")

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Number of each token."""
        return {token: number for number, token in enumerate(self.tokens)}

    def encode(self, text: str, max_length: int) -> list[int]:
        """Return the numbers of the first ``max_length`` tokens of a text.

        A text without any token becomes one unknown token: a row of padding alone would hide
        everything from attention.
        """
        numbers = self.numbers
        encoded = [numbers.get(token, UNKNOWN_ID) for token in tokenize(text)[:max_length]]
        return encoded or [UNKNOWN_ID]

    def encode_all(self, texts: Iterable[str], max_length: int) -> Iterator[list[int]]:
        """Yield the numbers of each text, as ``encode`` gives them."""
        return (self.encode(text, max_length) for text in texts)

    def save(self, path: Path) -> None:
        """Write the vocabulary as JSON."""
        path.write_text(json.dumps({"tokens": self.tokens}, ensure_ascii=False), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Vocabulary":
        """Read a vocabulary that ``save`` wrote.

        Raises:
            DataError: the file is missing or is no vocabulary.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            tokens = content["tokens"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} cannot be read as a vocabulary: {error}") from error
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise DataError(f"{path}: 'tokens' must be a list of strings")
        return cls(tuple(tokens))


def build_vocabulary(
    texts: Iterable[str], *, min_frequency: int = 2, max_size: int = 20_000
) -> Vocabulary:
    """Learn a vocabulary: the most frequent tokens, ties in alphabetical order.

    Args:
        texts: the training texts, and no others.
        min_frequency: rarer tokens are unknown. Above 1, so that the unknown token is trained.
        max_size: largest number of tokens, padding and unknown included.

    Returns:
        The same vocabulary for the same texts, in whatever order they come.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(tokenize(text))
    frequent = [(-count, token) for token, count in counts.items() if count >= min_frequency]
    kept = [token for _, token in sorted(frequent)[: max_size - 2]]
    return Vocabulary((PAD, UNKNOWN, *kept))
