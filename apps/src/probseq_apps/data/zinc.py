"""ZINC and molecules of one's own: files, splits, tokens, and graphs with swapped edges.

`zinc` is read from the data folder. Three files `zinc/train.csv`, `zinc/validation.csv` and
`zinc/test.csv` give the split of their own: with the 10,000 + 1,000 + 1,000 molecules of Dwivedi et
al. (2020), the thesis' one (app. B.4). One file, `zinc/zinc.csv` or the 1,002 molecules of
`zinc_micro/zinc_micro.csv`, and a file of one's own, is split at random, by a fixed seed: a tenth
each for validation and test unless said otherwise, the rest for training.

The target of `zinc` is a column `score`, logP - SA here; the benchmark's has a penalty for large
cycles, too, and is normalised. Errors are reported in the target's own unit.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from probseq_apps.data.errors import DataError
from probseq_apps.data.graph_tokens import TokenLayout, num_tokens, stack_tokens
from probseq_apps.data.graphs import Graph, swap_edges
from probseq_apps.data.molecule_files import Molecules, read_molecules
from probseq_apps.data.molecules import ATOM_FEATURES, BOND_FEATURES
from probseq_apps.data.names import filled_data_folder, own_path
from probseq_apps.data.splits import SPLIT_SEED, permutation

PARTS = ("train", "validation", "test")
FILES = ("zinc/zinc.csv", "zinc_micro/zinc_micro.csv")
FEWEST = 10

# The same swapped edges for every method, seed and run.
_SWAP_SEED = 0


@dataclass(frozen=True, eq=False)
class GraphSplit:
    """Graphs as tokens, and the property to predict.

    Attributes:
        tokens: see `graph_tokens`.
        targets: in their own unit.
    """

    tokens: Float[Tensor, "n t w"]
    targets: Float[Tensor, " n"]

    def __len__(self) -> int:
        """Number of graphs."""
        return len(self.targets)


@dataclass(frozen=True, eq=False)
class GraphData:
    """A set of molecules.

    Attributes:
        name: as on the command line.
        target: name of the property.
        train: for training.
        validation: for choosing the weights.
        test: for evaluation.
        swapped: the test graphs with their edges swapped, see `graphs.swap_edges`; their targets
            are those of the graphs that they were.
        layout: widths of the parts of a token.
        notes: what a reader of the results should know.
    """

    name: str
    target: str
    train: GraphSplit
    validation: GraphSplit
    test: GraphSplit
    swapped: GraphSplit
    layout: TokenLayout
    notes: tuple[str, ...] = ()

    @property
    def max_tokens(self) -> int:
        """Longest sequence, padding included."""
        return self.train.tokens.shape[1]


def load_molecules(
    name: str,
    *,
    data_dir: Path | None = None,
    smiles_column: str = "smiles",
    target_column: str = "score",
    validation_size: int | None = None,
    test_size: int | None = None,
    max_atoms: int = 100,
) -> GraphData:
    """Load molecules: read, check, split, and turn into tokens. Nothing is written.

    A SMILES that stands in the file twice is taken once.

    Args:
        name: `zinc`, or `csv:PATH` for a file of one's own.
        data_dir: folder of the data sets; not needed for `csv:`.
        smiles_column: column of the SMILES.
        target_column: column of the property to predict.
        validation_size: molecules for validation; None for a tenth. For a set without a split.
        test_size: likewise for test.
        max_atoms: most atoms of a molecule, hydrogens not counted.

    Raises:
        DataError: files or columns are missing, a row is damaged, or there are too few molecules.
        MissingExtraError: RDKit is not installed.
    """
    paths = _find(name, data_dir)
    parts = [
        read_molecules(
            path, smiles_column=smiles_column, target_column=target_column, max_atoms=max_atoms
        )
        for path in paths
    ]
    notes = _notes(name, paths, parts)
    parts = _without_repeats(parts)
    if len(parts) == 1:
        parts = _split(name, parts[0], validation_size, test_size)
    elif validation_size is not None or test_size is not None:
        raise DataError(
            f"validation_size and test_size are for one file, and {name!r} comes in "
            f"{', '.join(str(path) for path in paths)}: leave them out"
        )
    if len(set(parts[0].targets)) < 2:
        raise DataError(
            f"{name!r} needs different values of {target_column!r} in its training part"
        )
    return _tokenized(name, target_column, parts, notes)


def _find(name: str, data_dir: Path | None) -> list[Path]:
    path = own_path(name)
    if path is not None:
        return [path]
    folder = filled_data_folder(name, data_dir)
    published = [folder / "zinc" / f"{part}.csv" for part in PARTS]
    if all(path.is_file() for path in published):
        return published
    for file in FILES:
        if (folder / file).is_file():
            return [folder / file]
    raise DataError(
        f"no files of {name!r} under {folder}: put zinc/train.csv, zinc/validation.csv and "
        f"zinc/test.csv there, or one file {' or '.join(FILES)}, or use --data csv:PATH"
    )


def _notes(name: str, paths: list[Path], parts: list[Molecules]) -> tuple[str, ...]:
    smiles = [text for part in parts for text in part.smiles]
    notes: list[str] = []
    if len(paths) == 1 and paths[0].name == "zinc_micro.csv":
        notes.append(
            f"{name}: the small file of {len(smiles):,} molecules, not the benchmark's 12,000"
        )
    if salts := sum("." in text for text in smiles):
        notes.append(f"{name}: {salts} molecules have several components, kept as one graph each")
    if repeats := len(smiles) - len(set(smiles)):
        notes.append(f"{name}: {repeats} rows left out, whose SMILES stand in the data already")
    return tuple(notes)


def _without_repeats(parts: Sequence[Molecules]) -> list[Molecules]:
    """Keep one of equal SMILES: in the last part that has it, so that test parts stay whole."""
    seen: Counter[str] = Counter()
    kept: list[Molecules] = []
    for part in reversed(parts):
        rows: list[int] = []
        for row, smiles in enumerate(part.smiles):
            seen[smiles] += 1
            if seen[smiles] == 1:
                rows.append(row)
        kept.insert(0, _rows(part, rows))
    return kept


def _split(
    name: str, whole: Molecules, validation_size: int | None, test_size: int | None
) -> list[Molecules]:
    size = len(whole.smiles)
    tenth = size // 10
    sizes = [tenth if given is None else given for given in (validation_size, test_size)]
    if size < FEWEST or size - sum(sizes) < max(sizes):
        raise DataError(
            f"{name!r} has {size} molecules, too few: it needs {FEWEST} at least, and as many for "
            f"training as for validation ({sizes[0]}) and for test ({sizes[1]})"
        )
    order = permutation(size, SPLIT_SEED)
    pieces = order.split([size - sum(sizes), *sizes])
    return [_rows(whole, piece.sort().values.tolist()) for piece in pieces]


def _rows(molecules: Molecules, rows: list[int]) -> Molecules:
    return Molecules(
        [molecules.smiles[row] for row in rows],
        [molecules.graphs[row] for row in rows],
        [molecules.targets[row] for row in rows],
    )


def _tokenized(
    name: str, target: str, parts: Sequence[Molecules], notes: tuple[str, ...]
) -> GraphData:
    every = [graph for part in parts for graph in part.graphs]
    layout = TokenLayout(ATOM_FEATURES, BOND_FEATURES, max(len(graph.nodes) for graph in every))
    # Swapping never adds edges, so the swapped graphs are no longer.
    longest = max(map(num_tokens, every))

    def split(graphs: Sequence[Graph], targets: list[float]) -> GraphSplit:
        return GraphSplit(
            stack_tokens(graphs, layout, longest), torch.tensor(targets, dtype=torch.float64)
        )

    train, validation, test = (split(part.graphs, part.targets) for part in parts)
    generator = torch.Generator().manual_seed(_SWAP_SEED)
    swapped = [swap_edges(graph, generator) for graph in parts[2].graphs]
    return GraphData(
        name=name,
        target=target,
        train=train,
        validation=validation,
        test=test,
        swapped=split(swapped, parts[2].targets),
        layout=layout,
        notes=notes,
    )
