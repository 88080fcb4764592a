import sys

import pytest
import torch

from probseq.errors import MissingExtraError
from probseq_apps.data.graphs import TokenLayout, num_tokens, tokenize
from probseq_apps.data.molecule_graphs import ATOM_FEATURES, BOND_FEATURES, molecule_graph
from probseq_apps.data.molecules import load_molecules
from probseq_apps.data.names import DataError
from probseq_apps.data.settings import MoleculeSettings

chem = pytest.importorskip("rdkit.Chem")


CHAINS = ["C" * length for length in range(1, 21)]


def rows_of(smiles):
    return [f"{text},{number}.5" for number, text in enumerate(smiles)]


@pytest.fixture
def own(put):
    """Write a file of one's own and return its name."""

    def write(rows, header="smiles,score", file="own.csv"):
        return f"csv:{put(file, chr(10).join([header, *rows]))}"

    return write


def sizes(data):
    return len(data.train), len(data.validation), len(data.test)


@pytest.mark.slow
def test_the_small_zinc_set_is_read_whole(shared_data):
    data = load_molecules("zinc", data_dir=shared_data)
    assert sizes(data) == (802, 100, 100)
    # 45 atoms at most; the longest sequence has 45 + 2 * 46 tokens.
    assert data.layout == TokenLayout(ATOM_FEATURES, BOND_FEATURES, 45)
    assert data.train.inputs.shape == (802, 137, data.layout.width)
    assert any("1,002" in note for note in data.notes)
    assert any("2 molecules have several components" in note for note in data.notes)


def test_a_file_is_split_by_a_fixed_seed_and_rows_keep_their_targets(own):
    name = own(rows_of(CHAINS))
    data, again = load_molecules(name), load_molecules(name)
    assert sizes(data) == (16, 2, 2)
    assert torch.equal(data.test.targets, again.test.targets)
    for part in (data.train, data.validation, data.test):
        for tokens, target in zip(part.inputs, part.targets, strict=True):
            graph = molecule_graph(chem.MolFromSmiles("C" * (int(target) + 1)))
            length = num_tokens(graph)
            assert torch.equal(tokens[:length], tokenize(graph, data.layout))
            assert not tokens[length:].any()
    assert data.max_tokens == 20 + 2 * 19
    held = torch.cat([data.test.targets, data.validation.targets])
    assert held.min() < 16  # not the last rows
    tabs = own([f"{k}\t{c}" for k, c in enumerate(CHAINS)], "tpsa\tmolecule", "own.tsv")
    columns = MoleculeSettings(
        smiles_column="molecule", target="tpsa", validation_size=5, test_size=3
    )
    assert sizes(load_molecules(tabs, columns)) == (12, 5, 3)


def test_swapped_molecules_keep_atoms_and_number_of_bonds(own):
    data, again = (
        load_molecules(own(rows_of(CHAINS)), MoleculeSettings(test_size=8)) for _ in range(2)
    )
    swapped = data.extra_tests["swapped"]
    is_node, is_edge = data.layout.width - 2, data.layout.width - 1
    for column in (*range(ATOM_FEATURES), is_node):
        counts = (part.inputs[..., column].sum(1) for part in (swapped, data.test))
        assert torch.equal(*counts)
    before, after = (part.inputs[..., is_edge].sum(1) for part in (data.test, swapped))
    atoms = data.test.inputs[..., is_node].sum(1)
    # A chain of n has (n - 1)(n - 2)/2 unconnected pairs: enough for n - 1 edges from n = 4 on.
    assert torch.equal(after[atoms >= 4], before[atoms >= 4])
    assert (after <= before).all()
    assert torch.equal(swapped.targets, data.test.targets)
    assert torch.equal(again.extra_tests["swapped"].inputs, swapped.inputs)
    assert not torch.equal(swapped.inputs, data.test.inputs)


def test_of_three_files_a_molecule_of_two_parts_stays_in_the_last(own, tmp_path):
    for part, smiles in (("train", CHAINS), ("validation", ["CC", "CCO"]), ("test", ["CC", "CN"])):
        own(rows_of(smiles), file=f"zinc/{part}.csv")
    data = load_molecules("zinc", data_dir=tmp_path)
    assert sizes(data) == (19, 1, 2)
    assert 1.5 not in data.train.targets
    assert data.notes == ("zinc: 2 rows left out, whose SMILES stand in the data already",)
    with pytest.raises(DataError, match="validation_size and test_size are for one file"):
        load_molecules("zinc", MoleculeSettings(test_size=5), data_dir=tmp_path)


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (["C1CC,1"], {}, "line 22: 'C1CC' is no molecule"),
        (["CC,nan"], {}, "line 22: a value must be finite, got 'nan'"),
        ([], {"max_atoms": 19}, "line 21: a molecule must have at most max_atoms=19 atoms, got 20"),
        ([], {"target": "logp"}, "one column 'logp' \\(property, --target\\)"),
        ([], {"test_size": 18}, "has 20 molecules, too few"),
    ],
)
def test_a_bad_row_is_refused_with_its_line_and_a_bad_option_with_its_name(
    own, rows, options, message, capfd
):
    with pytest.raises(DataError, match=message):
        load_molecules(own([*rows_of(CHAINS), *rows]), MoleculeSettings(**options))
    assert capfd.readouterr() == ("", "")  # RDKit keeps quiet


def test_data_that_are_missing_or_cannot_be_used_are_refused(own, tmp_path, monkeypatch):
    for name, data_dir, message in (
        ("zinc", tmp_path / "nowhere", "does not exist"),
        ("zinc", tmp_path, r"put zinc/train\.csv"),
        (own(rows_of(CHAINS[:9]), file="few.csv"), None, "has 9 molecules, too few"),
        (own([], file="void.csv"), None, "must hold rows"),
        (own([f"{c},1" for c in CHAINS], file="one.csv"), None, "different values of 'score'"),
    ):
        with pytest.raises(DataError, match=message):
            load_molecules(name, data_dir=data_dir)
    monkeypatch.setitem(sys.modules, "rdkit", None)
    monkeypatch.setitem(sys.modules, "rdkit.Chem", None)
    with pytest.raises(MissingExtraError, match=r"probseq-apps\[molecules\]"):
        load_molecules(own(rows_of(CHAINS)))
