"""Load a data set by its name."""

from pathlib import Path

import torch

from probseq_apps.data.containers import (
    EmbeddedTextData,
    EmbeddedTextSplit,
    ImageData,
    ImageSplit,
    TextData,
    TextSplit,
)
from probseq_apps.data.digits import digits
from probseq_apps.data.errors import DataError
from probseq_apps.data.image_folder import load_image_folder
from probseq_apps.data.image_sets import load_image_set, load_image_test
from probseq_apps.data.names import WORDS, data_kind, own_path, tokenizer_choice
from probseq_apps.data.text_inputs import embedded, tokenized
from probseq_apps.data.text_sets import TextProtocol, read_parts
from probseq_apps.data.transforms import match_images

__all__ = [
    "EmbeddedTextData",
    "EmbeddedTextSplit",
    "ImageData",
    "ImageSplit",
    "TextData",
    "TextSplit",
    "load_data",
    "load_ood_images",
    "load_test_images",
    "load_texts",
]


def load_data(
    name: str,
    *,
    data_dir: Path | None = None,
    seed: int = 0,
    download: bool = False,
    max_length: int | None = None,
    image_size: int | None = None,
    split: TextProtocol = "thesis",
    text_column: str = "text",
    label_column: str = "label",
    tokenizer: str = WORDS,
    embeddings: Path | None = None,
) -> ImageData | TextData | EmbeddedTextData:
    """Load a data set: read, check, split, and turn texts into tokens.

    Splits are fixed, so that every run holds out the same rows; only ``split="thesis"`` of the text
    sets depends on the seed, as in the thesis. Nothing is written but by ``download``.

    Args:
        name: one of ``DATA_NAMES``, ``folder:PATH`` (images, see ``image_folder``) or ``csv:PATH``
            (texts, see ``text_files.read_csv``).
        data_dir: directory of the files; not needed for ``digits``, ``folder:`` and ``csv:``.
        seed: seed of the run.
        download: fetch missing files of the standard image sets into ``data_dir``.
        max_length: longest text in tokens; by default 64 for CoLA, 512 for IMDB, 256 for a CSV.
        image_size: side to resize the images of a folder to.
        split: the thesis' or the official split of a text set, see ``text_sets``.
        text_column: column of the texts in a CSV.
        label_column: column of the labels in a CSV.
        tokenizer: what turns texts into numbers: ``"words"``, ``"bpe:SIZE"`` (byte pairs), both
            learned from the training texts, or the path of a pretrained ``tokenizer.json``.
        embeddings: file or folder of precomputed contextual embeddings of the texts, which take
            the place of the tokenizer; see the module ``embeddings``.

    Raises:
        DataError: unknown name, missing or damaged files, options that don't go together; the
            message names the thing.
        MissingExtraError: the tokenizer needs a library that is not installed.
    """
    kind = data_kind(name)
    if kind == "image":
        if tokenizer != WORDS or embeddings is not None:
            raise DataError(f"tokenizer and embeddings are for texts, and {name!r} holds images")
        path = own_path(name)
        if path is not None:
            return load_image_folder(path, image_size=image_size)
        return digits() if name == "digits" else load_image_set(name, data_dir, download=download)
    if download and own_path(name) is None:
        raise DataError(f"{name!r} cannot be fetched: put its files under --data-dir yourself")
    if tokenizer != WORDS and embeddings is not None:
        raise DataError(
            f"embeddings take the place of the tokenizer, but got tokenizer={tokenizer!r} and "
            f"embeddings={str(embeddings)!r}: give one of them"
        )
    tokenizer_choice(tokenizer)  # refuses unknown names before anything is read
    parts = read_parts(
        name,
        data_dir=data_dir,
        seed=seed,
        split=split,
        text_column=text_column,
        label_column=label_column,
    )
    if embeddings is not None:
        return embedded(parts, embeddings, max_length=max_length)
    return tokenized(parts, tokenizer, max_length=max_length)


def load_texts(
    name: str,
    *,
    data_dir: Path | None = None,
    text_column: str = "text",
    label_column: str = "label",
) -> list[str]:
    """Load all texts of a text set, each once: what ``write_embeddings`` wants embeddings of.

    Args:
        name: ``cola``, ``imdb`` or ``csv:PATH``.
        data_dir: directory of the files.
        text_column: column of the texts in a CSV.
        label_column: column of the labels in a CSV.

    Raises:
        DataError: the set holds images, or its files are missing or damaged.
    """
    if data_kind(name) != "text":
        raise DataError(f"{name!r} holds images, but texts are needed")
    # What one part loses as a repeat stands in another: every split holds all texts.
    parts = read_parts(
        name,
        data_dir=data_dir,
        seed=0,
        split="official",
        text_column=text_column,
        label_column=label_column,
    )
    return parts.all_texts()


def load_test_images(
    name: str,
    *,
    data_dir: Path | None = None,
    download: bool = False,
    image_size: int | None = None,
) -> ImageSplit:
    """Load only the test images of an image set; its training files need not be there.

    Raises:
        DataError: the set holds texts, or its test files are missing or damaged.
    """
    if data_kind(name) != "image":
        raise DataError(f"{name!r} holds texts, but images are needed")
    path = own_path(name)
    if path is not None:
        return load_image_folder(path, image_size=image_size).test
    if name == "digits":
        return digits().test
    return load_image_test(name, data_dir, download=download)


def load_ood_images(
    name: str,
    like: ImageData,
    *,
    data_dir: Path | None = None,
    download: bool = False,
) -> ImageSplit:
    """Load test images of another set as out-of-distribution data for a model trained on ``like``.

    They are given the channels and the size of ``like`` (see ``match_images``). Images that occur,
    pixel for pixel, in ``like`` are dropped, and so are repeats: two images of CIFAR-100 are in
    CIFAR-10 too.

    Args:
        name: name of the other set.
        like: the in-distribution data.
        data_dir: directory of the files.
        download: fetch missing files.

    Returns:
        Images that fit ``like``, and their labels in the other set.
    """
    if name == like.name:
        raise DataError(f"out-of-distribution data must differ from {like.name!r} itself")
    # Only a folder of one's own can hold images of mixed sizes.
    other = load_test_images(name, data_dir=data_dir, download=download, image_size=like.image_size)
    images = match_images(other.images, channels=like.channels, image_size=like.image_size)
    seen = {
        row.tobytes()
        for part in (like.train, like.validation, like.test)
        for row in part.images.numpy()
    }
    kept: list[int] = []
    for row, image in enumerate(images.numpy()):
        if (content := image.tobytes()) not in seen:
            seen.add(content)
            kept.append(row)
    rows = torch.tensor(kept, dtype=torch.int64)
    return ImageSplit(images[rows], other.labels[rows])
