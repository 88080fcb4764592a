"""The papers' claims, what they name, and what runs say of them."""

import math
import re

import numpy as np
import pytest
from scipy import stats

from probseq.summary import LABELS
from probseq_apps.cli import main
from probseq_apps.engine.files import read_json, write_json
from probseq_apps.registry import REGISTRY, load
from probseq_apps.report.claims import judge_claims, load_claims
from probseq_apps.report.measured import find_runs

ECE = {"kernel": [0.10, 0.12, 0.11, 0.13], "sgpa": [0.05, 0.06, 0.04, 0.07]}


def verdict(runs, name, also=False):
    first, *others = [one for one in judge_claims(runs) if one.claim.name == name]
    return others[0] if also else first


def test_claims_name_recipes_rows_and_metrics_that_exist():
    kinds = [entry.settings for entry in REGISTRY.values() if entry.kind]
    recipes = {name for settings in kinds for name in load(settings).by_name}
    claims = load_claims()
    assert len(claims) >= 30
    for claim in claims:
        assert set(claim.recipes) <= recipes, claim.name
        last = claim.metric.rpartition("/")[2]
        assert last in LABELS or claim.costs or last == "forgetting", claim.name


def test_a_claim_is_judged_by_differences_within_the_seeds_of_one_run(write_run):
    write_run("one", {name: {"test/ece": values} for name, values in ECE.items()})
    runs, _ = find_runs([write_run("two", {"mle": {"test/ece": [0.1]}}).parent])
    found = verdict(runs, "sgpa-calibration")
    differences = np.subtract(ECE["kernel"], ECE["sgpa"])
    half = stats.t.ppf(0.975, 3) * stats.sem(differences)
    assert found.gains["kernel"].summary.mean == pytest.approx(differences.mean())
    assert found.gains["kernel"].summary.interval == pytest.approx(half)
    assert (found.text, found.run.folder.name) == ("holds", "one")
    assert verdict(runs, "sgpa-calibration", also=True).text == "not run"
    methods = {name: {"test/ece": values[::-1]} for name, values in ECE.items()}
    other = write_run("three", {**methods, "sgpa": methods["kernel"]}, recipe="speakers-all")
    both, _ = find_runs([other.parent])
    # Each task has runs of its own.
    assert verdict(both, "sgpa-calibration").run.folder.name == "one"
    found = verdict(both, "sgpa-calibration", also=True)
    assert (found.text, found.run.folder.name) == ("does not hold", "three")
    # MC dropout, which it is to be better than too, was not run; nor was anything of the others.
    assert verdict(runs, "sgpa-likelihood").text == verdict(runs, "ohsvgp-solar").text == "not run"


@pytest.mark.parametrize(
    ("ours", "text"),
    [
        ([0.20, 0.21, 0.22, 0.21], "does not hold"),
        ([0.09, 0.10, 0.02, 0.12], "not resolved: would need \\d+ seeds"),
        ([0.07], "not resolved"),
    ],
)
def test_what_seeds_leave_open_or_refute_is_said(write_run, ours, text):
    theirs = ECE["kernel"][: len(ours)]
    folder = write_run("run", {"kernel": {"test/ece": theirs}, "sgpa": {"test/ece": ours}})
    assert re.fullmatch(text, verdict(find_runs([folder])[0], "sgpa-calibration").text)


def test_of_several_rows_the_worst_counts_and_of_several_runs_the_paper_s(write_run):
    rows = {"sgpa": [0.5, 0.51, 0.52], "kernel": [0.9, 0.91, 0.92], "mcd": [0.4, 0.41, 0.42]}
    methods = {name: {"test/nll": values} for name, values in rows.items()}
    folder = write_run("small", methods, started_from="digits-few-all").parent
    runs, _ = find_runs([folder])
    assert verdict(runs, "sgpa-likelihood").text == "does not hold"
    write_run("paper", methods | {"mcd": {"test/nll": [0.8, 0.81, 0.82]}})
    found = verdict(find_runs([folder])[0], "sgpa-likelihood")
    assert (found.run.folder.name, found.text) == ("paper", "holds")


def test_a_run_that_keeps_to_its_recipe_counts_before_a_shortened_one_of_the_paper_s(write_run):
    methods = {name: {"test/ece": values} for name, values in ECE.items()}
    folder = write_run("short", methods, training__epochs=3).parent
    assert verdict(find_runs([folder])[0], "sgpa-calibration").run.folder.name == "short"
    write_run("whole", methods, recipe="digits-few-all")
    assert verdict(find_runs([folder])[0], "sgpa-calibration").run.folder.name == "whole"


def test_seconds_are_compared_by_their_factor(write_run):
    methods = {name: {"test/nll": [0.1, 0.1, 0.1]} for name in ("sgpa", "kepsvgp")}
    folder = write_run("run", methods, recipe="kepsvgp-cifar10-sgpa-size")
    report = read_json(folder / "report.json")
    report["methods"]["sgpa"]["train_seconds"] = [480.0, 480.0, 480.0]
    write_json(folder / "report.json", report)
    found = verdict(find_runs([folder])[0], "kepsvgp-seconds")
    assert math.exp(found.gains["sgpa"].summary.mean) == pytest.approx(4.0)
    assert found.text == "holds"


def test_the_table_of_claims_is_written_with_what_differs_from_the_recipe(
    write_run, tmp_path, capsys
):
    methods = {name: {"test/ece": values} for name, values in ECE.items()}
    changes = {"training__epochs": 3, "kepsvgp__eta": 7.0, "training__device": "cuda"}
    folder, pages = write_run("one", methods, **changes), tmp_path / "pages"
    assert main(["claims", str(folder), "--output-dir", str(pages)]) == 0
    assert "holds: SGPA is better calibrated" in capsys.readouterr().out
    page = (pages / "claims.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| SGPA is better calibrated")]
    assert re.search(r"\+0\.06\d+ ± 0\.0\d+ over kernel", rows[0])
    end = "| sgpa-cifar10 with training.epochs 3 (600), 4 seeds | holds |"
    assert rows[0].endswith(end)
    assert page.count("| not run |\n") == len(load_claims()) - 1
