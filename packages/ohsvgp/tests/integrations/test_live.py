"""A stream that is learned line by line and kept in a file."""

import json
import math
import random
import signal
import time
from contextlib import closing
from multiprocessing.context import BaseContext
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Any

import numpy as np
import pytest

from damage import flipped_bits
from ohsvgp.integrations.live import LiveStream
from ohsvgp.integrations.live import stream as live
from ohsvgp.integrations.live.state import FORMAT, saved_settings
from probseq.files import DamagedFileError, InUseError, read_json, sole_use

LINES = [f"{0.25 * k},{math.sin(0.25 * k)}\n" for k in range(40)]
SETTINGS = {"likelihood": "gaussian", "season": ["auto"], "false_alarms": "0.002", "warmup": 3}


def run(
    lines: list[str],
    file: Path | None = None,
    *,
    every: int = 1,
    replay: bool = False,
    **options: Any,
) -> list[dict[str, Any]]:
    """What answers each line."""
    stream = LiveStream(file, **{"warmup": 3} | options)
    return [json.loads(text) for text in stream.follow(lines, every=every, replay=replay)]


def lines_of(y: Any, t: Any = None) -> list[str]:
    times = range(len(y)) if t is None else t
    return [f"{stamp},{float(value)!r}\n" for stamp, value in zip(times, y, strict=True)]


def refused(answers: list[dict[str, Any]]) -> dict[int, str]:
    return {answer["line"]: answer["refused"] for answer in answers if "refused" in answer}


def learned(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Answers without the numbers of their lines."""
    found = [answer for answer in answers if "refused" not in answer]
    return [{name: answer[name] for name in answer if name != "line"} for answer in found]


def alerts(answers: list[dict[str, Any]], *words: str) -> list[int]:
    return [a["line"] for a in answers if {*words} & {*a.get("alerts", ())}]


NOISE = np.random.default_rng(0).normal(size=400)


def test_first_lines_may_come_out_of_order_and_in_any_unit() -> None:
    whole = run(LINES[:8], warmup=4)
    assert run([*LINES[:1], *LINES[3:0:-1], *LINES[4:8]], warmup=4)[4:] == whole[4:]
    assert [bool(answer["forecasts"]) for answer in whole] == [False] * 3 + [True] * 5
    t, y = 900.0 * np.arange(100), 5000.0 + 100.0 * np.sin(0.3 * np.arange(100))
    ahead = [answer["forecasts"][0] for answer in run(lines_of(y, t), warmup=25)[24:-1]]
    assert [row["t"] for row in ahead] == t[25:].tolist()
    assert np.abs(np.array([row["mean"] for row in ahead]) - y[25:])[-20:].max() < 5.0


def test_counts_are_whole_and_other_values_refused() -> None:
    answers = run([f"{k},{k % 3}\n" for k in range(8)] + ["8,1.5\n"], likelihood="poisson")
    assert all(row["low"].is_integer() for row in answers[6]["forecasts"])
    assert refused(answers) == {9: "y must be a count 0, 1, 2, … for poisson, got 1.5"}
    assert list(refused(run(["0,1\n", "1,-1\n"], likelihood="negative-binomial"))) == [2]


def test_intermittent_counts_have_the_mean_of_croston() -> None:
    ratios, held = list[float](), list[bool]()
    for seed in range(4):
        rng = np.random.default_rng(seed)
        y = (rng.random(300) < 0.15) * (1.0 + rng.poisson(4.7, size=300))
        ahead = [a["forecasts"][0] for a in run(lines_of(y), likelihood="negative-binomial")[60:]]
        ratios.append(fmean(row["mean"] for row in ahead[:-1]) / y[61:].mean())
        held += [row["low"] <= v <= row["high"] for row, v in zip(ahead, y[61:], strict=False)]
    assert fmean(ratios) == pytest.approx(1.0, abs=0.1)
    assert 0.93 < fmean(held) <= 1.0


def test_a_missing_value_is_told_and_forecast_over() -> None:
    answers = run([*LINES[:8], "2.0,\n", "2.25,NaN\n", *LINES[10:12]])
    assert alerts(answers, "missing") == [9, 10]
    assert [(a["y"], a["error"]) for a in answers[8:10]] == [(None, None)] * 2
    assert [answer["forecasts"][0]["t"] for answer in answers[7:10]] == [2.0, 2.25, 2.5]
    widths = [row["high"] - row["low"] for a in answers[7:10] for row in a["forecasts"]]
    assert widths[0] < widths[1] < widths[2]


def test_lines_that_say_nothing_are_passed_over_and_wrong_ones_refused() -> None:
    wrong = ["1.0\n", "one,2\n", "0.6,x\n", "2024-01-01,2\n", "1e999,2\n", "1,inf\n"]
    quiet = ["\n", "# a remark\n"]
    answers = run([*LINES[:3], *wrong, *quiet, *LINES[3:8]])
    assert learned(answers) == learned(run(LINES[:8]))
    reasons = refused(answers)
    assert list(reasons) == list(range(4, 10))
    assert "stamp and value" in reasons[4]
    assert "'one'" in reasons[5]
    assert "finite" in reasons[9]


def test_false_alarms_of_quiet_lines_come_as_often_as_asked_for() -> None:
    day, step, lines = 86_400.0, 300.0, 9_000
    y = np.random.default_rng(7).normal(size=lines)
    stream = LiveStream(false_alarms=2.0, per=day, seasons=None)
    assert stream.threshold(step) == pytest.approx(NormalDist().inv_cdf(1.0 - step / day))
    answers = [json.loads(text) for text in stream.follow(lines_of(y, step * np.arange(lines)))]
    expected = 2.0 * lines * step / day  # 62.5
    assert 0.5 * expected < len(alerts(answers, "outlier")) < 2.0 * expected
    answers = run(lines_of(y[:30], step * np.arange(30)), false_alarms=288.0, per=day)
    assert refused(answers)[30] == "false_alarms must be fewer than lines, got 1 for each"


def test_a_time_ahead_is_forecast_in_the_steps_of_the_stream() -> None:
    y = np.sin(np.arange(40.0))
    ahead = run(lines_of(y, 900.0 * np.arange(40)), ahead=3_600.0)[-1]["forecasts"]
    assert [row["t"] for row in ahead] == [900.0 * k for k in range(40, 44)]
    answers = run(lines_of(y, np.arange(40.0)), ahead=1e6)
    assert refused(answers)[3] == "horizon must be at most 10,000 steps"


@pytest.mark.parametrize("wild", [-9999.0, 65535.0, 1e9])
@pytest.mark.parametrize("length", [1, 3])
def test_sentinels_are_not_believed(wild: float, length: int) -> None:
    y = 20.0 + 0.5 * NOISE[:160]
    sent = y.copy()
    sent[100 : 100 + length] = wild
    answers = run(lines_of(sent), warmup=20)
    assert alerts(answers[99:], "outlier")[0] == 101
    ahead = np.array([a["forecasts"][0]["mean"] for a in answers[100 + length : -1]])
    assert np.abs(ahead - 20.0).max() < 1.0
    assert answers[100]["forecasts"][0]["mean"] == pytest.approx(20.0, abs=1.0)


@pytest.mark.parametrize("size", [-1266.0, 40.0])
def test_a_new_level_is_told_and_followed(size: float) -> None:
    # A counter that is set back, and goes on as before.
    y = 1000.0 + 3.0 * np.arange(160) + NOISE[:160] + size * (np.arange(160) >= 100)
    answers = run(lines_of(y), warmup=20)
    assert alerts(answers, "new level") == [102]
    assert alerts(answers, "outlier") == [101]
    error = [a["forecasts"][0]["mean"] for a in answers[101:-1]] - y[102:]
    assert np.abs(error).mean() < 1.3


def test_intervals_far_ahead_stay_narrow_after_a_new_level() -> None:
    answers = run(lines_of(NOISE[:300] + 10.0 * (np.arange(300) >= 200)), horizon=24)
    widths = [a["forecasts"][-1]["high"] - a["forecasts"][-1]["low"] for a in answers[199:]]
    assert max(widths) < 5.0 * widths[0]  # 9 where each of 23 forecasts counts for itself


REPEATS = {
    "three readings a stamp": [k // 3 for k in range(120)],
    "each line twice": [k // 2 for k in range(120)],
    "ten a second": [f"2024-01-01T00:{k // 600:02}:{k // 10 % 60:02}" for k in range(120)],
    "one at first": [0] * 15 + list(range(1, 106)),
    "from some line on": [*range(40), *(40 + k // 3 for k in range(80))],
}


@pytest.mark.parametrize("kind", REPEATS)
def test_repeated_stamps_are_observations_at_one_time(kind: str) -> None:
    y = 5.0 + 0.5 * NOISE[:120]
    if kind == "each line twice":
        y[1::2] = y[::2]
    answers = run(lines_of(y, REPEATS[kind]), warmup=20)
    assert refused(answers) == {}
    assert all(a["forecasts"] for a in answers[40:])
    assert abs(answers[-1]["forecasts"][0]["mean"] - 5.0) < 0.5
    if kind == "each line twice":  # as one that came once
        once = run(lines_of(y[::2], range(60)), warmup=10)
        assert 0.8 < width(answers[-1]) / width(once[-1]) < 1.3


def width(answer: dict[str, Any]) -> float:
    return answer["forecasts"][0]["high"] - answer["forecasts"][0]["low"]


def test_a_stamp_too_far_ahead_waits_for_the_next() -> None:
    lines = lines_of(5.0 + NOISE[:100])
    answers = run([*lines[:60], "157800,4.0\n", *lines[60:]], warmup=20)
    assert alerts(answers, "clock") == [61]
    assert learned(answers[61:]) == learned(run(lines, warmup=20)[60:])
    # One that the next confirms was a gap.
    later = [f"{1000 + k},5.0\n" for k in range(5)]
    answers = run([*lines, *later], warmup=20)
    assert [a["forecasts"][0]["t"] for a in answers[-5:]] == [100, 1002, 1003, 1004, 1005]


@pytest.mark.parametrize("times", [60, 1440])
def test_a_stream_whose_stamps_come_more_rarely_goes_on(times: int) -> None:
    stamps = [*range(100), *(100 + times * k for k in range(1, 30))]
    answers = run(lines_of(5.0 + 0.1 * NOISE[:129], stamps), warmup=20)
    # Five of the nine latest gaps make a step.
    assert alerts(answers, "clock") == [*range(101, 107)]
    assert answers[-1]["forecasts"][0]["t"] == stamps[-1] + times
    assert answers[-1]["forecasts"][0]["mean"] == pytest.approx(5.0, abs=0.5)


def test_more_lines_may_wait_than_seasons_are_compared_on() -> None:
    answers = run(lines_of(np.tile(NOISE, 2)[:755]), warmup=752)
    assert [len(a["forecasts"]) for a in answers[-5:]] == [0, 1, 1, 1, 1]


@pytest.mark.parametrize("size", [1e-300, 1e-160, 1e-49, 1e99])
def test_values_of_any_size_are_answered(size: float) -> None:
    ahead = [a["forecasts"][0] for a in run(lines_of(size * NOISE[:60]), warmup=20)[19:]]
    assert all(abs(row["mean"]) < 3.0 * max(size, 1e-49) for row in ahead)
    assert all(0.0 < row["high"] - row["low"] < 20.0 * max(size, 1e-49) for row in ahead)


@pytest.mark.parametrize(
    "lines",
    [
        lines_of(np.where(np.arange(80) < 40, 1e-90, 1e90) * NOISE[:80]),
        lines_of(NOISE[:80], [*range(50), *[1e308] * 30]),
    ],
)
def test_answers_are_numbers_whatever_comes(lines: list[str]) -> None:
    assert "NaN" not in (text := json.dumps(run(lines, warmup=20)))
    assert "Infinity" not in text


def test_a_step_beside_that_of_the_stamps_forecasts_as_that_horizon_does() -> None:
    y = 5.0 * np.sin(2 * math.pi * np.arange(120) / 12) + 0.3 * NOISE[:120]
    rows = run(lines_of(y), warmup=20, horizon=8)
    far, near = run(lines_of(y), warmup=20, step=8.0), run(lines_of(y), warmup=20, step=0.25)
    for a, b in zip(rows[19:], far[19:], strict=True):
        row = a["forecasts"][-1]
        assert b["forecasts"][0] == pytest.approx({**row, "horizon": 1})
    assert [a["forecasts"][0]["t"] for a in near[19:]] == [k + 0.25 for k in range(19, 120)]


def test_late_lines_are_told_and_the_clock_may_go_back() -> None:
    lines = lines_of(5.0 + NOISE[:100])
    plain, late = run([*lines, "100,5.0\n"], warmup=20), run([*lines, "97.5,9.0\n"], warmup=20)
    assert late[-1]["alerts"] == ["late"]
    assert late[-1]["forecasts"] == plain[99]["forecasts"]
    back = run([*lines, *(f"{40 + k},5.0\n" for k in range(8))], warmup=20)
    assert alerts(back, "late") == [101, 102, 103, 104]
    assert alerts(back, "clock") == [105]
    assert [a["forecasts"][0]["t"] for a in back[-4:]] == [45, 46, 47, 48]


def test_lines_that_come_again_after_a_restart_turn_no_clock_back(tmp_path: Path) -> None:
    y = NOISE[:200] + 3.0 * np.sin(np.arange(200) / 24 * 2 * math.pi)
    lines = lines_of(y)
    lines[185] = "185,\n"
    whole = run(lines, warmup=20)
    run(lines[:190], tmp_path / "state", warmup=20)
    answers = run(lines[175:], tmp_path / "state", warmup=20)  # `tail -f` has old lines first
    assert alerts(answers, "late") == [*range(191, 205)]
    assert alerts(answers, "clock") == []
    means = [[answer["forecasts"][0]["mean"] for answer in part[-10:]] for part in (answers, whole)]
    assert means[0] == means[1]


def test_a_line_is_learned_or_refused_and_a_refused_one_changes_nothing() -> None:
    stream = LiveStream(warmup=3, horizon=3)
    for line in ["9999-12-29,1\n", "9999-12-30,2\n", "9999-12-30T12:00,1.5\n"]:
        stream.answer(line)
    before = json.loads(json.dumps(vars(stream.state)))
    answer = stream.answer("9999-12-31,3\n") or {}  # its forecast lies beyond what a date can say
    assert "refused" in answer
    assert vars(stream.state) == before | {"lines": 4, "answer": json.dumps(answer)}


QUIET = {
    "constant": (np.full(200, 7.0), 0.6),
    "rounded": (np.round(20.0 + np.cumsum(0.1 * NOISE[:200])), 1.5),
    "night": (np.maximum(0.0, np.sin(2 * math.pi * np.arange(384) / 24)) * 300, 80.0),
}


@pytest.mark.parametrize("kind", QUIET)
def test_quiet_stretches_are_answered_and_forecast_within_their_resolution(kind: str) -> None:
    y, most = QUIET[kind]
    answers = run(lines_of(y), warmup=20)
    ahead = [a["forecasts"][0] for a in answers[19:-1]]
    assert len(ahead) == len(y) - 20
    error = [abs(row["mean"] - v) for row, v in zip(ahead, y[20:], strict=True)][-100:]
    held = [row["low"] <= v <= row["high"] for row, v in zip(ahead, y[20:], strict=True)][-100:]
    assert fmean(held) > 0.9
    assert fmean(row["high"] - row["low"] for row in ahead[-100:]) < 2 * most
    assert fmean(error) <= max(0.15 * most, 1.05 * fmean(np.abs(np.diff(y[-101:]))))
    assert len(alerts(answers, "new level")) <= 1


def test_a_season_is_said_with_its_evidence_and_switched_off() -> None:
    y = 5.0 * np.sin(2 * math.pi * np.arange(200) / 24) + 0.5 * NOISE[:200]
    *_, season = [a["season"] for a in run(lines_of(y), warmup=60) if "season" in a]
    assert (season["periods"], season["nats"] > 5.0) == ([24.0], True)
    error = {}
    for seasons in ("auto", [24.0], None):
        answers = run(lines_of(y), warmup=20, horizon=12, seasons=seasons)[99:188]
        error[str(seasons)] = fmean(
            abs(a["forecasts"][11]["mean"] - y[k]) for k, a in enumerate(answers, 99 + 12)
        )
    assert error["auto"] < 0.8
    assert error["[24.0]"] < 0.8
    assert error["None"] > 2.0


def test_a_day_is_found_as_soon_as_two_have_nearly_passed() -> None:
    y = 5.0 * np.sin(2 * math.pi * np.arange(50) / 24) + 0.5 * NOISE[:50]
    hours = [f"2024-01-{1 + k // 24:02}T{k % 24:02}:00" for k in range(50)]
    for stamps, period in ((hours, "1d"), (None, 24.0)):
        *_, last = [a for a in run(lines_of(y, stamps), warmup=20) if "season" in a]
        assert last["line"] <= 48  # 1.9 · 24 = 45.6 steps
        assert last["season"]["periods"] == [period]


def test_a_year_is_found_in_daily_values() -> None:
    k = np.arange(760)
    y = 10.0 + 6.0 * np.sin(2 * math.pi * k / 365.25) + np.random.default_rng(0).normal(size=760)
    days = np.datetime64("2020-01-01") + k
    answers = run(lines_of(y, days), warmup=690, horizon=30)
    *_, last = [a["season"]["periods"] for a in answers if "season" in a]
    assert last == ["365.25d"]
    ahead = [a["forecasts"][29]["mean"] for a in answers[699:730]]
    assert np.abs(np.array(ahead) - y[729:760]).mean() < 1.2


def test_seasons_are_numbers_of_any_sequence(plain_calls) -> None:
    for seasons in ("24h", ["24"], 24.0, np.ones((1, 2)), [None]):
        with pytest.raises(ValueError, match='"auto", None or a list of numbers, got'):
            run([], seasons=seasons)
    assert LiveStream(seasons=np.array([24, 168])).periods == [24.0, 168.0]


def test_a_long_line_is_one_refused_line_and_horizons_have_a_bound() -> None:
    answers = run([*LINES[:5], '1.25,"' + "7," * 100_000 + '"\n', f"1.25,{'7' * 10_000}x\n"])
    assert all(0 < len(refused(answers)[line]) <= 400 for line in (6, 7))
    with pytest.raises(ValueError, match=r"horizon must be at most 10,000 steps, got 99,999,999"):
        LiveStream(horizon=99_999_999)
    rows = lines_of(NOISE[:14], [*range(4), *(4.0 + 1e-5 * k for k in range(10))])
    assert len(run(rows, ahead=5.0)[-1]["forecasts"]) == 10_000


def test_a_replay_has_all_lines_of_the_state(tmp_path: Path) -> None:
    run(LINES[:9], tmp_path / "state")
    with pytest.raises(ValueError, match=r"the state has 9 lines, got 5: pass others by a pipe"):
        run(LINES[:5], tmp_path / "state", replay=True)


@pytest.mark.parametrize("wave", [0.0, 5.0])
def test_what_was_before_an_outage_is_forecast_after_it(wave: float) -> None:
    k = np.arange(340)
    y = 20.0 + wave * np.sin(2 * math.pi * k / 24) + 0.5 * np.resize(NOISE, 340)
    y[200:240] = -18.0
    y[[200, 240, 241]] += np.array([24.0, -16.0, -6.0])
    answers = run(lines_of(y.round(2)), horizon=12)
    errors = [
        np.abs([f["mean"] - y[i + f["horizon"]] for f in answers[i]["forecasts"]]).mean()
        for i in (*range(120, 188), *range(262, 328))
    ]
    assert fmean(errors[68:]) < 1.6 * fmean(errors[:68])


@pytest.mark.parametrize(("text", "width"), [("5.00", 0.01), ("-0.125", 0.001), ("1e15", 1e3)])
def test_a_constant_is_forecast_to_the_digits_that_are_written(text: str, width: float) -> None:
    *_, last = run([f"{k},{text}\n" for k in range(60)], warmup=20)
    ahead = last["forecasts"][0]
    assert ahead["mean"] == pytest.approx(float(text), rel=1e-12, abs=1e-9)
    assert 0.5 * width < ahead["high"] - ahead["low"] < 1.5 * width


def test_a_trends_resolution_is_that_of_its_digits() -> None:
    stream = LiveStream()
    for k in range(60):
        stream.answer(f"{k},{1000 + 0.4 * k + round(0.1 * float(NOISE[k]), 3):.3f}")
    assert stream.state.resolution == pytest.approx(0.001, abs=1e-9)


def test_rounded_values_that_come_again_are_not_held() -> None:
    stream = LiveStream()
    y = np.where(np.arange(400) == 200, 65535.037, np.round(20.0 + NOISE))
    assert len([*stream.follow(lines_of(y))]) == 400
    assert (stream.regimes and stream.regimes.held.share < 0.1, stream.state.width) == (True, 1.0)


@pytest.mark.parametrize("seed", range(3))
def test_rounded_values_return_to_a_former_level_at_once(seed: int) -> None:
    y = 20.0 + np.random.default_rng(seed).normal(size=130) + 30.0 * (np.arange(130) // 12 == 9)
    answers = run(lines_of(np.round(y)))
    assert {121, 122} & {*alerts(answers, "new level")}
    assert abs(answers[121]["forecasts"][0]["mean"] - 20.0) < 3.0


def test_what_fails_in_the_model_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = LiveStream(warmup=3)
    for line in LINES[:5]:
        stream.answer(line)

    def fail(*_: Any) -> None:
        raise ValueError("operands could not be broadcast")

    monkeypatch.setattr("ohsvgp.integrations.live.stream.learn", fail)
    with pytest.raises(ValueError, match="broadcast"):
        stream.answer(LINES[5])


def test_predictions_are_those_of_the_forecasts_at_any_stamps() -> None:
    stream = LiveStream(horizon=3, warmup=28)
    assert stream.predict(["2024-01-01"]) == []
    days = [f"2024-{1 + k // 28:02}-{1 + k % 28:02}" for k in range(28)]
    lines = zip(days, NOISE.tolist(), strict=False)
    *_, last = [stream.answer(f"{day},{y!r}") or {} for day, y in lines]
    found = stream.predict([row["t"][:10] for row in last["forecasts"]])
    assert [mean for mean, _ in found] == [row["mean"] for row in last["forecasts"]]
    width = [row["high"] - row["low"] for row in last["forecasts"]]  # before any was judged
    assert [2 * 1.959963984540054 * sd for _, sd in found] == pytest.approx(width)
    with pytest.raises(ValueError, match="stamps must each be a date like those before"):
        stream.predict(["3"])


# Cut within the first lines, and behind them.
@pytest.mark.parametrize(("cut", "every"), [(5, 7), (18, 1), (33, 3)])
def test_a_saved_stream_goes_on_as_if_never_stopped(every: int, cut: int, tmp_path: Path) -> None:
    state, lines = tmp_path / "state", [*LINES[:31], "7.75,50.0\n", *LINES[32:], "10.0,0.5\n"]
    options = {"warmup": 10, "horizon": 9}  # models are judged up to 8 steps ahead
    whole, first = run(lines, **options), run(lines[:cut], state, **options)
    rest = run(lines[cut:40], state, every=every, **options)
    assert [*first, *rest] == whole[:-1]
    again = run(lines, state, replay=True, **options)
    assert again == whole[-2:]  # the last answer may not have been told


def follow_into(state: Path, out: Path) -> None:
    """Learn all lines and append each answer to a file."""
    with out.open("a", buffering=1) as file:
        for answer in LiveStream(state, warmup=8, horizon=4).follow(LINES, replay=True):
            print(answer, file=file)


def test_a_process_that_is_killed_at_any_moment_loses_nothing(
    tmp_path: Path, processes: BaseContext
) -> None:
    out, moments = tmp_path / "out", random.Random(3)
    out.touch()
    kills, child = -1, None
    while child is None or child.exitcode != 0:
        kills, told = kills + 1, out.read_text().count("\n")
        child = processes.Process(target=follow_into, args=(tmp_path / "state", out))
        child.start()
        lines = told + moments.randint(2, 12)  # the first one may be told again
        while child.is_alive() and out.read_text().count("\n") < lines:
            time.sleep(0.001)
        child.join(moments.uniform(0.0, 0.005))
        child.kill()
        child.join()
        assert child.exitcode in (0, -signal.SIGKILL)
    assert kills > 1
    whole = list(LiveStream(warmup=8, horizon=4).follow(LINES))
    # Told once or, where a crash may have come between, again; never another one.
    assert list(dict.fromkeys(out.read_text().splitlines())) == whole


def test_the_state_is_written_before_its_answer_is_told(tmp_path: Path) -> None:
    stream = LiveStream(tmp_path / "state", warmup=3)
    for number, answer in enumerate(stream.follow(LINES[:9]), 1):
        position = read_json(tmp_path / "state", FORMAT)["position"]
        assert (position["lines"], position["answer"]) == (number, answer)


@pytest.mark.parametrize(("work", "every"), [("learn", 100), ("write_atomic", 2), (None, 100)])
def test_a_stream_that_is_interrupted_saves_lines_with_their_answers(
    work: str | None, every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, answers, calls = tmp_path / "state", list[str](), list[Any]()
    stream = LiveStream(state, warmup=3)

    def interrupted(*given: Any) -> Any:
        done = before(*given)
        calls.append(given)
        if len(calls) == 7:
            raise KeyboardInterrupt
        return done

    def read() -> None:
        with closing(stream.follow(LINES, every=every)) as told:
            for text in told:
                answers.append(text)
                if len(answers) == 20:  # whoever reads them stops
                    raise KeyboardInterrupt

    before = getattr(live, work or "learn")
    monkeypatch.setattr(live, work or "learn", interrupted if work else before)
    with pytest.raises(KeyboardInterrupt):
        read()
    monkeypatch.undo()
    assert len(answers) in (9, 13, 20)
    later = LiveStream(state, warmup=3)
    assert later.state.lines == len(answers) + (work == "write_atomic")
    whole = [*LiveStream(warmup=3).follow(LINES)]
    assert list(dict.fromkeys([*answers, *later.follow(LINES, replay=True)])) == whole


def test_a_stream_does_not_write_over_what_another_has_written(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="cannot be written: No such file"):
        LiveStream(tmp_path / "none" / "state")
    assert not (tmp_path / "none").exists()
    file = tmp_path / "state"
    first = LiveStream(file, warmup=3)
    assert len([*first.follow(LINES[:10])]) == 10
    second = LiveStream(file, warmup=3)
    assert len([*second.follow(LINES[10:20])]) == 10
    with pytest.raises(InUseError, match=r"state cannot be written: another stream has written"):
        next(first.follow(LINES[10:]))
    with sole_use(file, "save"), pytest.raises(InUseError, match="another process works in"):
        second.save()
    assert LiveStream(file, warmup=3).state.lines == 20


def test_a_state_tells_its_settings_and_refuses_others(tmp_path: Path) -> None:
    assert saved_settings(tmp_path / "state") is None
    run(LINES[:5], tmp_path / "state")
    assert saved_settings(tmp_path / "state") == SETTINGS
    with pytest.raises(ValueError, match=r"another model \(warmup 3 instead of 4\)"):
        run([], tmp_path / "state", warmup=4)


def test_state_files_that_are_none_are_refused_by_their_name(tmp_path: Path) -> None:
    run(LINES[:5], tmp_path / "good")
    whole = (tmp_path / "good").read_bytes()
    nested = b"[" * 100_000
    header = b'{"__metadata__": {"schema": "probseq-online-live-7"}}'
    contents = {
        **{"empty": b"", "noise": bytes(range(256)) * 9, "text": b"something else"},
        **{"short": whole[:100], "cut": whole[:-50], "header": whole[: whole.index(b"}}") + 2]},
        "deep": len(nested).to_bytes(8, "little") + nested,
        "old": len(header).to_bytes(8, "little") + header,
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        assert content != whole, name
    (tmp_path / "folder").mkdir()
    for name in (*contents, "folder", "empty/state", "n" * 300):
        with pytest.raises((ValueError, OSError)) as refusal:
            run(LINES, tmp_path / name)
        assert str(refusal.value).startswith(f"{tmp_path / name} "), name
        assert ".tmp-" not in str(refusal.value)
        assert "\n" not in str(refusal.value)
    assert all((tmp_path / name).read_bytes() == content for name, content in contents.items())


def test_every_flipped_bit_of_a_state_is_refused_by_its_name(tmp_path: Path) -> None:
    run(LINES[:5], tmp_path / "state")
    for _ in flipped_bits(tmp_path / "state", 100):
        with pytest.raises(DamagedFileError, match=str(tmp_path / "state")):
            run([], tmp_path / "state")
    run([], tmp_path / "state")


def test_intervals_that_miss_grow_and_those_that_hold_shrink() -> None:
    # The noise grows all the time.
    inside, ahead, stream = [], {}, LiveStream(horizon=3)
    for k, value in enumerate((NOISE * np.exp(0.015 * np.arange(400))).tolist()):
        if k in ahead:
            inside.append(ahead[k][0] <= value <= ahead[k][1])
        for row in (stream.answer(f"{k},{value}") or {})["forecasts"]:
            if row["horizon"] == 3:
                ahead[round(row["t"])] = (row["low"], row["high"])
    assert 0.92 < fmean(inside[50:]) < 0.97
