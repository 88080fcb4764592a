"""`probseq bench online`: that it measures what it says; how fast anything is, is no test."""

import json
import math

import pytest
import torch

from ohsvgp import LegS
from probseq_apps.bench import online
from probseq_apps.bench.online import (
    Sizes,
    grown_model,
    measure,
    memory_rows,
    next_points,
    one_by_one,
    state_bytes,
    stream,
)
from probseq_apps.bench.timing import Row, interleaved, table
from probseq_apps.cli import main

TINY = Sizes(singles=8, few=1, more=2, early=60, late=120, watched=100)

# Few inducing variables for streams of this length, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:.*inducing variables cannot hold the stream")


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(online, "SOLAR", 40)
    monkeypatch.setattr(online, "AUDIO", 200)
    monkeypatch.setattr(online, "_COMPARED", (8,))
    monkeypatch.setattr(online, "FEATURES", 20)


def test_every_goal_has_a_row_and_ratios_are_of_the_rows_above(tiny):
    rows = measure(TINY, repeats=1)
    assert sum(row.goal is not None for row in rows) >= 13
    assert all(math.isfinite(row.value) and row.value >= 0 for row in rows)
    by_label = {row.label: row for row in rows}
    window, euler, ratio = rows[12:15]
    assert (window.label, euler.label) == (
        "K_uu after 40 points, M=8",
        "  by 40 Euler steps, 20 random features",
    )
    assert ratio.value == pytest.approx(euler.value / window.value)
    assert (ratio.goal, ratio.least) == (100.0, True)
    late = by_label["state after 120 points, M=50"]
    assert late.value == late.goal == by_label["state after 60 points, M=50"].value


def test_osgpr_s_time_is_that_of_the_short_run_and_of_the_steps_that_it_lacks():
    found = {"few": 1.0, "more": 3.0, "solar-50": 0.5}
    sizes = TINY._replace(few=5, more=25)
    step, seconds, ratio = online.learning_rows(found, sizes)
    assert (step.value, step.unit) == (pytest.approx(100.0), "ms")
    assert seconds.value == pytest.approx(1.0 + 995 * 0.1)
    assert ratio.value == pytest.approx(seconds.value / 0.5)


@pytest.mark.parametrize(
    ("value", "least", "met"), [(2.0, False, False), (1.0, False, True), (2.0, True, True)]
)
def test_a_goal_is_an_upper_limit_or_a_lower_one(value, least, met):
    goal = 1.5
    row = Row("what", value, "ms", goal, least)
    assert row.met == met
    line = " ".join(table([row]).splitlines()[-1].split())
    end = f"{'≥' if least else '≤'} 1.5 ms {'met' if met else 'missed'}"
    assert line == f"what {value:g} ms {end}"
    assert Row("what", value, "ms").met is None


def test_a_model_that_is_timed_on_new_points_stays_as_it_is():
    grown = grown_model(60)
    before = {name: tensor.clone() for name, tensor in grown.state_dict().items()}
    assert next_points(grown, 4)() > 0
    after = grown.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_one_by_one_learns_every_point(monkeypatch):
    seen = []
    monkeypatch.setattr("ohsvgp.OnlineGP.update", lambda self, t, y: seen.append(len(t)))
    one_by_one(LegS(5), "task", 7)()
    assert seen == [1] * 7


def test_memory_is_looked_at_early_and_at_the_end(monkeypatch):
    monkeypatch.setattr(online, "_resident_bytes", iter([1000, 1001]).__next__)
    early, late, growth = memory_rows(100)
    assert early.label == "state after 50 points one by one"
    assert early.value == late.value == late.goal == state_bytes(grown_model(60))
    assert (growth.value, growth.met) == (1, True)
    monkeypatch.setattr(online, "_resident_bytes", lambda: None)
    assert len(memory_rows(60)) == 2


def test_cases_take_turns_and_the_first_turn_is_not_counted():
    calls = []

    def case(name, values):
        return lambda: (calls.append(name), values.pop(0))[1]

    cases = {"a": case("a", [100.0, 1.0, 2.0, 6.0]), "b": case("b", [0.0, 5.0, 4.0, 3.0])}
    assert interleaved(cases, 3) == {"a": 2.0, "b": 4.0}
    assert calls == ["a", "b"] * 4


def test_cases_may_run_more_or_less_often():
    calls = []
    cases = {name: lambda name=name: (calls.append(name), 1.0)[1] for name in ("a", "b")}
    assert interleaved(cases, {"a": 2, "b": 1}) == {"a": 1.0, "b": 1.0}
    assert calls == ["a", "b", "a", "b", "a"]


def test_streams_of_any_density_cover_the_same_time():
    for count in (5, 500):
        t, y = stream(count)
        assert (len(t), len(y)) == (count, count)
        assert (float(t[0]), float(t[-1])) == (0.0, 39.0)


def test_the_table_is_printed_and_the_numbers_are_written(monkeypatch, tmp_path, capsys):
    rows = [Row("a ratio", 123.4, "x", 100.0, least=True), Row("kept", 2048.0, "bytes")]
    asked = []
    monkeypatch.setattr(
        online, "measure", lambda sizes, repeats: (asked.append((sizes, repeats)), rows)[1]
    )
    path = tmp_path / "bench.json"
    threads = torch.get_num_threads()
    arguments = ["--quick", "--repeats", "2", "--json", str(path)]
    assert main(["bench", "online", *arguments]) == 0
    assert torch.get_num_threads() == threads
    assert asked == [(Sizes(40, 2, 6, 1_000, 10_000, 500), 2)]
    printed = capsys.readouterr().out
    assert "123x  ≥ 100x  met" in printed
    assert "2,048 bytes" in printed
    assert "extrapolated: that of 2 Adam steps" in printed
    first, second = json.loads(path.read_text())
    assert (first["value"], first["goal"], first["met"]) == (123.4, 100.0, True)
    assert (second["unit"], second["met"]) == ("bytes", None)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--repeats", "0"], "repeats"),
        (["--long", "10"], "long"),
        (["--json", "no/such/folder/x.json"], "json"),
    ],
)
def test_wrong_arguments_are_usage_errors_that_name_them(arguments, named, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["bench", "online", *arguments])
    assert stop.value.code == 2
    assert named in capsys.readouterr().err
