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
    state, whole = tmp_path / "state", tmp_path / "whole"
    process = subprocess.Popen(
        command(state), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    process.stdin.writelines(LINES[:15])
    process.stdin.flush()
    told = [process.stdout.readline() for _ in range(14)]  # while its input is still open
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


def test_the_model_of_a_state_need_not_be_named_again_and_must_not_change(tmp_path, capsys):
    state = tmp_path / "state"
    run(LINES[:5], state=state)
    assert parse_online(["live", "--state", str(state)]).settings.model == MODEL
    with pytest.raises(ValueError, match=r"noise 0\.01 instead of 0\.5"):
        run([], model=LiveModel(num_inducing=8, lengthscale=0.7, noise=0.5), state=state)
    state.write_bytes(b"something else")
    with pytest.raises(SystemExit):
        main(["online", "live", "--state", str(state)])
    assert "no state" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--horizon", "0"], "horizon"),
        (["--noise", "-1"], "noise"),
        (["--replay"], "state"),
        (["--likelihood", "poisson", "--offset", "3"], "offset"),
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
