"""What a loaded data set is: tensors, class names, normalisation.

Letters: N rows, C channels, H and W image height and width, T tokens of a padded text, E width of
an embedding.
"""

from dataclasses import dataclass, field

from jaxtyping import Float32, Int64, UInt8
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from probseq_apps.data.errors import DataError
from probseq_apps.data.tokenizers import Tokenizer


@dataclass(frozen=True, eq=False)
class ImageSplit:
    """Images (N, C, H, W) as bytes 0..255 and their labels (N,)."""

    images: UInt8[Tensor, "n c h w"]
    labels: Int64[Tensor, " n"]

    def __len__(self) -> int:
        return self.labels.shape[0]


@dataclass(frozen=True, eq=False)
class TextSplit:
    """Token numbers (N, T), padded with 0 on the right, and labels (N,)."""

    tokens: Int64[Tensor, "n t"]
    labels: Int64[Tensor, " n"]

    def __len__(self) -> int:
        return self.labels.shape[0]


@dataclass(frozen=True, eq=False)
class EmbeddedTextSplit:
    """Where each text's vectors stand, (N, 3), and labels (N,).

    A row of ``spans`` is (table, first row, number of rows); ``EmbeddedTextData.padded`` fetches
    them. So a batch is padded no further than its longest text, and the tables stay on disk.
    """

    spans: Int64[Tensor, "n 3"]
    labels: Int64[Tensor, " n"]

    def __len__(self) -> int:
        return self.labels.shape[0]


@dataclass(frozen=True, eq=False)
class ImageData:
    """An image data set in three parts.

    ``mean`` and ``std`` are per channel, for images scaled to 0..1. ``notes`` tells what a reader
    of the results should know about the data, e.g. that files were incomplete.
    """

    name: str
    train: ImageSplit
    validation: ImageSplit
    test: ImageSplit
    mean: tuple[float, ...]
    std: tuple[float, ...]
    class_names: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for part in (self.train, self.validation, self.test):
            check_labels(part.labels, self.num_classes, self.name)
        for label, part in (("train", self.train), ("test", self.test)):
            if len(part) == 0:
                raise DataError(f"data set {self.name!r} has no {label} images")

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def channels(self) -> int:
        """1 for grey images, 3 for colour."""
        return self.train.images.shape[1]

    @property
    def image_size(self) -> int:
        """Height and width in pixels (all images are square)."""
        return self.train.images.shape[2]


@dataclass(frozen=True, eq=False)
class TextData:
    """A text data set, tokenized.

    Every split is padded to ``max_length`` tokens. ``validation`` has no rows where the split
    that is asked for has no validation part. ``extra_tests`` holds further test sets by name, e.g.
    ``"out-of-domain"`` for CoLA. ``notes`` tells what a reader of the results should know.
    """

    name: str
    train: TextSplit
    validation: TextSplit
    test: TextSplit
    vocab: Tokenizer
    class_names: tuple[str, ...]
    max_length: int
    extra_tests: dict[str, TextSplit] = field(default_factory=dict[str, TextSplit])
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_texts(self)

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)


@dataclass(frozen=True, eq=False)
class EmbeddedTextData:
    """A text data set whose tokens are precomputed vectors; for the rest see ``TextData``.

    ``tables`` are vectors (R, E), usually memory-mapped, into which the splits' ``spans`` point.
    """

    name: str
    train: EmbeddedTextSplit
    validation: EmbeddedTextSplit
    test: EmbeddedTextSplit
    tables: tuple[Tensor, ...]
    class_names: tuple[str, ...]
    max_length: int
    extra_tests: dict[str, EmbeddedTextSplit] = field(default_factory=dict[str, EmbeddedTextSplit])
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_texts(self)

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def input_dim(self) -> int:
        """Width E of the vectors."""
        return self.tables[0].shape[1]

    def padded(self, spans: Int64[Tensor, "n 3"]) -> Float32[Tensor, "n t e"]:
        """Fetch the vectors of texts, on the device of ``spans``; rows of zeros are padding."""
        texts = [self.tables[k][start : start + length] for k, start, length in spans.tolist()]
        return pad_sequence(texts, batch_first=True).to(spans.device).float()


def _check_texts(data: TextData | EmbeddedTextData) -> None:
    for part in (data.train, data.validation, data.test, *data.extra_tests.values()):
        check_labels(part.labels, data.num_classes, data.name)
    for label, part in (("train", data.train), ("test", data.test)):
        if len(part) == 0:
            raise DataError(f"data set {data.name!r} has no {label} texts")


def check_labels(labels: Int64[Tensor, " n"], num_classes: int, source: object) -> None:
    """Refuse labels outside 0..num_classes-1.

    Args:
        labels: class numbers.
        num_classes: number of classes.
        source: file or data set, named in the message.

    Raises:
        DataError: a label is out of range.
    """
    bad = ((labels < 0) | (labels >= num_classes)).nonzero()
    if len(bad):
        row = int(bad[0])
        raise DataError(
            f"{source}: labels must lie in 0..{num_classes - 1}, "
            f"but row {row} has {int(labels[row])} ({len(bad)} such rows)"
        )
