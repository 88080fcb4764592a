import io
import math
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from ohsvgp import Gaussian, LegS, OnlineGP
from probseq.kernels import RBF
from probseq_apps.cli import main
from probseq_apps.cli_online import parse_online
from probseq_apps.experiments.online_live import live
from probseq_apps.experiments.online_live_settings import (
    LiveModel,
    LiveSettings,
    read_facts,
)

MODEL = LiveModel(num_inducing=8, lengthscale=0.7, noise=0.01)
LINES = [f"{0.25 * k},{math.sin(0.25 * k)}\n" for k in range(40)]

# Few inducing variables for streams of this length, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:.*inducing variables cannot hold the stream")


def run(lines, **settings):
    """Forecasts and complaints, as lists of lines."""
    forecasts, complaints = [], []
    live(LiveSettings(**({"model": MODEL} | settings)), lines, forecasts.append, complaints.append)
    return forecasts, complaints


def test_forecasts_are_those_of_a_model_that_learns_point_by_point():
    forecasts, complaints = run(LINES[:12], horizon=2)
    scale, noise = torch.tensor([0.7, 0.01], dtype=torch.float64)
    model = OnlineGP(RBF(1, lengthscale=scale), Gaussian(noise), LegS(8), rebase="grow:1.05")
    expected = []
    for k in range(12):
        model.update([0.25 * k], [math.sin(0.25 * k)])
        if k:  # the first line doesn't tell the distance of the next stamp
            found = model.predict([0.25 * (k + 1), 0.25 * (k + 2)], include_noise=True)
            expected += zip(found.mean.tolist(), found.variance.sqrt().tolist(), strict=True)
    told = [tuple(map(float, line.split(","))) for line in forecasts]
    assert [row[0] for row in told[-2:]] == [3.0, 3.25]
    assert np.array([row[1:] for row in told]) == pytest.approx(np.array(expected))
    assert complaints == []


def test_dates_are_forecast_as_dates_and_the_offset_is_given_back():
    model = LiveModel(num_inducing=5, lengthscale=3.0, noise=0.1, offset=100.0, time_unit="h")
    lines = ["2024-02-28T22:00,101\n", "2024-02-28T23:00,101\n"]
    forecasts, _ = run(lines, model=model, step=2.0)
    assert [line.split(",")[0] for line in forecasts] == [
        "2024-02-29T00:00:00",
        "2024-02-29T01:00:00",
    ]
    assert 100.2 < float(forecasts[-1].split(",")[1]) < 101.0


def test_lines_that_say_nothing_are_passed_over_and_wrong_ones_named_and_skipped():
    wrong = ["1.0\n", "one,2\n", "0.6,\n", "-1,2\n", "2024-01-01,2\n", "1e999,2\n"]
    quiet = ["\n", "# a remark\n"]
    forecasts, complaints = run([*LINES[:3], *wrong, *quiet, *LINES[3:8]])
    assert forecasts == run(LINES[:8])[0]
    assert [line.split(":")[0] for line in complaints] == [
        f"line {number} skipped" for number in range(4, 10)
    ]
    assert "t,y" in complaints[0]
    assert "'one'" in complaints[1]
    assert "lie before 0.0" in complaints[3]
    assert "--t0" in complaints[3]


def test_a_wild_stamp_is_named_and_skipped_and_a_long_silence_is_not():
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
    assert len(run([wild[0]], model=LiveModel(num_inducing=8, t0="0"))[1]) == 1
    # A tiny first gap must not make the rest of the stream look wild.
    assert run(["0,1\n", "1e-9,1\n", "5,1\n"])[1] == []
    days = ["2024-01-01,1\n", "2024-01-02,1\n", "9999-01-01,1\n", "2024-01-03,1\n"]
    assert [line.split(":")[0] for line in run(days)[1]] == ["line 3 skipped"]


def test_a_gap_does_not_change_the_step():
    forecasts, _ = run(["0,1\n", "1,1\n", "2,1\n", "3,1\n", "40,1\n", "41,1\n"])
    assert [float(line.split(",")[0]) for line in forecasts] == [2.0, 3.0, 4.0, 41.0, 42.0]


@pytest.mark.parametrize(
    ("t0", "lines", "late"),
    [
        ("-1", ["1,1\n", "2,1\n", "-0.5,1\n"], "-1.5,1\n"),
        (
            "2024-01-01",
            ["2024-01-05,1\n", "2024-01-06,1\n", "2024-01-02,1\n"],
            "2023-12-31,1\n",
        ),
    ],
)
def test_stamps_may_lie_before_the_first_where_t0_allows_them(t0, lines, late, tmp_path):
    model = LiveModel(num_inducing=8, lengthscale=3.0, t0=t0)
    whole, complaints = run([*lines, late], model=model)
    assert len(whole) == 2
    assert [line.split(":")[0] for line in complaints] == ["line 4 skipped"]
    first, _ = run(lines[:2], model=model, state=tmp_path / "state")
    rest, _ = run(lines[2:], model=model, state=tmp_path / "state")
    assert [*first, *rest] == whole
    assert run(lines, model=LiveModel(num_inducing=8, lengthscale=3.0))[1] != []


def test_numbers_are_no_stamps_where_t0_is_a_date():
    _, complaints = run(["1,1\n"], model=LiveModel(num_inducing=8, t0="2024-01-01"))
    assert "stamps must be dates" in complaints[0]


@pytest.mark.parametrize("every", [1, 7])
def test_a_saved_stream_goes_on_as_if_it_had_never_stopped(every, tmp_path):
    state = tmp_path / "state"
    whole, _ = run(LINES)
    first, _ = run(LINES[:18], state=state)
    rest, _ = run(LINES[18:], state=state, every=every)
    assert [*first, *rest] == whole
    again, _ = run([*LINES, "10.0,0.5\n"], state=state, replay=True)
    assert again == run([*LINES, "10.0,0.5\n"])[0][-1:]


def command(state, *more):
    model = ["--num-inducing", "8", "--lengthscale", "0.7", "--noise", "0.01"]
    arguments = ["online", "live", *model, "--state", str(state), *more]
    return [sys.executable, "-m", "probseq_apps.cli", *arguments]


def test_a_killed_process_has_lost_nothing(tmp_path):
    # Line by line: what is forecast by a model that has just learned must not differ from what is
    # forecast by one that has just been loaded.
    state, whole = tmp_path / "state", tmp_path / "whole"
    process = subprocess.Popen(
        command(state), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    told = []
    for number, line in enumerate(LINES[:15]):
        process.stdin.write(line)
        process.stdin.flush()
        if number:
            told.append(process.stdout.readline())  # while its input is still open
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    rest = subprocess.run(
        command(state), input="".join(LINES[15:]), capture_output=True, text=True, check=True
    )
    expected, _ = run(LINES, state=whole)
    assert "".join(told).splitlines() + rest.stdout.splitlines() == expected
    found, wanted = load_file(state), load_file(whole)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert read_facts(state) == read_facts(whole)


def test_a_stream_that_is_stopped_after_each_line_forecasts_to_the_last_bit(tmp_path):
    lines = [f"{0.3 * k + 0.01 * math.sin(7.0 * k)},{math.sin(0.6 * k)}\n" for k in range(40)]
    state, model = tmp_path / "state", LiveModel(num_inducing=20, lengthscale=0.7, noise=0.01)
    parts = [run([line], model=model, state=state)[0] for line in lines]
    assert [text for part in parts for text in part] == run(lines, model=model)[0]


def test_the_model_of_a_state_need_not_be_named_again_and_must_not_change(tmp_path):
    state = tmp_path / "state"
    run(LINES[:5], state=state)
    assert parse_online(["live", "--state", str(state)]).settings.model == MODEL
    with pytest.raises(ValueError, match=r"noise 0\.01 instead of 0\.5"):
        run([], model=LiveModel(num_inducing=8, lengthscale=0.7, noise=0.5), state=state)


def test_state_files_that_are_none_are_refused_by_their_name(tmp_path, capsys, monkeypatch):
    state, file = tmp_path / "good", tmp_path / "file"
    run(LINES[:5], state=state)
    whole = state.read_bytes()
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
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(LINES)))
    file.write_text("x")
    for name in (*contents, "folder", "nowhere/state", "file/state", "n" * 253, "n" * 300):
        assert main(["online", "live", "--state", name]) == 1, name
        told = capsys.readouterr()
        assert told.err.startswith(f"probseq: error: {name} "), told.err
        assert told.err.count("\n") == 1
        assert ".tmp-" not in told.err
        assert told.out == ""
    assert all((tmp_path / name).read_bytes() == content for name, content in contents.items())


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--horizon", "0"], "horizon"),
        (["--noise", "-1"], "noise"),
        (["--replay"], "state"),
        (["--likelihood", "poisson", "--offset", "3"], "offset"),
        (["--offset", "nan"], "offset"),
        (["--t0", "yesterday"], "t0"),
    ],
)
def test_impossible_settings_are_named(arguments, named, capsys):
    with pytest.raises(SystemExit) as stop:
        parse_online(["live", *arguments])
    assert stop.value.code == 2
    assert named in capsys.readouterr().err


def test_a_late_line_is_learned_and_doesnt_turn_time_back():
    late = "1.1,-3.0\n"
    forecasts, complaints = run([*LINES[:10], late])
    assert complaints == []
    stamps = [line.split(",")[0] for line in forecasts[-2:]]
    assert stamps == ["2.5", "2.5"]
    means = [float(line.split(",")[1]) for line in forecasts[-2:]]
    assert abs(means[1] - means[0]) > 1e-3
    assert torch.get_num_threads() == 1
