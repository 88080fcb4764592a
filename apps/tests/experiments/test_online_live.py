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
from probseq_apps.cli import main, parse
from probseq_apps.experiments.online_live import live
from probseq_apps.settings.online import LiveModel, LiveSettings

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


def command(state, *more):
    model = ["--num-inducing", "8", "--lengthscale", "0.7", "--noise", "0.01"]
    arguments = ["online", "live", *model, "--state", str(state), *more]
    return [sys.executable, "-m", "probseq_apps.cli", *arguments]


@pytest.mark.slow
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


def test_the_model_of_a_state_need_not_be_named_again_and_must_not_change(tmp_path):
    state = tmp_path / "state"
    run(LINES[:5], state=state)
    assert parse(["online", "live", "--state", str(state)]).settings.model == MODEL
    with pytest.raises(ValueError, match=r"noise 0\.01 instead of 0\.5"):
        run([], model=LiveModel(num_inducing=8, lengthscale=0.7, noise=0.5), state=state)


def test_state_files_that_are_none_are_refused_by_their_name(tmp_path, capsys, monkeypatch):
    state, file = tmp_path / "good", tmp_path / "file"
    run(LINES[:5], state=state)
    whole = state.read_bytes()
    contents = {
        **{"empty": b"", "text": b"something else", "cut": whole[:-50]},
        "old": whole.replace(b"probseq-online-live-2", b"probseq-online-live-1"),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(LINES)))
    file.write_text("x")
    for name in (*contents, "folder", "nowhere/state", "file/state", "n" * 300):
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
        parse(["online", "live", *arguments])
    assert stop.value.code == 2
    assert named in capsys.readouterr().err


def test_a_warning_is_one_plain_line():
    settings = LiveSettings(model=LiveModel(num_inducing=2, lengthscale=0.1, noise=0.01))
    complaints = []
    live(settings, LINES, lambda _: None, complaints.append)
    assert [line[:36] for line in complaints] == ["warning: 2 inducing variables cannot"]
    assert "\n" not in complaints[0]
