"""A stream that is learned line by line and kept in a file."""

import json
import math
import random
import signal
import time
from multiprocessing.context import BaseContext
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from damage import flipped_bits
from ohsvgp import Fading, Gaussian, LegS, OnlineGP, Poisson, Refit
from ohsvgp.beyond.monitor import Monitor, standard_errors
from ohsvgp.integrations.live import LiveStream
from ohsvgp.integrations.live.state import FORMAT, saved_settings
from probseq.files import DamagedFileError, read_json
from probseq.kernels import RBF, Walk

LINES = [f"{0.25 * k},{math.sin(0.25 * k)}\n" for k in range(40)]
SETTINGS = {"noise": 0.01, "num_inducing": 8}


def made(lengthscale: float = 0.7, noise: float = 0.01, **options: Any) -> OnlineGP:
    scale, level = torch.tensor([lengthscale, noise], dtype=torch.float64)
    kernel, basis = RBF(1, lengthscale=scale), LegS(options.pop("num_inducing", 8))
    return OnlineGP(kernel, Gaussian(level), basis, rebase="grow:1.05", **options)


def run(
    lines: list[str],
    file: Path | None = None,
    model: OnlineGP | None = None,
    *,
    settings: dict[str, float] = SETTINGS,
    every: int = 1,
    replay: bool = False,
    **options: Any,
) -> list[dict[str, Any]]:
    """What answers each line."""
    stream = LiveStream(model or made(), file, settings=settings, **{"warmup": 1} | options)
    return [json.loads(text) for text in stream.follow(lines, every=every, replay=replay)]


def refused(answers: list[dict[str, Any]]) -> dict[int, str]:
    return {answer["line"]: answer["refused"] for answer in answers if "refused" in answer}


def learned(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Answers without the numbers of their lines."""
    found = [answer for answer in answers if "refused" not in answer]
    return [{name: answer[name] for name in answer if name != "line"} for answer in found]


def test_answers_are_those_of_a_model_that_learns_point_by_point() -> None:
    answers = run(LINES[:12], horizon=2)
    model, monitor = made(), Monitor()
    for k, answer in enumerate(answers):
        t, y = [0.25 * k], [math.sin(0.25 * k)]
        assert (answer["line"], answer["t"], answer["y"]) == (k + 1, t[0], y[0])
        if k == 0:  # nothing was forecast, and the distance of the next stamp is not known
            assert (answer["error"], answer["forecasts"]) == (None, [])
        else:
            assert answer["error"] == pytest.approx(float(standard_errors(model, t, y)))
            assert ("drift" in answer["alerts"]) == monitor.observe(model, t, y)
        model.update(t, y)
        if k:
            found = model.predict([t[0] + 0.25, t[0] + 0.5], include_noise=True)
            reach = 1.959963984540054 * found.variance.sqrt()
            parts = (found.mean, found.mean - reach, found.mean + reach)
            wanted = torch.stack(parts, -1).tolist()
            told = [[row[name] for name in ("mean", "low", "high")] for row in answer["forecasts"]]
            np.testing.assert_allclose(told, wanted, rtol=1e-9, atol=1e-12)
            places = [(row["horizon"], row["t"]) for row in answer["forecasts"]]
            assert places == [(1, t[0] + 0.25), (2, t[0] + 0.5)]


def test_the_first_lines_give_hyperparameters_mean_and_deviation() -> None:
    # In units that the model doesn't know: a step of 900, values about 5,000.
    t = [900.0 * k for k in range(60)]
    y = [5000.0 + 100.0 * math.sin(0.3 * k) for k in range(60)]
    lines = [f"{a},{b}\n" for a, b in zip(t, y, strict=True)]
    fitted, still = (made(1.0, 0.1, num_inducing=30, refit=refit) for refit in (Refit(), None))
    answers = run(lines, model=fitted, warmup=25)
    assert [bool(answer["forecasts"]) for answer in answers] == [False] * 24 + [True] * 36
    assert 900 * 3 < float(fitted.kernel.lengthscale.detach()) < 900 * 30
    ahead = [answer["forecasts"][0]["mean"] for answer in answers[24:-1]]
    assert np.abs(np.array(ahead) - y[25:]).max() < 2.0
    # The same batch, standardised by hand, in a model that keeps its hyperparameters.
    run(lines[:25], model=still, warmup=25)
    centre, scale = fmean(y[:25]), pstdev(y[:25])
    plain = made(1.0, 0.1, num_inducing=30)
    plain.update(t[:25], [(value - centre) / scale for value in y[:25]])
    np.testing.assert_array_equal(plain.predict(t).mean, still.predict(t).mean)


def test_first_lines_may_come_out_of_order_and_equal_ones_are_not_learned() -> None:
    one, other = run([*LINES[:1], *LINES[3:0:-1], LINES[4]], warmup=4), run(LINES[:5], warmup=4)
    assert one[-1] == other[-1]
    flat = run(["0,5\n", "1,5\n", "2,5\n", "3,5\n", "4,6\n", "5,6\n"], warmup=3)
    assert [bool(answer["forecasts"]) for answer in flat] == [False] * 4 + [True] * 2
    # A stamp before those that were learned in the end.
    assert (
        "lie before 2.0"
        in run(["0,5\n", "1,5\n", "2,5\n", "3,6\n", "1.5,6\n"], warmup=2)[-1]["refused"]
    )


def test_counts_are_learned_as_they_are_and_other_values_refused() -> None:
    model = OnlineGP(RBF(1, lengthscale=3.0), Poisson(), LegS(8), rebase="grow:1.05")
    answers = run([f"{k},{k % 3}\n" for k in range(8)] + ["8,1.5\n"], model=model, warmup=4)
    assert all(row["low"].is_integer() for row in answers[6]["forecasts"])
    assert refused(answers) == {9: "y must hold counts 0, 1, 2, … for Poisson, got 1.5"}
    first = OnlineGP(RBF(1), Poisson(), LegS(8), rebase="grow:1.05")
    assert list(refused(run(["0,1\n", "1,-1\n"], model=first, warmup=4))) == [2]


def test_a_missing_value_is_told_and_forecast_over() -> None:
    answers = run([*LINES[:8], "2.0,\n", "2.25,NaN\n", *LINES[10:12]])
    assert [answer["alerts"][:1] == ["missing"] for answer in answers] == [False] * 8 + [
        True,
        True,
        False,
        False,
    ]
    assert [(a["y"], a["error"]) for a in answers[8:10]] == [(None, None)] * 2
    assert [answer["forecasts"][0]["t"] for answer in answers[7:10]] == [2.0, 2.25, 2.5]
    widths = [row["high"] - row["low"] for a in answers[7:10] for row in a["forecasts"]]
    assert widths[0] < widths[1] < widths[2]


def test_a_jump_is_drift_a_long_step_extrapolation_and_too_few_variables_lose_information() -> None:
    calm = [f"{0.25 * k},{math.sin(0.25 * k)}\n" for k in range(30)]
    jumped = [f"{0.25 * k},{math.sin(0.25 * k) + 4.0}\n" for k in range(30, 34)]
    answers = run([*calm, *jumped], model=made(num_inducing=30))
    drifts = [answer["line"] for answer in answers if "drift" in answer["alerts"]]
    assert drifts[0] == 31
    assert not any(answer["alerts"] for answer in answers[2:30])
    far = run(calm[:10], model=made(num_inducing=30), step=5.0)
    assert all(answer["alerts"] == ["extrapolation"] for answer in far)
    rough = made(0.1, num_inducing=2)
    alerts = [alert for answer in run(LINES, model=rough) for alert in answer["alerts"]]
    assert alerts.count("lost information") == 1  # it is told once, where it begins


def test_lines_that_say_nothing_are_passed_over_and_wrong_ones_refused() -> None:
    wrong = ["1.0\n", "one,2\n", "0.6,x\n", "-1,2\n", "2024-01-01,2\n", "1e999,2\n", "1,inf\n"]
    quiet = ["\n", "# a remark\n"]
    answers = run([*LINES[:3], *wrong, *quiet, *LINES[3:8]])
    assert learned(answers) == learned(run(LINES[:8]))
    reasons = refused(answers)
    assert list(reasons) == list(range(4, 11))
    assert "t,y" in reasons[4]
    assert "'one'" in reasons[5]
    assert "lie before 0.0" in reasons[7]
    assert "finite" in reasons[10]
    assert [answer["line"] for answer in answers[-5:]] == [13, 14, 15, 16, 17]


@pytest.mark.slow
def test_a_wild_stamp_is_refused_and_a_long_silence_is_not() -> None:
    wild = ["1e300,1\n", "3e6,1\n"]
    answers = run([*LINES[:9], *wild, *LINES[9:]])
    assert learned(answers) == learned(run(LINES))
    assert list(refused(answers)) == [10, 11]
    assert "'1e300'" in refused(answers)[10]
    assert refused(run([*LINES[:9], "1e6,1\n"])) == {}
    # Also where it is the second, or the first after t0.
    second = run([LINES[0], wild[0], *LINES[1:]])
    assert (learned(second), list(refused(second))) == (learned(run(LINES)), [2])
    assert len(refused(run(["-1e308,1\n", "1e308,1\n"]))) == 1
    assert len(refused(run([wild[0]], model=made(t0=0.0)))) == 1
    # A tiny first gap must not make the rest of the stream look wild.
    assert refused(run(["0,1\n", "1e-9,1\n", "5,1\n"])) == {}
    days = ["2024-01-01,1\n", "2024-01-02,1\n", "9999-01-01,1\n", "2024-01-03,1\n"]
    assert list(refused(run(days))) == [3]


def test_a_gap_does_not_change_the_step() -> None:
    answers = run(["0,1\n", "1,1\n", "2,1\n", "3,1\n", "40,1\n", "41,1\n"])
    assert [answer["forecasts"][0]["t"] for answer in answers[1:]] == [2.0, 3.0, 4.0, 41.0, 42.0]


@pytest.mark.parametrize(
    ("t0", "lines", "late"),
    [
        (-1.0, ["1,1\n", "2,1\n", "-0.5,1\n", "-1,1\n"], "-1.5,1\n"),
        (
            "2024-01-01T00:00:00.1",
            [
                f"2024-01-{day}\n"
                for day in ("05T00:00,1", "06T00:00,1", "02T00:00,1", "01T00:00:00.1,1")
            ],
            "2023-12-31T00:00,1\n",
        ),
    ],
)
def test_stamps_may_lie_before_the_first_where_t0_allows_them(
    t0: Any, lines: list[str], late: str, tmp_path: Path
) -> None:
    whole = run([*lines, late], model=made(3.0, t0=t0))
    assert list(refused(whole)) == [5]
    first = run(lines[:2], tmp_path / "state", made(3.0, t0=t0))
    rest = run([*lines[2:], late], tmp_path / "state", made(3.0, t0=t0))
    assert [*first, *rest] == whole
    assert len(refused(run(lines, model=made(3.0)))) == 2


# Cut within the first lines, and behind them.
@pytest.mark.slow
@pytest.mark.parametrize(("cut", "every"), [(5, 7), (18, 1)])
def test_a_saved_stream_goes_on_as_if_it_had_never_stopped(
    every: int, cut: int, tmp_path: Path
) -> None:
    state, options = tmp_path / "state", {"warmup": 10}

    def model() -> OnlineGP:
        return made(refit=Refit("every:8", steps=5))

    whole = run([*LINES, "10.0,0.5\n"], model=model(), **options)
    first = run(LINES[:cut], state, model(), **options)
    rest = run(LINES[cut:], state, model(), every=every, **options)
    assert [*first, *rest] == whole[:-1]
    again = run([*LINES, "10.0,0.5\n"], state, model(), replay=True, **options)
    assert again == whole[-2:]  # the last answer may not have been told


def test_a_stream_that_is_stopped_after_each_line_answers_to_the_last_bit(tmp_path: Path) -> None:
    lines = [f"{0.3 * k + 0.01 * math.sin(7.0 * k)},{math.sin(0.6 * k)}\n" for k in range(40)]
    state, options = tmp_path / "state", {"num_inducing": 20, "refit": Refit("every:9", steps=3)}
    parts = [run([line], state, made(**options), warmup=12)[0] for line in lines]
    assert parts == run(lines, model=made(**options), warmup=12)


def follow_into(state: Path, out: Path) -> None:
    """Learn all lines and append each answer to a file."""
    with out.open("a", buffering=1) as file:
        for answer in LiveStream(made(), state, warmup=8).follow(LINES, replay=True):
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
        child.join(moments.uniform(0.0, 0.02))
        child.kill()
        child.join()
        assert child.exitcode in (0, -signal.SIGKILL)
    assert kills > 2
    whole = list(LiveStream(made(), warmup=8).follow(LINES))
    # Told once or, where a crash may have come between, again; never another one.
    assert list(dict.fromkeys(out.read_text().splitlines())) == whole


def test_the_state_is_written_before_its_answer_is_told(tmp_path: Path) -> None:
    stream = LiveStream(made(), tmp_path / "state", warmup=3)
    for number, answer in enumerate(stream.follow(LINES[:9]), 1):
        position = read_json(tmp_path / "state", FORMAT)["position"]
        assert (position["lines"], position["answer"]) == (number, answer)
    assert set(load_file(tmp_path / "state")) == set(stream.model.state_dict())


def test_a_state_tells_its_settings_and_refuses_others(tmp_path: Path) -> None:
    assert saved_settings(tmp_path / "state") is None
    run(LINES[:5], tmp_path / "state")
    assert saved_settings(tmp_path / "state") == SETTINGS
    with pytest.raises(ValueError, match=r"another model \(noise 0\.01 instead of 0\.5\)"):
        run([], tmp_path / "state", settings=SETTINGS | {"noise": 0.5})


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
    for name in (*contents, "folder", "nowhere/state", "empty/state", "n" * 300):
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


def test_a_late_line_is_learned_and_doesnt_turn_time_back() -> None:
    answers = run([*LINES[:10], "1.1,-3.0\n"])
    assert refused(answers) == {}
    late = [answer["forecasts"][0] for answer in answers[-2:]]
    assert [row["t"] for row in late] == [2.5, 2.5]
    assert abs(late[1]["mean"] - late[0]["mean"]) > 1e-3


REGIMES = {
    "on": lambda k, e, s: 10 * s + e if k >= 30 else 0.01 * e,
    "off": lambda k, e, s: 10 * s + e if k < 30 else 0.01 * e,
    "on after equal values": lambda k, e, s: 10 * s + e if k >= 30 else 0.3 + 1e-17 * (k % 2),
    "level": lambda k, e, s: e + 4 * s * (k >= 30),
    "variance": lambda k, e, s: e * (1 + 0.02 * s * max(k - 30, 0)),
    "ramp": lambda k, e, s: e + 0.1 * s * max(k - 30, 0),
}
SIZES = (1.0, 2.0, 5.0, 10.0)


def covered(name: str, size: float, model: OnlineGP, lines: int) -> tuple[float, list[float]]:
    """Share of intervals that held from 30 lines after a change on, and their widths."""
    noise = np.random.default_rng(int(size)).normal(size=lines)
    stream, ahead, inside, widths = LiveStream(model, warmup=20), {}, [], []
    for k, e in enumerate(noise.tolist()):
        y = REGIMES[name](k, e, size)
        if k >= 60:
            inside.append(ahead["low"] <= y <= ahead["high"])
            widths.append(ahead["high"] - ahead["low"])
        ahead = ((stream.answer(f"{k},{y!r}") or {})["forecasts"] or [{}])[0]
    return fmean(inside), widths


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", REGIMES)
def test_intervals_after_a_change_are_neither_too_narrow_nor_too_wide(
    name: str, size: float
) -> None:
    kernel = RBF(1) + Walk()
    model = OnlineGP(kernel, Gaussian(0.1), Fading(50), refit=Refit("every:50"))
    inside, widths = covered(name, size, model, 260)
    assert 0.85 <= inside <= 0.99
    # Of 95 %, of noise of deviation one, or what it has become.
    ideal = {"off": 0.039, "variance": 3.92 * (1 + 0.02 * size * 130)}.get(name, 3.92)
    assert 0.7 * ideal < np.median(widths) < 2.5 * ideal


@pytest.mark.slow
def test_intervals_that_miss_grow_and_those_that_hold_shrink_to_the_models() -> None:
    # The noise of the model is a ninth of that of the stream: 95 % hold a half.
    noise = np.random.default_rng(0).normal(size=140)
    shares = []
    for widen in (True, False):
        model = OnlineGP(RBF(1, lengthscale=100.0), Gaussian(1 / 9), LegS(5), rebase="grow:1.05")
        stream, inside, ahead = LiveStream(model, warmup=1, horizon=3, widen=widen), [], {}
        for k, y in enumerate(noise.tolist()):
            if k in ahead:
                inside.append(ahead[k][0] <= y <= ahead[k][1])
            for row in (stream.answer(f"{k},{y}") or {})["forecasts"]:
                if row["horizon"] == 3:
                    ahead[round(row["t"])] = (row["low"], row["high"])
        shares.append(fmean(inside[50:]))
    widened, plain = shares
    assert plain < 0.6
    assert 0.88 < widened < 0.99
