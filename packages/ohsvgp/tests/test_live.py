"""A stream that is learned line by line and kept in a file."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from ohsvgp import Gaussian, LegS, OnlineGP, RandomSubset
from ohsvgp.live import LiveStream
from ohsvgp.live_state import read_facts, saved_settings
from probseq.kernels import RBF

LINES = [f"{0.25 * k},{math.sin(0.25 * k)}\n" for k in range(40)]
SETTINGS = {"noise": 0.01, "num_inducing": 8}

# Few inducing variables for streams of this length, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:.*inducing variables cannot hold the stream")


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
) -> tuple[list[str], list[str]]:
    """Forecasts and complaints."""
    complaints: list[str] = []
    stream = LiveStream(model or made(), file, settings=settings, **options)
    told = stream.follow(lines, complain=complaints.append, every=every, replay=replay)
    return list(told), complaints


def test_forecasts_are_those_of_a_model_that_learns_point_by_point() -> None:
    forecasts, complaints = run(LINES[:12], horizon=2)
    model = made()
    expected: list[tuple[float, float]] = []
    for k in range(12):
        model.update([0.25 * k], [math.sin(0.25 * k)])
        if k:  # the first line doesn't tell the distance of the next stamp
            found = model.predict([0.25 * (k + 1), 0.25 * (k + 2)], include_noise=True)
            expected += zip(found.mean.tolist(), found.variance.sqrt().tolist(), strict=True)
    told = [tuple(map(float, line.split(","))) for line in forecasts]
    assert [row[0] for row in told[-2:]] == [3.0, 3.25]
    assert np.array([row[1:] for row in told]) == pytest.approx(np.array(expected))
    assert complaints == []


def test_dates_are_forecast_as_dates_and_the_offset_is_given_back() -> None:
    model = made(3.0, 0.1, time_unit="h")
    lines = ["2024-02-28T22:00,101\n", "2024-02-28T23:00,101\n"]
    forecasts, _ = run(lines, model=model, step=2.0, offset=100.0)
    assert [line.split(",")[0] for line in forecasts] == [
        "2024-02-29T00:00:00",
        "2024-02-29T01:00:00",
    ]
    assert 100.2 < float(forecasts[-1].split(",")[1]) < 101.0


def test_lines_that_say_nothing_are_passed_over_and_wrong_ones_named_and_skipped() -> None:
    wrong = ["1.0\n", "one,2\n", "0.6,\n", "-1,2\n", "2024-01-01,2\n", "1e999,2\n", "1,inf\n"]
    quiet = ["\n", "# a remark\n"]
    forecasts, complaints = run([*LINES[:3], *wrong, *quiet, *LINES[3:8]])
    assert forecasts == run(LINES[:8])[0]
    assert [line.split(":")[0] for line in complaints] == [
        f"line {number} skipped" for number in range(4, 11)
    ]
    assert "t,y" in complaints[0]
    assert "'one'" in complaints[1]
    assert "lie before 0.0" in complaints[3]
    assert "finite" in complaints[6]


def test_a_wild_stamp_is_named_and_skipped_and_a_long_silence_is_not() -> None:
    wild = ["1e300,1\n", "3e6,1\n"]
    forecasts, complaints = run([*LINES[:9], *wild, *LINES[9:]])
    assert forecasts == run(LINES)[0]
    assert [line.split(":")[0] for line in complaints] == ["line 10 skipped", "line 11 skipped"]
    assert "'1e300'" in complaints[0]
    assert run([*LINES[:9], "1e6,1\n"])[1] == []
    # Also where it is the second, or the first after t0.
    second = run([LINES[0], wild[0], *LINES[1:]])
    assert (second[0], len(second[1])) == (run(LINES)[0], 1)
    assert len(run(["-1e308,1\n", "1e308,1\n"])[1]) == 1
    assert len(run([wild[0]], model=made(t0=0.0))[1]) == 1
    # A tiny first gap must not make the rest of the stream look wild.
    assert run(["0,1\n", "1e-9,1\n", "5,1\n"])[1] == []
    days = ["2024-01-01,1\n", "2024-01-02,1\n", "9999-01-01,1\n", "2024-01-03,1\n"]
    assert [line.split(":")[0] for line in run(days)[1]] == ["line 3 skipped"]


def test_a_gap_does_not_change_the_step() -> None:
    forecasts, _ = run(["0,1\n", "1,1\n", "2,1\n", "3,1\n", "40,1\n", "41,1\n"])
    assert [float(line.split(",")[0]) for line in forecasts] == [2.0, 3.0, 4.0, 41.0, 42.0]


@pytest.mark.parametrize(
    ("t0", "lines", "late"),
    [
        (-1.0, ["1,1\n", "2,1\n", "-0.5,1\n", "-1,1\n"], "-1.5,1\n"),
        (
            "2024-01-01T00:00:00.1",
            [f"2024-01-{day}\n" for day in ("05,1", "06,1", "02,1", "01T00:00:00.1,1")],
            "2023-12-31,1\n",
        ),
    ],
)
def test_stamps_may_lie_before_the_first_where_t0_allows_them(
    t0: Any, lines: list[str], late: str, tmp_path: Path
) -> None:
    whole, complaints = run([*lines, late], model=made(3.0, t0=t0))
    assert len(whole) == 3
    assert [line.split(":")[0] for line in complaints] == ["line 5 skipped"]
    first, _ = run(lines[:2], tmp_path / "state", made(3.0, t0=t0))
    rest, _ = run(lines[2:], tmp_path / "state", made(3.0, t0=t0))
    assert [*first, *rest] == whole
    assert len(run(lines, model=made(3.0))[1]) == 2


def test_numbers_are_no_stamps_where_t0_is_a_date() -> None:
    _, complaints = run(["1,1\n"], model=made(t0="2024-01-01"))
    assert "stamps must be dates" in complaints[0]


@pytest.mark.parametrize("every", [1, 7])
def test_a_saved_stream_goes_on_as_if_it_had_never_stopped(every: int, tmp_path: Path) -> None:
    state = tmp_path / "state"
    whole, _ = run(LINES)
    first, _ = run(LINES[:18], state)
    rest, _ = run(LINES[18:], state, every=every)
    assert [*first, *rest] == whole
    again, _ = run([*LINES, "10.0,0.5\n"], state, replay=True)
    assert again == run([*LINES, "10.0,0.5\n"])[0][-1:]


def test_a_stream_that_is_stopped_after_each_line_forecasts_to_the_last_bit(tmp_path: Path) -> None:
    lines = [f"{0.3 * k + 0.01 * math.sin(7.0 * k)},{math.sin(0.6 * k)}\n" for k in range(40)]
    state = tmp_path / "state"
    parts = [run([line], state, made(num_inducing=20))[0] for line in lines]
    assert [text for part in parts for text in part] == run(lines, model=made(num_inducing=20))[0]


def test_the_state_is_written_before_its_forecast_is_told(tmp_path: Path) -> None:
    stream = LiveStream(made(), tmp_path / "state")
    for number, _ in enumerate(stream.follow(LINES[:9]), 2):
        facts = read_facts(tmp_path / "state")
        assert facts is not None
        assert json.loads(facts["position"])["lines"] == number
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
    header = b'{"__metadata__": {"schema": "probseq-online-live-2"}}'
    contents = {
        **{"empty": b"", "noise": bytes(range(256)) * 9, "text": b"something else"},
        **{"short": whole[:100], "cut": whole[:-50], "header": whole[: whole.index(b"}}") + 2]},
        "deep": len(nested).to_bytes(8, "little") + nested,
        "bare": len(header).to_bytes(8, "little") + header,
        "old": whole.replace(b"probseq-online-live-2", b"probseq-online-live-1"),
        "position": whole.replace(b'lines\\"', b'lanes\\"'),
        "identity": whole.replace(b'"kernel": "RBF"', b'"kernel": "RBG"'),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder").mkdir()
    for name in (*contents, "folder", "nowhere/state", "empty/state", "n" * 253, "n" * 300):
        with pytest.raises((ValueError, OSError)) as refused:
            run(LINES, tmp_path / name)
        assert str(refused.value).startswith(f"{tmp_path / name} "), name
        assert ".tmp-" not in str(refused.value)
    assert all((tmp_path / name).read_bytes() == content for name, content in contents.items())


def test_a_late_line_is_learned_and_doesnt_turn_time_back() -> None:
    forecasts, complaints = run([*LINES[:10], "1.1,-3.0\n"])
    assert complaints == []
    assert [line.split(",")[0] for line in forecasts[-2:]] == ["2.5", "2.5"]
    means = [float(line.split(",")[1]) for line in forecasts[-2:]]
    assert abs(means[1] - means[0]) > 1e-3


def test_points_and_impossible_forecasts_are_refused() -> None:
    with pytest.raises(ValueError, match="points of dim 2"):
        LiveStream(OnlineGP(RBF(2), Gaussian(0.1), RandomSubset(3)))
    with pytest.raises(ValueError, match="horizon"):
        LiveStream(made(), horizon=0)
    with pytest.raises(ValueError, match="step"):
        LiveStream(made(), step=0.0)
