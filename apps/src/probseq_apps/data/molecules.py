"""ZINC and molecules of one's own: files, splits, tokens, and graphs with swapped edges.

`zinc` is read from the data folder. Three files `zinc/train.csv`, `zinc/validation.csv` and
`zinc/test.csv` give the split of their own: with the 10,000 + 1,000 + 1,000 molecules of Dwivedi et
al. (2020), the thesis' one (app. B.4). One file, `zinc/zinc.csv` or the 1,002 molecules of
`zinc_micro/zinc_micro.csv`, and a file of one's own, is split at random, by a fixed seed: a tenth
each for validation and test unless said otherwise, the rest for training.

The target of `zinc` is a column `score`, logP - SA here; the benchmark's has a penalty for large
cycles, too, and is normalised. Errors are reported in the target's own unit.

Atoms are nodes, bonds edges; features are ones and zeros. An atom has its element, formal charge,
number of hydrogens, and whether it is aromatic; a bond has its kind. Stereochemistry and isotopes
are left out. A salt, or any SMILES with a dot in it, is one graph of several components.

Graphs become sequences of tokens in the way of TokenGT (Kim et al. 2022). Each node is a token and
each edge two, one for each direction. A token is a row of numbers:

    node features | edge features | identifier of u | identifier of v | is a node, is an edge

with u = v for a node, and zeros in place of features that it doesn't have. A transformer's linear
embedding of this row is the sum of TokenGT's embeddings of features, identifiers and type. A row of
zeros is padding: a token is never zero, since it has a type.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from probseq.errors import require
from probseq_apps.data.names import DataError, filled_data_folder, own_path
from probseq_apps.data.parts import SPLIT_SEED, Part, Parts, permutation
from probseq_apps.data.tabular import csv_columns, csv_header

# Sums of cubes below this are round-off: the eigenvector is antisymmetric.
_ROUND_OFF = 1e-8


class Graph(NamedTuple):
    """An undirected graph without loops."""

    nodes: Float[Tensor, "n a"]  # features of each node
    ends: Int64[Tensor, "m 2"]  # the two nodes of each edge; an edge stands here once
    edges: Float[Tensor, "m b"]  # features of each edge


def adjacency(graph: Graph) -> Float[Tensor, "n n"]:
    """Adjacency matrix of ones and zeros, in float64."""
    size = len(graph.nodes)
    matrix = torch.zeros(size, size, dtype=torch.float64)
    first, second = graph.ends.unbind(1)
    matrix[first, second] = matrix[second, first] = 1.0
    return matrix


def laplacian_identifiers(graph: Graph) -> Float[Tensor, "n n"]:
    r"""Orthonormal node identifiers: the rows of the Laplacian's eigenvectors (TokenGT, Sec. 3.1).

    The eigenvectors of :math:`D^{+1/2} (D - A) D^{+1/2}` (nodes without edges have zero rows there)
    stand in the columns, smallest eigenvalue first. The matrix is orthogonal, so the dot product of
    two identifiers tells whether they are of the same node, and edges can find their ends.

    An eigenvector's sign is free. It is chosen so that the sum of the cubes is positive, which
    doesn't depend on the order of the nodes; where that sum is zero, as it is for antisymmetric
    vectors, so that the first entry that is not zero is positive. Where an eigenvalue repeats (two
    methyl groups on one atom are enough), the basis of its eigenspace is the solver's: identifiers
    stay orthonormal, but are no function of the graph alone.
    """
    matrix = adjacency(graph)
    degrees = matrix.sum(1)
    scale = torch.where(degrees > 0.0, degrees.clamp(min=1.0).rsqrt(), 0.0)
    laplacian = torch.diag((degrees > 0.0).double()) - scale[:, None] * matrix * scale
    vectors = torch.linalg.eigh(laplacian).eigenvectors
    return vectors * _signs(vectors)


def _signs(vectors: Float[Tensor, "n n"]) -> Float[Tensor, " n"]:
    cubes = vectors.pow(3).sum(0)
    first = (vectors.abs() > _ROUND_OFF).double().argmax(0)
    entries = vectors.gather(0, first[None])[0]
    return torch.where(cubes.abs() > _ROUND_OFF, cubes, entries).sign()


def swap_edges(graph: Graph, generator: torch.Generator) -> Graph:
    """Take all edges away and put as many between nodes that were not connected (thesis B.3.2).

    The thesis leaves open how many edges are added and what their features are. Here there are as
    many as before (or all possible ones, where fewer pairs of nodes are unconnected), each pair of
    nodes is equally likely, and each new edge takes over the features of one of the old ones.
    """
    # Each pair once, loops left out.
    free = torch.triu(adjacency(graph) == 0.0, diagonal=1).nonzero()
    chosen = torch.randperm(len(free), generator=generator)[: len(graph.ends)]
    return Graph(graph.nodes, free[chosen], graph.edges[: len(chosen)])


class TokenLayout(NamedTuple):
    """Widths of the parts of a token."""

    node_features: int  # numbers that describe a node
    edge_features: int  # numbers that describe an edge
    identifiers: int  # numbers of a node identifier; at least the nodes of the largest graph

    @property
    def width(self) -> int:
        """Numbers of a token."""
        return self.node_features + self.edge_features + 2 * self.identifiers + 2


def num_tokens(graph: Graph) -> int:
    """Tokens of a graph."""
    return len(graph.nodes) + 2 * len(graph.ends)


def tokenize(graph: Graph, layout: TokenLayout) -> Float[Tensor, "t w"]:
    """Return tokens of one graph: first the nodes, then the edges forth, then the edges back."""
    size, number = len(graph.nodes), len(graph.ends)
    features = (graph.nodes.shape[1], graph.edges.shape[1])
    if features != layout[:2] or size > layout.identifiers:
        raise ValueError(
            f"graph must have {layout.node_features} node features, {layout.edge_features} edge "
            f"features and at most {layout.identifiers} nodes, got {features[0]}, {features[1]} "
            f"and {size}"
        )
    identifiers = torch.zeros(size, layout.identifiers)
    identifiers[:, :size] = laplacian_identifiers(graph)
    nodes = torch.arange(size)
    first = torch.cat([nodes, graph.ends[:, 0], graph.ends[:, 1]])
    second = torch.cat([nodes, graph.ends[:, 1], graph.ends[:, 0]])
    is_node = (torch.arange(size + 2 * number) < size).float()
    zeros = torch.zeros
    return torch.cat(
        [
            torch.cat([graph.nodes, zeros(2 * number, layout.node_features)]),
            torch.cat([zeros(size, layout.edge_features), graph.edges, graph.edges]),
            identifiers[first],
            identifiers[second],
            torch.stack([is_node, 1.0 - is_node], 1),
        ],
        1,
    )


def stack_tokens(
    graphs: Sequence[Graph], layout: TokenLayout, max_tokens: int
) -> Float[Tensor, "n t w"]:
    """Return tokens of several graphs, padded with zeros to `max_tokens`.

    The whole takes 4·n·t·w bytes: about 65 kB a molecule for the small ZINC set (at most 137 tokens
    of 118 numbers), 0.8 GB for 12,000 of its size.
    """
    tokens = torch.zeros(len(graphs), max_tokens, layout.width)
    for row, graph in enumerate(graphs):
        tokens[row, : num_tokens(graph)] = tokenize(graph, layout)
    return tokens


def flip_signs(
    tokens: Float[Tensor, "n t w"], layout: TokenLayout, generator: torch.Generator
) -> Float[Tensor, "n t w"]:
    """Give each eigenvector of each graph a random sign, the same in all its tokens.

    An eigenvector's sign means nothing; trained on both, a model learns that.
    """
    shape = (len(tokens), layout.identifiers)
    flips = torch.randint(0, 2, shape, generator=generator, device=tokens.device)
    signs = (1.0 - 2.0 * flips).to(tokens.dtype)
    ones = signs.new_ones(len(tokens), 1)
    features = ones.expand(-1, layout.node_features + layout.edge_features)
    return tokens * torch.cat([features, signs, signs, ones, ones], 1)[:, None]


def trim_tokens(tokens: Float[Tensor, "n t w"]) -> Float[Tensor, "n s w"]:
    """Cut off the places that are padding in every sequence; one place stays."""
    longest = int((tokens != 0.0).any(-1).sum(1).max())
    return tokens[:, : max(1, longest)]


# The last place of each is for all others.
ELEMENTS = ("C", "N", "O", "F", "Si", "P", "S", "Cl", "Se", "Br", "I", "B", "other")
CHARGES = (-1, 0, 1)
MOST_HYDROGENS = 3
BONDS = ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC", "other")
ATOM_FEATURES = len(ELEMENTS) + len(CHARGES) + MOST_HYDROGENS + 2
BOND_FEATURES = len(BONDS)


def parse_smiles(smiles: str) -> Graph | None:
    """Read one molecule; None for what is none. Hydrogens are a feature of their atoms."""
    chem = require("rdkit.Chem", extra="molecules", distribution="probseq-apps")
    base = require("rdkit.rdBase", extra="molecules", distribution="probseq-apps")
    # RDKit would tell the terminal what is wrong; the caller does, with file and line.
    with base.BlockLogs():
        molecule = chem.MolFromSmiles(smiles)
    if molecule is None or molecule.GetNumAtoms() == 0:
        return None
    bonds = list(molecule.GetBonds())
    ends = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in bonds]
    return Graph(
        torch.tensor([_atom_features(atom) for atom in molecule.GetAtoms()]),
        torch.tensor(ends, dtype=torch.int64).reshape(-1, 2),
        torch.tensor([_one_hot(str(b.GetBondType()), BONDS) for b in bonds]).reshape(
            -1, BOND_FEATURES
        ),
    )


def _atom_features(atom: Any) -> list[float]:
    charge = max(-1, min(1, atom.GetFormalCharge()))
    hydrogens = min(MOST_HYDROGENS, atom.GetTotalNumHs())
    return [
        *_one_hot(atom.GetSymbol(), ELEMENTS),
        *_one_hot(charge, CHARGES),
        *_one_hot(hydrogens, range(MOST_HYDROGENS + 1)),
        float(atom.GetIsAromatic()),
    ]


def _one_hot(value: object, known: Sequence[object]) -> list[float]:
    """A one at the value's place; at the last one for what is not known."""
    place = known.index(value) if value in known else len(known) - 1
    return [float(index == place) for index in range(len(known))]


class Molecules(NamedTuple):
    """Molecules with their properties, row by row."""

    smiles: list[str]  # as the file has them
    graphs: list[Graph]
    targets: list[float]  # one finite number a molecule


def read_molecules(
    path: Path, *, smiles_column: str, target_name: str, max_atoms: int
) -> Molecules:
    """Read a file of molecules; the arguments are those of `load_molecules`."""
    found = Molecules([], [], [])
    columns = ((smiles_column, "SMILES"), (target_name, "property to predict"))
    for line, (smiles, target) in csv_columns(path, columns):
        graph = parse_smiles(smiles)
        if graph is None:
            raise DataError(f"{path}, line {line}: {smiles!r} is no molecule that RDKit can read")
        if len(graph.nodes) > max_atoms:
            raise DataError(
                f"{path}, line {line}: a molecule must have at most max_atoms={max_atoms} atoms, "
                f"got {len(graph.nodes)}: raise max_atoms or leave it out"
            )
        found.smiles.append(smiles.strip())
        found.graphs.append(graph)
        found.targets.append(_number(target, f"{path}, line {line}: {target_name}"))
    if not found.smiles:
        raise DataError(f"{path} holds no molecules")
    return found


def _number(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{where} must be a finite number, got {text!r}")
    return value


PARTS = ("train", "validation", "test")
FILES = ("zinc/zinc.csv", "zinc_micro/zinc_micro.csv")
FEWEST = 10

# The same swapped edges for every method, seed and run.
_SWAP_SEED = 0


@dataclass(frozen=True, eq=False)
class GraphData(Parts[Part]):
    """Molecules as sequences of tokens, with a property to predict in its own unit.

    The extra test set "swapped" has the test graphs with their edges swapped, see `swap_edges`;
    its targets are those of the graphs that they were.
    """

    target: str  # name of the property
    layout: TokenLayout  # widths of the parts of a token

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


def load_molecules(
    name: str,
    *,
    data_dir: Path | None = None,
    smiles_column: str = "smiles",
    target: str = "score",
    validation_size: int | None = None,
    test_size: int | None = None,
    max_atoms: int = 100,
) -> GraphData:
    """Load molecules, or a table of numbers, as tokens. Nothing is written.

    A SMILES that stands in the file twice is taken once. A file of one's own whose header has no
    `smiles` is a table of numbers: each column but the target is a token, see `_numbers`.

    Args:
        name: `zinc`, or `csv:PATH` for a file of one's own.
        data_dir: folder of the data sets; not needed for `csv:`.
        smiles_column: column of the SMILES.
        target: column of the property to predict.
        validation_size: molecules for validation; None for a tenth. For a set without a split.
        test_size: likewise for test.
        max_atoms: most atoms of a molecule, hydrogens not counted.
    """
    paths = _find(name, data_dir)
    if own_path(name) and smiles_column == "smiles" and "smiles" not in csv_header(paths[0]):
        return _numbers(name, paths[0], target, validation_size, test_size)
    parts = [
        read_molecules(path, smiles_column=smiles_column, target_name=target, max_atoms=max_atoms)
        for path in paths
    ]
    notes = _notes(name, paths, parts)
    parts = _without_repeats(parts)
    if len(parts) == 1:
        sizes = (validation_size, test_size)
        split = _split(name, "molecules", len(parts[0].smiles), *sizes)
        parts = [_rows(parts[0], rows.tolist()) for rows in split]
    elif validation_size is not None or test_size is not None:
        raise DataError(
            f"validation_size and test_size are for one file, and {name!r} comes in "
            f"{', '.join(str(path) for path in paths)}: leave them out"
        )
    return _tokenized(name, target, parts, notes)


def _numbers(
    name: str, path: Path, target: str, validation_size: int | None, test_size: int | None
) -> GraphData:
    """Load a table of numbers: a token is a column's name, as ones and zeros, and its number.

    Numbers are in standard deviations from their mean in the training part.
    """
    columns = [column for column in csv_header(path) if column != target]
    if not columns:
        raise DataError(f"{path} needs columns beside the target {target!r}")
    wanted = [*((column, "inputs") for column in columns), (target, "number to predict")]
    rows = [
        [
            _number(cell, f"{path}, line {line}: {column}")
            for cell, (column, _) in zip(cells, wanted, strict=True)
        ]
        for line, cells in csv_columns(path, wanted)
    ]
    table = torch.tensor(rows, dtype=torch.float64).reshape(-1, len(wanted))
    split = _split(name, "rows", len(table), validation_size, test_size)
    inputs, known = table[:, :-1], table[split[0], :-1]
    spread = known.std(0)
    scaled = (inputs - known.mean(0)) / torch.where(spread > 0.0, spread, 1.0)
    size = (len(table), len(columns), 1)
    names = torch.eye(len(columns)).expand(len(table), -1, -1)
    tokens = torch.cat(
        [names, scaled.float()[..., None], torch.ones(size), torch.zeros(size)], dim=-1
    )
    train, validation, test = (Part(tokens[part], table[part, -1]) for part in split)
    return GraphData(
        *(name, train, validation, test, target, TokenLayout(len(columns) + 1, 0, 0)),
        notes=(f"{name}: a table of {len(table):,} rows and {len(columns)} columns of numbers",),
    )


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
    name: str, noun: str, size: int, validation_size: int | None, test_size: int | None
) -> list[Tensor]:
    tenth = size // 10
    sizes = [tenth if given is None else given for given in (validation_size, test_size)]
    if size < FEWEST or size - sum(sizes) < max(sizes):
        raise DataError(
            f"{name!r} has {size} {noun}, too few: it needs {FEWEST} at least, and as many for "
            f"training as for validation ({sizes[0]}) and for test ({sizes[1]})"
        )
    order = permutation(size, SPLIT_SEED)
    return [piece.sort().values for piece in order.split([size - sum(sizes), *sizes])]


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
    generator = torch.Generator().manual_seed(_SWAP_SEED)
    swapped = [swap_edges(graph, generator) for graph in parts[2].graphs]
    train, validation, test, changed = (
        Part(stack_tokens(graphs, layout, longest), torch.tensor(targets, dtype=torch.float64))
        for _, graphs, targets in (*parts, parts[2]._replace(graphs=swapped))
    )
    return GraphData(
        *(name, train, validation, test, target, layout),
        extra_tests={"swapped": changed},
        notes=notes,
    )
