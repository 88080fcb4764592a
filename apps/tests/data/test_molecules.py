import sys

import numpy as np
import pytest
import torch

from probseq.errors import MissingExtraError
from probseq.graphs import TokenLayout, num_tokens, tokenize
from probseq_apps.data.molecules import (
    ATOM_FEATURES,
    BOND_FEATURES,
    BONDS,
    CHARGES,
    ELEMENTS,
    load_molecules,
    parse_smiles,
)
from probseq_apps.data.names import DataError

pytest.importorskip("rdkit")


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
    graph = parse_smiles(smiles)
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


@pytest.mark.parametrize("smiles", ["", "C1CC", "C(C)(C)(C)(C)C", "c1cccc1", "ethanol?"])
def test_what_is_no_molecule_gives_nothing_and_the_terminal_stays_quiet(smiles, capfd):
    assert parse_smiles(smiles) is None
    assert capfd.readouterr() == ("", "")


def test_without_rdkit_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdkit", None)
    monkeypatch.setitem(sys.modules, "rdkit.Chem", None)
    with pytest.raises(MissingExtraError, match=r"probseq-apps\[molecules\]"):
        parse_smiles("CC")


CHAINS = ["C" * length for length in range(1, 21)]


def write(path, rows, header="smiles,score"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def rows_of(smiles):
    return [f"{text},{number}.5" for number, text in enumerate(smiles)]


def own(tmp_path, rows, **header):
    return f"csv:{write(tmp_path / 'own.csv', rows, **header)}"


def test_the_small_zinc_set_is_read_whole(shared_data):
    data = load_molecules("zinc", data_dir=shared_data)
    assert (len(data.train), len(data.validation), len(data.test)) == (802, 100, 100)
    # 45 atoms at most; the longest sequence has 45 + 2 * 46 tokens.
    assert data.layout == TokenLayout(ATOM_FEATURES, BOND_FEATURES, 45)
    assert data.train.inputs.shape == (802, 137, data.layout.width)
    assert any("1,002" in note for note in data.notes)
    assert any("2 molecules have several components" in note for note in data.notes)
    scores = np.genfromtxt(
        shared_data / "zinc_micro" / "zinc_micro.csv",
        delimiter=",",
        skip_header=1,
        usecols=3,
        comments=None,
    )
    found = torch.cat([data.train.targets, data.validation.targets, data.test.targets])
    np.testing.assert_array_equal(np.sort(found.numpy()), np.sort(scores))


def test_rows_keep_their_targets_and_become_tokens(tmp_path):
    data = load_molecules(own(tmp_path, rows_of(CHAINS)))
    for part in (data.train, data.validation, data.test):
        for tokens, target in zip(part.inputs, part.targets, strict=True):
            graph = parse_smiles("C" * (int(target) + 1))
            length = num_tokens(graph)
            assert torch.equal(tokens[:length], tokenize(graph, data.layout))
            assert not tokens[length:].any()
    assert data.max_tokens == 20 + 2 * 19


def test_a_file_is_split_by_a_fixed_seed_into_parts_of_the_wanted_sizes(tmp_path):
    name = own(tmp_path, rows_of(CHAINS))
    data, again = load_molecules(name), load_molecules(name)
    assert (len(data.train), len(data.validation), len(data.test)) == (16, 2, 2)
    assert torch.equal(data.test.targets, again.test.targets)
    assert sorted(torch.cat([data.test.targets, data.validation.targets]).tolist()) != [
        16.5,
        17.5,
        18.5,
        19.5,
    ]
    other = load_molecules(name, validation_size=5, test_size=3)
    assert (len(other.train), len(other.validation), len(other.test)) == (12, 5, 3)


def test_swapped_molecules_keep_atoms_and_number_of_bonds(tmp_path):
    data = load_molecules(own(tmp_path, rows_of(CHAINS)), test_size=8)
    swapped = data.extra_tests["swapped"]
    is_node, is_edge = data.layout.width - 2, data.layout.width - 1
    for column in (*range(ATOM_FEATURES), is_node):
        assert torch.equal(
            swapped.inputs[..., column].sum(1),
            data.test.inputs[..., column].sum(1),
        )
    before, after = (part.inputs[..., is_edge].sum(1) for part in (data.test, swapped))
    atoms = data.test.inputs[..., is_node].sum(1)
    # A chain of n has (n - 1)(n - 2)/2 unconnected pairs: enough for n - 1 edges from n = 4 on.
    assert torch.equal(after[atoms >= 4], before[atoms >= 4])
    assert (after <= before).all()
    assert torch.equal(swapped.targets, data.test.targets)
    again = load_molecules(f"csv:{tmp_path / 'own.csv'}", test_size=8)
    assert torch.equal(again.extra_tests["swapped"].inputs, swapped.inputs)
    assert not torch.equal(swapped.inputs, data.test.inputs)


def test_a_molecule_of_two_parts_stays_in_the_last(tmp_path):
    for part, smiles in (("train", CHAINS), ("validation", ["CC", "CCO"]), ("test", ["CC", "CN"])):
        write(tmp_path / "zinc" / f"{part}.csv", rows_of(smiles))
    data = load_molecules("zinc", data_dir=tmp_path)
    assert (len(data.train), len(data.validation), len(data.test)) == (19, 1, 2)
    assert 1.5 not in data.train.targets
    assert data.notes == ("zinc: 2 rows left out, whose SMILES stand in the data already",)
    with pytest.raises(DataError, match="validation_size and test_size are for one file"):
        load_molecules("zinc", data_dir=tmp_path, test_size=5)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("C1CC,1", "line 3: 'C1CC' is no molecule"),
        (",1", "line 3: '' is no molecule"),
        ("CC,nan", "line 3: a value must be finite, got 'nan'"),
        ("CC,inf", "line 3: a value must be finite"),
        ("CC,high", "line 3: a value must be a number, got 'high'"),
        ("CC", "line 3: expected 2 columns, got 1"),
        (f"{'C' * 40},1", "line 3: a molecule must have at most max_atoms=30 atoms, got 40"),
    ],
)
def test_a_bad_row_is_refused_with_its_line(tmp_path, row, message):
    with pytest.raises(DataError, match=message):
        load_molecules(own(tmp_path, ["CCC,1", row, *rows_of(CHAINS)]), max_atoms=30)


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (rows_of(CHAINS), {"target": "logp"}, "one column 'logp' for the property"),
        (rows_of(CHAINS), {"smiles_column": "mol"}, "one column 'mol' for the SMILES"),
        (rows_of(CHAINS[:9]), {}, "has 9 molecules, too few"),
        (rows_of(CHAINS), {"test_size": 18}, "has 20 molecules, too few"),
        ([], {}, "holds no molecules"),
        ([f"{smiles},1" for smiles in CHAINS], {}, "different values of 'score'"),
    ],
)
def test_data_that_cannot_be_used_are_refused(tmp_path, rows, options, message):
    with pytest.raises(DataError, match=message):
        load_molecules(own(tmp_path, rows), **options)


def test_missing_files_are_named_with_what_to_do(tmp_path):
    with pytest.raises(DataError, match="--data-dir"):
        load_molecules("zinc")
    with pytest.raises(DataError, match="does not exist"):
        load_molecules("zinc", data_dir=tmp_path / "nowhere")
    (tmp_path / "mnist.npz").touch()
    with pytest.raises(DataError, match=r"put zinc/train\.csv"):
        load_molecules("zinc", data_dir=tmp_path)
    with pytest.raises(DataError, match=r"mine\.csv does not exist"):
        load_molecules(f"csv:{tmp_path / 'mine.csv'}")


def test_a_table_of_numbers_becomes_tokens_of_its_columns(tmp_path):
    rows = [f"{k},{k % 3},7,{2 * k}.5" for k in range(20)]
    data = load_molecules(own(tmp_path, rows, header="a,b,c,y"), target="y")
    assert (len(data.train), len(data.validation), len(data.test)) == (16, 2, 2)
    assert data.train.inputs.shape == (16, 3, data.layout.width)
    # Where a stands follows from y; numbers have mean 0 and standard deviation 1 in training.
    a, constant = data.train.inputs[:, 0, 3], data.train.inputs[:, 2, 3]
    expected = (data.train.targets - 0.5) / 2
    scaled = ((expected - expected.mean()) / expected.std()).float()
    torch.testing.assert_close(a, scaled)
    assert not constant.any()
    assert torch.equal(data.test.inputs[0, :, :3], torch.eye(3))
    assert (data.test.inputs[..., -2:] == torch.tensor([1.0, 0.0])).all()
    assert "swapped" not in data.extra_tests
    for row, target, message in (
        ("1,x,7,3", "y", "line 22: a value must be a number, got 'x'"),
        ("1,2", "y", "line 22: expected 4"),
        ("1,2,7,3", "z", "one column 'z' for the number to predict"),
    ):
        with pytest.raises(DataError, match=message):
            load_molecules(own(tmp_path, [*rows, row], header="a,b,c,y"), target=target)
