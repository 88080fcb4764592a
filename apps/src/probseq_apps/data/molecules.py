"""ZINC and molecules of one's own: files, splits, and graphs as sequences of tokens.

`zinc` is read from the data folder. Three files `zinc/train.csv`, `zinc/validation.csv` and
`zinc/test.csv` give the split of their own: with the 10,000 + 1,000 + 1,000 molecules of Dwivedi et
al. (2020), the thesis' one (app. B.4). One file, `zinc/zinc.csv` or the 1,002 molecules of
`zinc_micro/zinc_micro.csv`, and a file of one's own, is split at random, by a fixed seed: a tenth
each for validation and test unless said otherwise, the rest for training.

The target of `zinc` is a column `score`, logP - SA here; the benchmark's has a penalty for large
cycles, too, and is normalised. A salt, or any SMILES with a dot, is a graph of several components.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from probseq.checks import parse_number
from probseq.errors import require
from probseq_apps.data.graphs import Graph, TokenLayout, num_tokens, stack_tokens, swap_edges
from probseq_apps.data.molecule_graphs import ATOM_FEATURES, BOND_FEATURES, molecule_graph
from probseq_apps.data.names import DataError, data_folder, user_path
from probseq_apps.data.parts import Part, Parts, permutation
from probseq_apps.data.settings import MoleculeSettings
from probseq_apps.data.tables import read_rows

_FILES = ("zinc/zinc.csv", "zinc_micro/zinc_micro.csv")
_FEWEST = 10
# The same swapped edges for every method, seed and run.
_SWAP_SEED = 0
_DEFAULTS = MoleculeSettings()


class Molecule(NamedTuple):
    """A molecule with its property, one finite number."""

    smiles: str  # as the file has it
    graph: Graph
    target: float


@dataclass(frozen=True, eq=False)
class GraphData(Parts[Part]):
    """Molecules as sequences of tokens, with a property to predict in its own unit.

    The extra test set "swapped" has the test graphs with their edges swapped, see `swap_edges`;
    its targets are those of the graphs that they were.
    """

    target: str  # name of the property
    layout: TokenLayout  # widths of the segments of a token

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.train.targets.unique()) < 2:
            raise DataError(
                f"{self.name!r} needs different values of {self.target!r} in its training part"
            )

    @property
    def max_tokens(self) -> int:
        """Longest sequence, padding included."""
        return self.train.inputs.shape[1]


def read_molecules(path: Path, reading: MoleculeSettings) -> list[Molecule]:
    """Read a file of molecules."""
    chem = require("rdkit.Chem", extra="molecules", distribution="probseq-apps")
    base = require("rdkit.rdBase", extra="molecules", distribution="probseq-apps")

    def parse(smiles: str, target: str) -> Molecule:
        # RDKit would tell the terminal what is wrong, and not where.
        with base.BlockLogs():
            molecule = chem.MolFromSmiles(smiles)
        if molecule is None or molecule.GetNumAtoms() == 0:
            raise ValueError(f"{smiles!r} is no molecule that RDKit can read")
        graph = molecule_graph(molecule)
        if len(graph.nodes) > reading.max_atoms:
            raise ValueError(
                f"a molecule must have at most max_atoms={reading.max_atoms} atoms, got "
                f"{len(graph.nodes)}: raise max_atoms or leave it out"
            )
        return Molecule(smiles.strip(), graph, parse_number(target))

    columns = (
        (reading.smiles_column, "molecules, --smiles-column"),
        (reading.target, "property, --target"),
    )
    return read_rows(path, columns, parse)


def load_molecules(
    name: str, reading: MoleculeSettings = _DEFAULTS, *, data_dir: Path | None = None
) -> GraphData:
    """Load `zinc`, or `csv:PATH`, as tokens; a SMILES that stands there twice is taken once."""
    paths, sizes = _find(name, data_dir), (reading.validation_size, reading.test_size)
    if len(paths) > 1 and sizes != (None, None):
        raise DataError(
            f"validation_size and test_size are for one file, and {name!r} comes in "
            f"{', '.join(map(str, paths))}: leave them out"
        )
    parts = [read_molecules(path, reading) for path in paths]
    smiles = [molecule.smiles for part in parts for molecule in part]
    salts, repeats = sum("." in text for text in smiles), len(smiles) - len(set(smiles))
    remarks = (
        (
            paths[0].name == "zinc_micro.csv",
            f"the small file of {len(smiles):,} molecules, not the benchmark's 12,000",
        ),
        (salts, f"{salts} molecules have several components, kept as one graph each"),
        (repeats, f"{repeats} rows left out, whose SMILES stand in the data already"),
    )
    # Of equal SMILES the first is kept of the last part that has them: test parts stay whole.
    tested: set[str] = set()
    for part in reversed(parts):
        unique = {molecule.smiles: molecule for molecule in reversed(part)}
        part[:] = [m for m in part if unique[m.smiles] is m and m.smiles not in tested]
        tested.update(unique)
    if len(parts) == 1:
        split = _split(name, len(parts[0]), *sizes)
        parts = [[parts[0][row] for row in rows.tolist()] for rows in split]
    every = [molecule.graph for part in parts for molecule in part]
    layout = TokenLayout(ATOM_FEATURES, BOND_FEATURES, max(len(graph.nodes) for graph in every))
    # Swapping never adds edges, so the swapped graphs are no longer.
    longest = max(map(num_tokens, every))
    generator = torch.Generator().manual_seed(_SWAP_SEED)
    swapped = [m._replace(graph=swap_edges(m.graph, generator)) for m in parts[2]]
    train, validation, test, changed = (
        Part(
            stack_tokens([molecule.graph for molecule in part], layout, longest),
            torch.tensor([molecule.target for molecule in part], dtype=torch.float64),
        )
        for part in (*parts, swapped)
    )
    return GraphData(
        *(name, train, validation, test, reading.target, layout),
        extra_tests={"swapped": changed},
        notes=tuple(f"{name}: {text}" for holds, text in remarks if holds),
    )


def _find(name: str, data_dir: Path | None) -> list[Path]:
    path = user_path(name)
    if path is not None:
        return [path]
    folder = data_folder(name, data_dir)
    published = [folder / "zinc" / f"{part}.csv" for part in ("train", "validation", "test")]
    if all(path.is_file() for path in published):
        return published
    for file in _FILES:
        if (folder / file).is_file():
            return [folder / file]
    raise DataError(
        f"no files of {name!r} under {folder}: put zinc/train.csv, zinc/validation.csv and "
        f"zinc/test.csv there, or one file {' or '.join(_FILES)}, or use --data csv:PATH"
    )


def _split(name: str, size: int, validation: int | None, test: int | None) -> tuple[Tensor, ...]:
    validation = size // 10 if validation is None else validation
    test = size // 10 if test is None else test
    if size < _FEWEST or size - validation - test < max(validation, test):
        raise DataError(
            f"{name!r} has {size} molecules, too few: it needs {_FEWEST} at least, and as many for "
            f"training as for validation ({validation}) and for test ({test})"
        )
    pieces = permutation(size).split([size - validation - test, validation, test])
    return tuple(piece.sort().values for piece in pieces)
