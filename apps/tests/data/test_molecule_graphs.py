import pytest

from probseq_apps.data.molecule_graphs import (
    ATOM_FEATURES,
    BOND_FEATURES,
    BONDS,
    CHARGES,
    ELEMENTS,
    molecule_graph,
)

chem = pytest.importorskip("rdkit.Chem")


@pytest.mark.parametrize(
    ("smiles", "atoms", "bonds"),
    [
        ("C[NH+](C)CC([O-])=O", "C+0H3 N+1H1 C+0H3 C+0H2 C+0H0 O-1H0 O+0H0", "=-----"),
        ("N#Cc1ccc[nH]1", "N+0H0 C+0H0 c+0H0 c+0H1 c+0H1 c+0H1 n+0H1", "-#aaaaa"),
        ("[NH3]->[Pt+2]", "N+0H3 other+1H0", "?"),  # what is rare: the last places
        ("[H]OC([H])([H])[H]", "O+0H1 C+0H3", "-"),  # hydrogens are no nodes
        ("[CH4]", "C+0H3", ""),
        ("CC(=O)[O-].[Na+]", "C+0H3 C+0H0 O+0H0 O-1H0 other+1H0", "=--"),  # in two components
    ],
)
def test_atoms_have_element_charge_hydrogens_aromaticity_and_bonds_a_kind(smiles, atoms, bonds):
    graph = molecule_graph(chem.MolFromSmiles(smiles))
    found = []
    for row in graph.nodes:
        element, charge, hydrogens, aromatic = row.split([len(ELEMENTS), len(CHARGES), 4, 1])
        assert element.sum() == charge.sum() == hydrogens.sum() == 1
        name = ELEMENTS[int(element.argmax())]
        name = name.lower() if aromatic else name
        found.append(f"{name}{CHARGES[int(charge.argmax())]:+}H{int(hydrogens.argmax())}")
    assert " ".join(found) == atoms
    kinds = dict(zip(BONDS, "-=#a?", strict=True))
    assert sorted(kinds[BONDS[int(row.argmax())]] for row in graph.edges) == sorted(bonds)
    assert graph.ends.shape == (len(bonds), 2)
    assert graph.edges.shape == (len(bonds), BOND_FEATURES)
    assert graph.nodes.shape[1] == ATOM_FEATURES
