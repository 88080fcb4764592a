import pytest

from probseq_apps.report.grids import Grid, markdown_grid, mean_of, text_grid
from probseq_apps.report.ood_grids import ood_grids
from probseq_apps.report.shift_grids import mean_over_severities, shift_grids
from probseq_apps.report.summary import summarise

METRICS = ("accuracy", "nll", "ece", "mce")


def shifted(values, kind="shift"):
    """Values by group and severity, the same for every metric."""
    return {
        f"{kind}/{group}-{severity}/{metric}": summarise(list(found))
        for (group, severity), found in values.items()
        for metric in METRICS
    }


def test_a_grid_marks_the_best_of_each_column_alone():
    good, bad = summarise([0.90, 0.91, 0.92]), summarise([0.10, 0.11, 0.12])
    grid = Grid("g", ("up", "down"), ("higher", "lower"), {"a": (good, good), "b": (bad, bad)})
    lines = text_grid(grid, {"a": 3, "b": 3}, 100).splitlines()
    assert lines[0].split() == ["g", "n", "up", "↑", "down", "↓"]
    assert lines[2].split() == ["a", "3", "0.9100±0.0058", "*", "0.9100±0.0058"]
    assert lines[3].split() == ["b", "3", "0.1100±0.0058", "0.1100±0.0058", "*"]
    rows = markdown_grid(grid, {"a": 3, "b": 3}).splitlines()
    assert rows[2] == "| a (n=3) | **0.9100±0.0058** * | 0.9100±0.0058 |"


def test_a_mean_over_metrics_is_taken_for_each_seed_first():
    mean = mean_of([summarise([0.0, 1.0]), summarise([1.0, 0.0])])
    assert (mean.values, mean.standard_error) == ((0.5, 0.5), 0.0)
    assert mean_of([summarise([None, 1.0]), summarise([1.0, 0.0])]).mean is None


def test_shift_has_a_table_by_severity_and_one_by_group_for_each_metric():
    values = {("severity", 1): [0.4], ("severity", 5): [0.2], ("noise", 1): [0.5]}
    values |= {("noise", 5): [0.3], ("blur", 1): [0.3], ("blur", 5): [0.1]}
    grids = shift_grids({"sgpa": shifted(values)})
    assert len(grids) == 2 * len(METRICS)
    severity, group = grids[:2]
    assert severity.heads == ("severity 1", "severity 5")
    assert [s.mean for s in severity.rows["sgpa"]] == [0.4, 0.2]
    assert group.heads == ("noise", "blur", "all")
    assert [s.mean for s in group.rows["sgpa"]] == pytest.approx([0.4, 0.2, 0.3])
    assert {grid.directions[0] for grid in grids[:2]} == {"higher"}


def test_a_single_group_has_no_table_of_its_own():
    values = {("severity", 1): [0.4], ("digital", 1): [0.4]}
    assert [grid.heads for grid in shift_grids({"a": shifted(values)})] == [("severity 1",)] * 4
    assert shift_grids({"a": {"test/nll": summarise([1.0])}}) == []


def test_published_and_made_corruptions_are_not_mixed():
    found = shifted({("severity", 1): [0.4]}) | shifted({("severity", 1): [0.8]}, kind="cifar-c")
    assert mean_over_severities(found, "cifar-c", "severity", "nll").mean == 0.8
    assert len(shift_grids({"a": found})) == 8


def detected(values):
    return {
        f"ood/{outside}/{detector}/{metric}": summarise(list(found))
        for (outside, detector), found in values.items()
        for metric in ("auroc", "aupr-in", "aupr-out", "fpr95")
    }


def test_each_set_and_detector_has_its_table_and_the_sets_their_mean():
    sets = {("svhn", "entropy"): [0.6, 0.8], ("folder:/a/b", "entropy"): [0.4, 0.4]}
    grids = ood_grids({"sgpa": detected(sets)})
    assert [grid.title for grid in grids] == [
        "against svhn, entropy",
        "against folder:/a/b, entropy",
        "mean over 2 sets, entropy",
    ]
    assert grids[0].heads == ("AUROC", "AUPR-in", "AUPR-out", "FPR95")
    assert grids[0].directions == ("higher", "higher", "higher", "lower")
    assert grids[2].rows["sgpa"][0].values == pytest.approx((0.5, 0.6))


def test_ranks_are_over_the_sets_for_each_detector():
    first = {("svhn", "entropy"): [0.9], ("dtd", "entropy"): [0.9]}
    second = {("svhn", "entropy"): [0.8], ("dtd", "entropy"): [0.9]}
    third = {("svhn", "entropy"): [0.1], ("dtd", "entropy"): [0.95]}
    methods = {"a": detected(first), "b": detected(second), "c": detected(third)}
    ranks = ood_grids(methods)[-1]
    assert ranks.title == "average rank over 2 sets"
    assert ranks.heads == ("entropy AUROC", "entropy AUPR-out")
    # 1, 2, 3 and 2.5, 2.5, 1.
    assert [row[0].mean for row in ranks.rows.values()] == [1.75, 2.25, 2.0]


def test_one_set_has_neither_means_nor_ranks():
    found = detected({("svhn", "entropy"): [0.9], ("svhn", "energy"): [0.9]})
    assert len(ood_grids({"a": found, "b": found})) == 2
    assert ood_grids({"a": {"test/nll": summarise([1.0])}}) == []
