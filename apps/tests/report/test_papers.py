"""The papers' tables as data: whole, and numbers as printed."""

import re

import pytest
from scipy.stats import rankdata

from probseq.summary import LABELS
from probseq_apps.data.names import DATA_NAMES, GENERATION_NAMES, SERIES_NAMES
from probseq_apps.engine.files import flatten
from probseq_apps.registry import REGISTRY, load
from probseq_apps.report.measured import ACCUMULATED_SECONDS, SECONDS_PER_EPOCH
from probseq_apps.report.papers import load_table, resolve_name, table_names
from probseq_apps.settings.methods import parse_row
from probseq_apps.settings.online import METHODS

ALL = table_names()
# Ends of metrics: of ranks, times, a time that no report has, none where nothing is trained.
RANKED = {f"{names} {metric}" for names in ("B.28 B.30", "B.29 B.31") for metric in LABELS}
KNOWN = {*LABELS, *RANKED, SECONDS_PER_EPOCH, ACCUMULATED_SECONDS, "no-metric", ""}
RECIPES = {
    name: make
    for entry in REGISTRY.values()
    if entry.kind
    for name, make in load(entry.settings).known.items()
}
PATHS = {path for make in RECIPES.values() for path, _ in flatten(make().to_dict())}


def rows(name, group=0):
    return {row.label: row for row in load_table(name).groups[group].rows}


def means(name, label, group=0):
    return [cell.paper.spread[0] for cell in rows(name, group)[label].cells]


def test_every_table_of_the_papers_is_there_under_all_its_names():
    thesis = ["3.2", *(f"5.{n}" for n in range(1, 6)), "B.1", *(f"B.{n}" for n in range(4, 33))]
    cgpt = [f"cgpt:{numeral}" for numeral in ("I", "II", "III", "IV", "V")]
    assert list(ALL) == [*thesis, "4.1", *cgpt, *(f"kep:{n}" for n in range(1, 10))]
    for name in ALL:
        assert resolve_name(name.lower()) == resolve_name(f" {name.upper()} ") == name
    aliases = {"II": "cgpt:II", "cgpt-iv": "cgpt:IV", "thesis-3.2": "3.2", "ohsvgp:4.1": "4.1"}
    assert {alias: resolve_name(alias) for alias in aliases} == aliases


@pytest.mark.parametrize(("wrong", "hint"), [("B.66", "mean 'B.6'"), ("cgpt:VI", "'cgpt:V'")])
def test_an_unknown_table_is_refused_with_the_nearest_and_all_names(wrong, hint):
    with pytest.raises(ValueError, match=f"unknown table .*{hint}.*known: 3.2, 5.1, .*kep:9"):
        resolve_name(wrong)


@pytest.mark.parametrize("name", ALL)
def test_rows_are_full_numbers_are_read_to_the_last_digit_and_names_are_ours(name):
    table = load_table(name)
    assert {recipe for names in table.recipes.values() for recipe in names} <= RECIPES.keys()
    for group in table.groups:
        assert len({row.label for row in group.rows}) == len(group.rows) > 0
        for row in group.rows:
            assert len(row.cells) == len(group.heads)
            if row.method is None:
                assert row.label in ("Standard SGPA", "Decoupled SGPA (Cheng and Boots, 2017)")
            elif table.experiment is None and table.data[0] in SERIES_NAMES:
                assert row.method in METHODS
            elif table.experiment is None:
                parsed = parse_row(row.method)
                assert "+".join((parsed.base, *parsed.additions)) == row.method
            for cell in row.cells:
                value = cell.paper
                assert re.fullmatch(r"\d+(\.\d+(±\d+\.\d+)?)?", value.text)
                assert f"{value.spread[0]:.{value.decimals}f}" == value.text.partition("±")[0]
                assert (value.spread[1] is None) == ("±" not in value.text)
                # The copied NLL of Table B.10.
                slip = (name, group.heads.index("NLL ↓") if "NLL ↓" in group.heads else 0)
                assert value.target or (slip == ("B.10", 2) and cell is row.cells[2])
                assert cell.data in (*DATA_NAMES, "zinc", *SERIES_NAMES, *GENERATION_NAMES)
                assert cell.metric.rpartition("/")[2] in KNOWN
                assert "{" not in cell.metric.replace("{shift}", "")
                assert set(cell.where) <= PATHS


def test_table_3_2_follows_from_tables_b_28_to_b_31():
    printed = rows("3.2")
    for column, names in enumerate([("B.28", "B.30")] * 2 + [("B.29", "B.31")] * 2):
        total = dict.fromkeys(printed, 0.0)
        for name in names:
            for place in range(column % 2, 6, 2):
                places = rankdata([-means(name, label)[place] for label in printed])
                for label, rank in zip(printed, places, strict=True):
                    total[label] += rank / 6
        for label, rank in total.items():
            assert means("3.2", label)[column] == pytest.approx(rank, abs=1e-4)


def test_accuracy_falls_and_nll_grows_with_the_severity():
    for name in (f"B.{number}" for number in range(12, 20)):
        falling = load_table(name).title.startswith("Accuracy")
        for label in rows(name):
            assert means(name, label) == sorted(means(name, label), reverse=falling)


def test_numbers_that_papers_repeat_are_equal():
    for metric in range(4):
        for label, other in (("SGPA", "SGPA"), ("CGPT", "CGPT (alpha = 0.5 → 1.0)")):
            assert means("cgpt:II", label, metric) == means("cgpt:IV", other, metric)
    for label in ("MSP", "KEP-SVGP"):
        found = [means("kep:1", label, group) for group in (2, 3)]
        assert found == [means("kep:7", label, group) for group in (0, 1)]
    assert means("kep:5", "MSP") == means("kep:1", "MSP", 3)
    assert means("kep:6", "W1 (N x 2N)")[1:] == means("kep:1", "KEP-SVGP")
    for label in ("MSP", "SGPA", "KEP-SVGP"):
        assert means("kep:4", label)[::3] == means("kep:8", label)[::2]
    # KEP's Table 4 repeats the thesis in percent and tenths of a nat.
    for ours, thesis in (("MSP", "MLE"), ("SGPA", "SGPA")):
        accuracy, nll = means("B.6", thesis)[:2]
        assert means("kep:4", ours)[:2] == pytest.approx([100 * accuracy, 10 * nll], abs=6e-3)
    high = means("5.3", "High-order Markov")
    assert high[::3] == means("5.3", "First-order Markov")[::3]
    assert high[:2] == means("5.4", "CIFAR10")[::2]
    assert high[3:5] == means("5.4", "CelebA", 1)[::2]
    assert high[1:3] == means("5.5", "Gaussian noise")
    # Both stems stand beside the same printed numbers.
    for group in (0, 1):
        for label in rows("5.2", group):
            assert means("5.2", label, group) == means("5.2", label, group + 2)
    for name in ("cgpt:II", "cgpt:IV", "cgpt:V"):
        for row in (row for group in load_table(name).groups for row in group.rows):
            *parts, average = (cell.paper.spread[0] for cell in row.cells)
            assert min(parts) < average < max(parts)


def test_units_and_errors_are_those_that_the_papers_print():
    scales = [cell.scale for cell in load_table("kep:2").cells]
    assert scales[:7] == [100.0, 1000.0, 100.0, 100.0, 100.0, 10.0, 100.0]
    assert [cell.scale for cell in load_table("B.5").cells][:2] == [100.0, 1.0]
    deviation = rows("kep:1")["MSP"].cells[0].paper
    assert deviation.spread[1] == pytest.approx(0.43 / 5**0.5)
    assert rows("B.6")["MLE"].cells[0].paper.spread[1] == 0.0019
    assert rows("B.10")["MCD"].cells[0].paper.spread[2] == 3


def test_groups_rows_and_columns_ask_for_their_settings():
    addition = {"kepsvgp.merge": ["addition"], "kepsvgp.eta": [0.1]}
    assert rows("kep:9", 1)["eta = 0.1"].cells[0].where == addition
    fixed = {"cgpt.alpha_start": [0.7], "cgpt.alpha": [0.7]}
    assert rows("cgpt:V")["CGPT (alpha = 0.7)"].cells[0].where == fixed
    # The same online method has another name with other likelihoods.
    online = [group.rows[0] for group in load_table("4.1").groups]
    assert [row.method for row in online] == ["osgpr", "osgpr", "osvgp"]
    sizes = [cell.where["model.num_inducing"][0] for row in online for cell in row.cells]
    assert sizes == [50, 150, 100, 200, 15, 30]
