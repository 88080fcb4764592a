import sys

import pytest
import torch

from probseq.errors import MissingExtraError
from probseq_apps.data.molecules import (
    ATOM_FEATURES,
    BOND_FEATURES,
    BONDS,
    CHARGES,
    ELEMENTS,
    adjacency,
    parse_smiles,
)

pytest.importorskip("rdkit")


def described(row):
    """Element, charge, hydrogens and aromaticity of an atom's features."""
    element, charge, hydrogens, aromatic = row.split([len(ELEMENTS), len(CHARGES), 4, 1])
    assert element.sum() == charge.sum() == hydrogens.sum() == 1
    return (
        ELEMENTS[int(element.argmax())],
        CHARGES[int(charge.argmax())],
        int(hydrogens.argmax()),
        bool(aromatic),
    )


def bonds(graph):
    return {
        tuple(sorted(ends)): BONDS[int(row.argmax())]
        for ends, row in zip(graph.ends.tolist(), graph.edges, strict=True)
    }


def test_atoms_have_element_charge_hydrogens_and_aromaticity():
    graph = parse_smiles("C[N+](C)(C)CC([O-])=O")
    assert [described(row) for row in graph.nodes] == [
        ("C", 0, 3, False),
        ("N", 1, 0, False),
        ("C", 0, 3, False),
        ("C", 0, 3, False),
        ("C", 0, 2, False),
        ("C", 0, 0, False),
        ("O", -1, 0, False),
        ("O", 0, 0, False),
    ]
    assert bonds(graph)[5, 7] == "DOUBLE"
    assert bonds(graph)[5, 6] == "SINGLE"
    assert graph.nodes.shape == (8, ATOM_FEATURES)
    assert graph.edges.shape == (7, BOND_FEATURES)


def test_bonds_have_a_kind():
    graph = parse_smiles("N#Cc1ccc[nH]1")
    assert sorted(bonds(graph).values()) == ["AROMATIC"] * 5 + ["SINGLE", "TRIPLE"]
    assert described(graph.nodes[6]) == ("N", 0, 1, True)


def test_rare_atoms_and_bonds_fall_into_the_last_places():
    graph = parse_smiles("[NH3]->[Pt+2]")
    assert described(graph.nodes[1]) == ("other", 1, 0, False)
    assert set(bonds(graph).values()) == {"other"}
    assert described(parse_smiles("[CH4]").nodes[0]) == ("C", 0, 3, False)


def test_hydrogens_written_out_are_no_nodes():
    written, implied = parse_smiles("[H]OC([H])([H])[H]"), parse_smiles("OC")
    assert torch.equal(written.nodes, implied.nodes)
    assert torch.equal(adjacency(written), adjacency(implied))


def test_a_single_atom_is_a_graph_and_a_salt_is_one_of_several_parts():
    assert parse_smiles("C").ends.shape == (0, 2)
    assert parse_smiles("C").edges.shape == (0, BOND_FEATURES)
    salt = parse_smiles("CC(=O)[O-].[Na+]")
    assert len(salt.nodes) == 5
    assert adjacency(salt)[4].sum() == 0


@pytest.mark.parametrize("smiles", ["", "C1CC", "C(C)(C)(C)(C)C", "c1cccc1", "ethanol?"])
def test_what_is_no_molecule_gives_nothing_and_the_terminal_stays_quiet(smiles, capfd):
    assert parse_smiles(smiles) is None
    assert capfd.readouterr() == ("", "")


def test_without_rdkit_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdkit", None)
    monkeypatch.setitem(sys.modules, "rdkit.Chem", None)
    with pytest.raises(MissingExtraError, match=r"probseq-apps\[molecules\]"):
        parse_smiles("CC")
