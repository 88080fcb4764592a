import os

import pytest

from probseq_apps.report.compare import compare
from probseq_apps.report.measured import find_runs
from probseq_apps.report.papers import load_table


def compared(name, *folders):
    runs, _ = find_runs(folders)
    return compare(load_table(name), runs)


def cells(comparison, label, group=0):
    return {row.label: row.cells for row in comparison.groups[group].rows}[label]


def test_ours_stand_in_the_paper_s_units_and_are_marked_by_their_good_end(write_run):
    # MSP of KEP's Table 1: accuracy 83.50±0.43, AURC 42.60±1.84 and NLL 11.13±0.40.
    found = {
        "test/accuracy": [0.90, 0.901, 0.899],
        "test/aurc": [0.090, 0.091, 0.089],
        "test/nll": [1.11, 1.12, 1.10],
    }
    accuracy, aurc, auroc, *_, nll, brier = cells(
        compared("kep:1", write_run("a", {"mle": found}, recipe="sgpa-cifar10")), "MSP"
    )
    assert accuracy.ours.mean == pytest.approx(90.0)
    assert accuracy.ours.standard_error == pytest.approx(0.1 / 3**0.5)
    assert (aurc.ours.mean, nll.ours.mean) == pytest.approx((90.0, 11.1))
    assert (accuracy.mark, aurc.mark, nll.mark) == ("▲", "▼", "")
    assert auroc.ours is brier.ours is None
    assert accuracy.paper.text == "83.50±0.43"


def test_a_slip_of_the_paper_is_never_marked(write_run):
    far = {"test/rmse": [9.0, 9.1], "test/nll": [9.0, 9.1]}
    folder = write_run("a", {"kernel": far, "mcd": far}, data="zinc")
    comparison = compared("B.10", folder)
    assert [cell.mark for cell in cells(comparison, "MLE")] == ["", "▼", ""]
    assert [cell.mark for cell in cells(comparison, "MCD")] == ["", "▼", "▼"]


def test_augmentation_decides_between_the_thesis_tables(write_run):
    plain = write_run("plain", {"sgpa": {"test/accuracy": [0.7, 0.71]}})
    augmented = write_run(
        "augmented", {"sgpa": {"test/accuracy": [0.8, 0.81]}}, recipe="sgpa-cifar10-aug"
    )
    for name, folder in (("B.6", plain), ("B.7", augmented)):
        comparison = compared(name, plain, augmented)
        assert [run.folder for run in comparison.runs] == [folder]
    assert compared("B.8", plain, augmented).runs == ()


def test_of_several_runs_the_paper_s_recipe_goes_first_and_then_the_newest(write_run):
    ages = {"recipe": 3, "older": 2, "newer": 1}
    folders = {}
    for name, age in ages.items():
        started_from = "sgpa-cifar10" if name == "recipe" else "cifar10-small"
        found = {"sgpa": {"test/nll": [0.5]}, "mle": {"test/nll": [0.5]}}
        if name == "recipe":
            del found["mle"]
        folders[name] = write_run(name, found, started_from=started_from)
        os.utime(folders[name] / "report.json", (1e9 - age, 1e9 - age))
    comparison = compared("B.6", *folders.values())
    assert cells(comparison, "SGPA")[1].runs[0].folder == folders["recipe"]
    assert cells(comparison, "SDP MLE")[1].runs[0].folder == folders["newer"]
    assert [run.folder.name for run in comparison.runs] == ["newer", "recipe"]


def test_ablations_take_runs_with_their_settings_only(write_run):
    # KEP-SVGP's settings are nested in those of every run; these differ in the weight.
    values = {"kepsvgp": {"test/accuracy": [0.8]}}
    one = write_run("one", values, kepsvgp__eta=1.0)
    added = write_run("added", values, kepsvgp__eta=10.0, kepsvgp__merge="addition")
    comparison = compared("kep:9", one, added)
    taken = [
        (group.title, row.label)
        for group in comparison.groups
        for row in group.rows
        if row.cells[0].ours is not None
    ]
    assert taken == [("concatenation [F^e; F^r]", "eta = 1"), ("addition F^e + F^r", "eta = 10")]


def test_shift_is_averaged_over_severities_by_group(write_run):
    found = {}
    for severity, value in ((1, 0.8), (3, 0.6), (5, 0.4)):
        found[f"shift/noise-{severity}/accuracy"] = [value, value]
        found[f"shift/severity-{severity}/accuracy"] = [value / 2, value / 2]
    comparison = compared("cgpt:II", write_run("a", {"cgpt": found}))
    noise, blur, *_, average = cells(comparison, "CGPT")
    assert (noise.ours.mean, average.ours.mean) == pytest.approx((60.0, 30.0))
    assert blur.ours is None
    by_severity = compared("B.12", write_run("b", {"sgpa": found}))
    means = [c.ours and c.ours.mean for c in cells(by_severity, "SGPA")]
    assert means == [pytest.approx(0.4), None, pytest.approx(0.3), None, pytest.approx(0.2)]


def test_detectors_are_averaged_over_the_unknown_sets(write_run):
    found = {
        f"ood/{name}/{detector}/auroc": [value]
        for name, value in (("svhn", 0.6), ("folder:/x/Textures", 0.8))
        for detector in ("max-softmax", "energy")
    }
    found["ood/svhn/energy/auroc"] = [1.0]
    comparison = compared("cgpt:III", write_run("a", {"sgpa": found}))
    sgpa = 2
    assert cells(comparison, "MaxSoftmax", sgpa)[0].ours.mean == pytest.approx(70.0)
    assert cells(comparison, "Energy-Based", sgpa)[0].ours.mean == pytest.approx(90.0)
    assert cells(comparison, "Average", sgpa)[0].ours.mean == pytest.approx(80.0)
    assert cells(comparison, "Entropy", sgpa)[0].ours is None


def test_ranks_are_over_the_tasks_that_were_run(write_run):
    def found(svhn, other, name):
        return {
            f"ood/{place}/entropy/{metric}": values
            for place, values in (("svhn", svhn), (name, other))
            for metric in ("auroc", "aupr-out")
        }

    ten = write_run(
        "ten",
        {
            "kernel": found([0.5, 0.7], [0.9, 0.9], "cifar100"),
            "sgpa": found([0.8, 0.8], [0.8, 0.8], "cifar100"),
            "mfvi": found([0.1, 0.1], [0.8, 0.8], "cifar100"),
            # Softmax attention is in Table B.28, and not in Table 3.2.
            "mle": found([0.99, 0.99], [0.99, 0.99], "cifar100"),
        },
    )
    hundred = write_run(
        "hundred",
        {
            "kernel": {"ood/folder:/d/mini-ImageNet/entropy/auroc": [0.4, 0.6]},
            "sgpa": {"ood/folder:/d/mini-ImageNet/entropy/auroc": [0.6, 0.6]},
        },
        recipe="sgpa-cifar100",
    )
    comparison = compared("3.2", ten, hundred)
    ours = {
        row.label: [cell.ours and cell.ours.mean for cell in row.cells]
        for row in comparison.groups[0].rows
    }
    # Against SVHN 2, 1, 3; against CIFAR-100 1, 2.5, 2.5; CIFAR-100 against mini-ImageNet 2, 1.
    assert ours["MLE"] == [pytest.approx(5 / 3), pytest.approx(1.5), None, None]
    assert ours["SGPA"][:2] == [pytest.approx(4.5 / 3), pytest.approx(1.75)]
    assert ours["MFVI"][:2] == [pytest.approx(2.75), pytest.approx(2.75)]
    assert ours["DE"] == [None] * 4
    # Tables B.28 and B.30 rank MLE, SGPA and MFVI 1, 2, 3; 2, 1, 3; and MLE and SGPA 2, 1.
    same = {row.label: row.cells[0].same for row in comparison.groups[0].rows}
    assert (same["MLE"], same["SGPA"], same["MFVI"]) == pytest.approx((5 / 3, 4 / 3, 3.0))
    assert comparison.groups[0].rows[0].cells[0].paper.text == "6.1667"
    assert {run.folder for run in comparison.runs} == {ten, hundred}
    assert len(comparison.tasks) == 3


def test_without_runs_every_cell_has_the_paper_alone():
    comparison = compare(load_table("3.2"), [])
    assert all(cell.ours is None for row in comparison.groups[0].rows for cell in row.cells)
    assert comparison.runs == ()
