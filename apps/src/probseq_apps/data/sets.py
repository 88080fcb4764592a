"""Load a data set by its name."""

from pathlib import Path

from probseq_apps.data.images import ImageData, load_images
from probseq_apps.data.names import WORDS, DataError, data_kind, own_path, tokenizer_choice
from probseq_apps.data.texts import (
    EmbeddedTextData,
    TextData,
    TextProtocol,
    embedded,
    read_parts,
    tokenized,
)


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
        name: one of ``DATA_NAMES``, ``folder:PATH`` (images, see ``folders``) or ``csv:PATH``
            (texts, see ``texts.read_csv``).
        data_dir: directory of the files; not needed for ``digits``, ``folder:`` and ``csv:``.
        seed: seed of the run.
        download: fetch missing files of the standard image sets into ``data_dir``.
        max_length: longest text in tokens; by default 64 for CoLA, 512 for IMDB, 256 for a CSV.
        image_size: side to resize the images of a folder to.
        split: the thesis' or the official split of a text set, see ``texts``.
        text_column: column of the texts in a CSV.
        label_column: column of the labels in a CSV.
        tokenizer: what turns texts into numbers: ``"words"``, ``"bpe:SIZE"`` (byte pairs), both
            learned from the training texts, or the path of a pretrained ``tokenizer.json``.
        embeddings: file or folder of precomputed contextual embeddings of the texts, which take
            the place of the tokenizer; see the module ``embeddings``.

    Raises:
        DataError: unknown name, missing or damaged files, options that don't go together; the
            message names the thing.
    """
    if data_kind(name) == "image":
        if tokenizer != WORDS or embeddings is not None:
            raise DataError(f"tokenizer and embeddings are for texts, and {name!r} holds images")
        return load_images(name, data_dir=data_dir, download=download, image_size=image_size)
    if download and own_path(name) is None:
        raise DataError(f"{name!r} cannot be fetched: put its files under --data-dir yourself")
    if tokenizer != WORDS and embeddings is not None:
        raise DataError(
            f"embeddings take the place of the tokenizer, but got tokenizer={tokenizer!r} and "
            f"embeddings={str(embeddings)!r}: give one of them"
        )
    tokenizer_choice(tokenizer)  # refuses unknown names before anything is read
    columns = {"text_column": text_column, "label_column": label_column}
    parts = read_parts(name, data_dir=data_dir, seed=seed, split=split, **columns)
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
    """Load all texts of a text set, each once: what ``write_embeddings`` wants embeddings of."""
    if data_kind(name) != "text":
        raise DataError(f"{name!r} holds images, but texts are needed")
    # What one part loses as a repeat stands in another: every split holds all texts.
    columns = {"text_column": text_column, "label_column": label_column}
    return read_parts(name, data_dir=data_dir, seed=0, split="official", **columns).all_texts()
