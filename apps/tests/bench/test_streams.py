"""`probseq bench streams`: regimes of live streams, which must hold."""

import numpy as np
import pytest

from ohsvgp.integrations.live import LiveStream
from probseq_apps.bench import streams
from probseq_apps.bench.streams import StreamOutcome, judge, make_stream, streams_of
from probseq_apps.cli import main

ALONE = [stream for stream in streams_of() if not stream[1]]


def hold(kind, daily: bool, seeds: int) -> StreamOutcome:
    outcome = judge(kind, daily, seeds)
    assert outcome.answered == 1.0
    assert 0.88 < outcome.after < 0.995
    assert outcome.ratio < 1.1
    return outcome


@pytest.mark.parametrize(
    ("kind", "daily"),
    [("sentinel", False), ("reset", True), ("back", False), ("duplicate", True), ("counts", False)],
)
def test_streams_are_answered_and_as_good_as_the_better_naive_forecast(kind, daily) -> None:
    outcome = hold(kind, daily, 1)
    assert outcome.detected or kind in ("duplicate", "counts")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "daily"), streams_of())
def test_no_regime_is_left_alone(kind, daily) -> None:
    hold(kind, daily, 5)


@pytest.mark.parametrize("seed", [104, 108, 118])
def test_values_off_a_limit_are_seldom_alarms_where_most_are_at_it(seed) -> None:
    made, stream = make_stream("saturated", False, seed), LiveStream()
    lines = zip(made.times[:200].tolist(), made.values[:200].tolist(), strict=True)
    answers = [stream.answer(f"{t!r},{y!r}") or {} for t, y in lines]
    assert sum(bool(answer["alerts"]) for answer in answers) <= 2


def test_regimes_differ_where_something_happens() -> None:
    quiet = make_stream("quiet", False, 0)
    for kind, daily in ALONE:
        made = make_stream(kind, daily, 0)
        same = np.array_equal(made.values, quiet.values, equal_nan=True)
        assert (same and np.array_equal(made.times, quiet.times)) == (kind == "quiet"), kind


def test_the_command_prints_what_was_judged_and_the_time_of_a_line(monkeypatch, capsys) -> None:
    monkeypatch.setattr(streams, "TIMED", 25)
    command = ["bench", "streams", "--regimes", "sentinel", "--seeds", "1", "--repeats", "1"]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    cells = [f"{value:.2f}" for value in judge("sentinel", True, 1)]
    assert f"| sentinel, daily | {' | '.join(cells)} |" in lines
    live, gp, kalman, first, second = (
        float(line.split()[-1].rstrip("x") if "against" in line else line.split()[-2])
        for line in lines
        if line.endswith((" ms", "x")) and "torch" not in line
    )
    assert (first, second) == pytest.approx((live / kalman, gp / live), rel=0.02)


def test_methods_of_the_timed_table_forecast_what_dense_conditioning_does() -> None:
    t = np.arange(60.0)
    y = 3.0 * np.sin(2 * np.pi * t / 24) + 0.5 * np.random.default_rng(0).normal(size=60)
    points = list(zip(t.tolist(), y.tolist(), strict=True))
    distance = np.sqrt(3.0) / 6.0 * np.abs(np.subtract.outer(np.arange(61.0), t))
    k = (1.0 + distance) * np.exp(-distance)
    dense = [k[n, :n] @ np.linalg.solve(k[:n, :n] + 0.25 * np.eye(n), y[:n]) for n in range(1, 61)]
    live, gp, kalman = (method(points) for method in streams.METHODS.values())
    np.testing.assert_allclose(kalman, dense, rtol=1e-9)
    np.testing.assert_allclose(gp, dense, atol=0.05)
    assert np.abs(np.array(live[20:-1]) - y[-len(live) + 21 :]).mean() < np.abs(np.diff(y)).mean()
