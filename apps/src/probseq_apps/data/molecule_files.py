"""Molecules and their properties from CSV and TSV files."""

import math
from pathlib import Path
from typing import NamedTuple

from probseq_apps.data.errors import DataError
from probseq_apps.data.graphs import Graph
from probseq_apps.data.molecules import parse_smiles
from probseq_apps.data.tabular import csv_columns


class Molecules(NamedTuple):
    """Molecules with their properties, row by row.

    Attributes:
        smiles: as the file has them.
        graphs: what they mean.
        targets: one finite number a molecule.
    """

    smiles: list[str]
    graphs: list[Graph]
    targets: list[float]


def read_molecules(
    path: Path, *, smiles_column: str, target_column: str, max_atoms: int
) -> Molecules:
    """Read a file of molecules.

    Args:
        path: a file with a header; `.tsv` and `.tab` are separated by tabs, others by commas.
        smiles_column: name of the column of SMILES.
        target_column: name of the column of the property to predict.
        max_atoms: most atoms of a molecule, hydrogens not counted.

    Raises:
        DataError: the file is missing or has no such columns; or, with the line, a SMILES is none,
            a molecule is too large, or a property is no finite number.
        MissingExtraError: RDKit is not installed.
    """
    found = Molecules([], [], [])
    columns = ((smiles_column, "SMILES"), (target_column, "property to predict"))
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
        found.targets.append(_number(target, f"{path}, line {line}: {target_column}"))
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
