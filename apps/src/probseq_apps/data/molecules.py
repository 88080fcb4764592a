"""Molecules: from SMILES to graphs of heavy atoms and bonds (extra `molecules`, which is RDKit).

Features are ones and zeros. An atom has its element, formal charge, number of hydrogens, and
whether it is aromatic; a bond has its kind. Stereochemistry and isotopes are left out. A salt, or
any SMILES with a dot in it, is one graph of several components.
"""

from collections.abc import Sequence
from typing import Any

import torch

from probseq.errors import require
from probseq_apps.data.graphs import Graph

# The last place of each is for all others.
ELEMENTS = ("C", "N", "O", "F", "Si", "P", "S", "Cl", "Se", "Br", "I", "B", "other")
CHARGES = (-1, 0, 1)
MOST_HYDROGENS = 3
BONDS = ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC", "other")
ATOM_FEATURES = len(ELEMENTS) + len(CHARGES) + MOST_HYDROGENS + 2
BOND_FEATURES = len(BONDS)


def parse_smiles(smiles: str) -> Graph | None:
    """Read one molecule.

    Args:
        smiles: e.g. `CC(=O)O`. Hydrogens become a feature of their atoms, written out or not.

    Returns:
        None for what is no molecule: a syntax error, an impossible valence, nothing at all.

    Raises:
        MissingExtraError: RDKit is not installed.
    """
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
