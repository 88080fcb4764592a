"""Settings of how data sets are read; importable without torch."""

from typing import Annotated, Literal

from probseq.settings import Bound, Count, Index, Settings
from probseq_apps.data.names import WORDS, tokenizer_choice

_DISTINCT = Bound("without repetitions", lambda values: len(set(values)) == len(values))


class DataSettings(Settings):
    """Data."""

    split: Literal["thesis", "official"] = "thesis"
    """cola, imdb: the thesis' split of all labelled texts, or the published one."""
    image_size: Count | None = None
    """folder: side to crop and resize the images to."""
    text_column: str = "text"
    """csv: column of the texts."""
    label_column: str = "label"
    """csv, sequences: column of the labels."""
    unknown: Annotated[tuple[str, ...], _DISTINCT] = ()
    """Classes that are left out of training, and then to be told from the others."""
    num_unknown: Index = 0
    """Without --unknown, so many classes, neighbours in a fixed random order, others for each
    seed."""
    tokenizer: str = WORDS
    """Texts: words, bpe:SIZE (byte pairs), both learned from the training texts, or the path of a
    pretrained tokenizer.json."""
    train_size: Count | None = None
    """Labelled examples to train on, chosen at random with the same share of each class: others for
    each seed, but for the members of an ensemble; None: all of them."""

    def check(self) -> None:
        """Refuse unknown tokenizers."""
        tokenizer_choice(self.tokenizer)

    @property
    def unknown_text(self) -> str:
        """The classes that are left out of training; "" where none are."""
        count = f"{self.num_unknown} classes, others for each seed" if self.num_unknown else ""
        return ", ".join(self.unknown) or count


class MoleculeSettings(Settings):
    """Data."""

    smiles_column: str = "smiles"
    """Column of the molecules, as SMILES."""
    target: str = "score"
    """Column of the number to predict."""
    validation_size: Count | None = None
    """Molecules for choosing the weights; None: a tenth. For a set that comes without a split."""
    test_size: Count | None = None
    """Molecules for evaluation; None: a tenth. For a set that comes without a split."""
    max_atoms: Count = 100
    """Most atoms of a molecule, hydrogens not counted; a larger one is refused."""
