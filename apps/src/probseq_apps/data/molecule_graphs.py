"""Molecules as graphs: atoms are nodes, bonds edges, and their features ones and zeros.

An atom has its element, formal charge, number of hydrogens, and whether it is aromatic; a bond has
its kind. Stereochemistry and isotopes are left out.
"""

from collections.abc import Sequence
from typing import Any

import torch

from probseq_apps.data.graphs import Graph

# The last place of each is for all others.
ELEMENTS = ("C", "N", "O", "F", "Si", "P", "S", "Cl", "Se", "Br", "I", "B", "other")
CHARGES, MOST_HYDROGENS = (-1, 0, 1), 3
BONDS = ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC", "other")
ATOM_FEATURES = len(ELEMENTS) + len(CHARGES) + MOST_HYDROGENS + 2
BOND_FEATURES = len(BONDS)


def molecule_graph(molecule: Any) -> Graph:
    """Return the graph of a molecule of RDKit, `rdkit.Chem.MolFromSmiles("CCO")` for one."""
    bonds = list(molecule.GetBonds())
    ends = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in bonds]
    kinds = [_indicators(str(bond.GetBondType()), BONDS) for bond in bonds]
    return Graph(
        torch.tensor([_atom_features(atom) for atom in molecule.GetAtoms()]),
        torch.tensor(ends, dtype=torch.int64).reshape(-1, 2),
        torch.tensor(kinds).reshape(-1, BOND_FEATURES),
    )


def _atom_features(atom: Any) -> list[float]:
    return [
        *_indicators(atom.GetSymbol(), ELEMENTS),
        *_indicators(max(-1, min(1, atom.GetFormalCharge())), CHARGES),
        *_indicators(atom.GetTotalNumHs(), range(MOST_HYDROGENS + 1)),
        float(atom.GetIsAromatic()),
    ]


def _indicators(value: object, values: Sequence[object]) -> list[float]:
    """Return ones and zeros with a one at the value's place; unknown values have the last."""
    index = values.index(value) if value in values else len(values) - 1
    return [float(index == number) for number in range(len(values))]
