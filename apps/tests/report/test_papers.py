import re

import pytest
from scipy.stats import rankdata

from probseq_apps.data.names import DATA_NAMES, GENERATION_NAMES
from probseq_apps.engine.files import flatten
from probseq_apps.report import paper_notes
from probseq_apps.report.measured import ACCUMULATED_SECONDS, SECONDS_PER_EPOCH
from probseq_apps.report.papers import load_table, table_names
from probseq_apps.report.tables import LABELS
from probseq_apps.settings.classify import RECIPES, REGRESS_RECIPES
from probseq_apps.settings.generate import GENERATE_RECIPES
from probseq_apps.settings.methods import parse_row
from probseq_apps.settings.models import DIFFUSION_RECIPES, HVAE_RECIPES
from probseq_apps.settings.online import METHODS, ONLINE_RECIPES, SERIES

# Times, and a data set of `probseq regress`.
NOT_CLASSIFIED = {SECONDS_PER_EPOCH, ACCUMULATED_SECONDS, "no-metric"}
ALL = table_names()
# Of generated images, by the experiment that has them.
STEMS = ("plain", "layernorm")
ROWS = {
    "generate": [
        f"{r}, {s}" for r in ("reconstruction", "autoregressive", "masked") for s in STEMS
    ],
    "generate-diffusion": ["first-order", "high-order", "blur"],
    "generate-hvae": ["hvae"],
}


def rows(name, group=0):
    return {row.label: row for row in load_table(name).groups[group].rows}


def means(name, label, group=0):
    return [value.mean for value in rows(name, group)[label].values]


def test_all_tables_of_the_three_papers_are_there():
    thesis = [
        "3.2",
        *(f"5.{number}" for number in range(1, 6)),
        "B.1",
        *(f"B.{number}" for number in range(4, 33)),
    ]
    cgpt = [f"cgpt:{numeral}" for numeral in ("I", "II", "III", "IV", "V")]
    kep = [f"kep:{number}" for number in range(1, 10)]
    assert list(ALL) == [*thesis, "4.1", *cgpt, *kep]


@pytest.mark.parametrize("name", ALL)
def test_every_row_is_full_and_every_number_is_read_to_its_last_digit(name):
    table = load_table(name)
    assert table.title
    for group in table.groups:
        assert group.rows
        labels = [row.label for row in group.rows]
        assert len(set(labels)) == len(labels)
        for row in group.rows:
            assert len(row.values) == len(group.columns)
            for value in row.values:
                assert re.fullmatch(r"\d+(\.\d+(±\d+\.\d+)?)?", value.text)
                assert f"{value.mean:.{value.decimals}f}" == value.text.partition("±")[0]
                assert (value.error is None) == ("±" not in value.text)


@pytest.mark.parametrize("name", ALL)
def test_every_method_metric_data_set_and_recipe_is_one_of_ours(name):
    table = load_table(name)
    for group in table.groups:
        for column in group.columns:
            assert column.data in (*DATA_NAMES, "zinc", *SERIES, *GENERATION_NAMES)
            assert column.metric in NOT_CLASSIFIED or column.metric.rpartition("/")[2] in LABELS
        for row in group.rows:
            if table.experiment is not None:
                assert row.method in ROWS[table.experiment]
            elif group.columns[0].data in SERIES:
                assert row.method in METHODS
            elif row.method is not None:
                row_named = parse_row(row.method)
                assert "+".join((row_named.base, *row_named.additions)) == row.method
            assert ("{detector}" in group.columns[0].metric) == (row.detector is not None)
    known = RECIPES.known.keys() | REGRESS_RECIPES.known.keys() | ONLINE_RECIPES.known.keys()
    known |= (
        GENERATE_RECIPES.known.keys() | DIFFUSION_RECIPES.known.keys() | HVAE_RECIPES.known.keys()
    )
    assert {name for names in table.recipes.values() for name in names} <= known


def test_only_the_two_variants_of_sgpa_are_rows_without_a_method():
    found = {
        row.label
        for name in ALL
        for group in load_table(name).groups
        for row in group.rows
        if row.method is None
    }
    assert found == {"Standard SGPA", "Decoupled SGPA (Cheng and Boots, 2017)"}


@pytest.mark.parametrize(
    ("name", "group", "label", "texts"),
    [
        ("B.4", 0, "SGPA", ["0.8875±0.0004", "0.2823±0.0027", "0.0215±0.0034", "0.0647±0.0105"]),
        ("B.5", 0, "MFVI", ["21.0864±1.8124", "1.0809±0.0092", "0.2018±0.0080", "0.266±0.0113"]),
        ("B.6", 0, "SDP MLE", ["0.7439±0.0015", "2.2940±0.0277", "0.2703±0.0021", "0.4509±0.0079"]),
        ("B.9", 0, "SGPAE", ["0.65", "1.2761", "0.0191", "0.0593"]),
        ("B.10", 0, "MCD", ["0.4385±0.0163", "0.8369±0.0308", "0.9264±0.0317"]),
        ("B.32", 0, "SDP MCD", ["0.4566±0.0072", "0.4889±0.0029"]),
        ("cgpt:I", 0, "CGPT", ["26.471±0.387", "0.774±0.010", "0.725±0.013", "0.236±0.004"]),
        ("cgpt:III", 3, "Energy-Based", ["77.70", "68.56", "82.06", "60.09"]),
        ("kep:4", 0, "KEP-SVGP", ["78.27±0.30", "6.29±0.06", "30.97", "56.26±0.70"]),
        ("4.1", 0, "OSGPR/OSVGP", ["140", "149"]),
        ("4.1", 0, "OHSGPR/OHSVGP", ["0.297", "0.394"]),
        ("4.1", 1, "OVC", ["0.558", "0.863"]),
        ("4.1", 1, "OVFF", ["0.295", "0.356"]),
        ("4.1", 2, "OSGPR/OSVGP", ["525", "530"]),
        ("4.1", 2, "OHSGPR/OHSVGP", ["370", "380"]),
        ("5.1", 0, "IS", ["9.32", "7.27"]),
        ("5.2", 0, "AR Generation (FID)", ["72.06", "54.60", "69.23", "32.98", "30.19", "28.08"]),
        ("5.2", 1, "Reconstruction (PSNR)", ["19.97", "21.86", "25.89", "20.52", "24.66", "29.68"]),
        ("5.3", 0, "First-order Markov", ["12.90", "17.30", "15.90", "7.76", "13.61", "12.64"]),
        ("5.3", 0, "High-order Markov", ["12.90", "12.58", "12.80", "7.76", "6.88", "7.55"]),
        ("5.4", 1, "CelebA", ["7.76", "7.87", "6.88"]),
        ("5.5", 0, "Gaussian blur", ["15.33", "22.63"]),
        ("kep:9", 1, "eta = 0.01", ["81.46", "49.71", "85.81", "66.51", "13.94", "11.24", "31.35"]),
    ],
)
def test_values_are_those_of_the_paper(name, group, label, texts):
    found = [value.text for value in rows(name, group)[label].values]
    assert found[: len(texts)] == texts


def test_table_3_2_follows_from_tables_b_28_to_b_31():
    printed = rows("3.2")
    for column, names in enumerate([("B.28", "B.30")] * 2 + [("B.29", "B.31")] * 2):
        total = dict.fromkeys(printed, 0.0)
        for name in names:
            for place in range(column % 2, 6, 2):
                values = {label: means(name, label)[place] for label in printed}
                places = rankdata([-value for value in values.values()])
                for label, rank in zip(values, places, strict=True):
                    total[label] += rank / 6
        for label, rank in total.items():
            assert means("3.2", label)[column] == pytest.approx(rank, abs=1e-4)


@pytest.mark.parametrize("name", [f"B.{number}" for number in range(12, 20)])
def test_accuracy_falls_and_nll_grows_with_the_severity(name):
    falling = load_table(name).title.startswith("Accuracy")
    for label in rows(name):
        values = means(name, label)
        assert values == sorted(values, reverse=falling)


def test_numbers_that_papers_repeat_are_equal():
    for metric in range(4):
        for label in ("SGPA", "CGPT"):
            other = "CGPT (alpha = 0.5 → 1.0)" if label == "CGPT" else label
            assert means("cgpt:II", label, metric) == means("cgpt:IV", other, metric)
    for group, seventh in ((2, 0), (3, 1)):
        for label in ("MSP", "KEP-SVGP"):
            assert means("kep:1", label, group) == means("kep:7", label, seventh)
    assert means("kep:5", "MSP") == means("kep:1", "MSP", 3)
    assert means("kep:6", "W1 (N x 2N)")[1:] == means("kep:1", "KEP-SVGP", 0)
    for label in ("MSP", "SGPA", "KEP-SVGP"):
        assert means("kep:4", label)[::3] == means("kep:8", label)[::2]
    # KEP's Table 4 repeats the thesis in percent and tenths of a nat.
    for ours, thesis in (("MSP", "MLE"), ("SGPA", "SGPA")):
        accuracy, nll = means("B.6", thesis)[:2]
        assert means("kep:4", ours)[:2] == pytest.approx([100 * accuracy, 10 * nll], abs=6e-3)


def test_the_thesis_repeats_its_diffusion_models_in_three_tables():
    high = means("5.3", "High-order Markov")
    assert high[::3] == means("5.3", "First-order Markov")[::3]
    for group, name in enumerate(("CIFAR10", "CelebA")):
        one, _, four = means("5.4", name, group)
        assert [one, four] == high[3 * group : 3 * group + 2]
    assert means("5.5", "Gaussian noise") == high[1:3]
    # Both stems stand beside the same printed numbers.
    for label in rows("5.2"):
        assert means("5.2", label) == means("5.2", label, 2)
    assert means("5.2", "Reconstruction (PSNR)", 1) == means("5.2", "Reconstruction (PSNR)", 3)


def test_averages_lie_between_what_they_average():
    for name in ("cgpt:II", "cgpt:IV", "cgpt:V"):
        for group in load_table(name).groups:
            for row in group.rows:
                *parts, average = (value.mean for value in row.values)
                assert min(parts) < average < max(parts)


def test_the_copied_nll_of_table_b_10_is_no_target_and_all_else_is():
    slips = {
        (name, row.label, column.label)
        for name in ALL
        for group in load_table(name).groups
        for row in group.rows
        for column, value in zip(group.columns, row.values, strict=True)
        if not value.target
    }
    assert slips == {("B.10", "SDP MLE", "NLL"), ("B.10", "MLE", "NLL")}
    for label in ("SDP MLE", "MLE"):
        _, rmse, nll = rows("B.10")[label].values
        assert rmse.text == nll.text


def test_units_are_those_in_which_the_papers_print():
    def scales(name):
        return {c.label: c.scale for group in load_table(name).groups for c in group.columns}

    assert set(scales("B.6").values()) == {1.0}
    assert scales("B.5")["MCC"] == 100.0
    assert scales("kep:2") == {
        "ACC": 100.0, "AURC": 1000.0, "AUROC": 100.0, "FPR95": 100.0, "ECE": 100.0,
        "NLL": 10.0, "Brier": 100.0,
    }  # fmt: skip
    assert set(scales("cgpt:III").values()) == {100.0}
    assert [g.columns[0].scale for g in load_table("cgpt:II").groups] == [100.0, 1.0, 1.0, 1.0]


def test_standard_deviations_become_standard_errors():
    deviation = rows("kep:1")["MSP"].values[0]
    assert deviation.text == "83.50±0.43"
    assert deviation.error == pytest.approx(0.43 / 5**0.5)
    assert rows("B.6")["MLE"].values[0].error == 0.0019
    assert rows("B.10")["MCD"].values[0].runs == 3


def test_the_printed_ece_is_not_that_over_all_classes():
    # Pooled over the N·C probabilities it is at most Σ|p − y| / (N·C) ≤ 2 / C.
    assert means("B.6", "SDP MLE")[2] > 2 / 10
    assert means("B.8", "SDP MLE")[2] > 2 / 100
    assert rows("B.6").keys() == rows("B.8").keys()


def test_each_runtime_is_of_its_own_number_of_inducing_variables():
    groups = load_table("4.1").groups
    places = [(column.data, *column.where.values()) for g in groups for column in g.columns]
    numbers = {"solar": (50, 150), "audio": (100, 200), "covid": (15, 30)}
    assert places == [(data, (M,)) for data, both in numbers.items() for M in both]
    # The same method has another name with other likelihoods.
    assert [group.rows[0].method for group in groups] == ["osgpr", "osgpr", "osvgp"]


def test_ablations_ask_for_their_settings():
    table = load_table("kep:9")
    assert table.groups[1].rows[2].where == {
        "kepsvgp.merge": ("addition",),
        "kepsvgp.eta": (0.1,),
    }
    assert rows("cgpt:V")["CGPT (alpha = 0.7)"].where == {
        "cgpt.alpha_start": (0.7,),
        "cgpt.alpha": (0.7,),
    }
    assert rows("kep:5")["MSP"].where == {}


def test_conditions_name_settings_that_recipes_have():
    known = {
        path for make in paper_notes._RECIPES.values() for path, _ in flatten(make().to_dict())
    }
    for name in ALL:
        for group in load_table(name).groups:
            for entry in (*group.columns, *group.rows):
                assert set(entry.where) <= known, name
    assert set(paper_notes._NOT_COMPARED) <= known | {path.partition(".")[0] for path in known}
