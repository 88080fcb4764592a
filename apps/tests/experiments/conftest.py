import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from PIL import Image

from probseq_apps.cli import main
from probseq_apps.experiments import image_models, tokens


class _Silent:
    def __init__(self, *_, **__):
        pass

    def write(self, folder):
        return "reported"


@pytest.fixture(scope="module")
def no_report():
    """Reports have tests of their own, and their pictures take longer than small models."""
    with pytest.MonkeyPatch.context() as patch:
        for experiments in (image_models, tokens):
            patch.setattr(experiments, "generate_report", _Silent)
        yield


_DRAWN: set[str] = set()


@pytest.fixture(scope="module", autouse=True)
def each_picture_once():
    """Draw the first picture of a name, and blank ones after it: small models are quicker."""
    draw = Figure.savefig

    def save(figure, file, **options):
        if (name := Path(file).name) in _DRAWN:
            width, height = figure.get_size_inches() * figure.dpi
            Image.new("1", (round(width), round(height))).save(file)
        else:
            _DRAWN.add(name)
            draw(figure, file, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", save)
        yield


@pytest.fixture(scope="session")
def killed():
    """Starts a command, kills it when a file is there, and resumes it."""

    def run(arguments, folder, until):
        command = [sys.executable, "-m", "probseq_apps", *arguments, "--run-dir", str(folder)]
        # A file and not a pipe: nobody reads it, and a full pipe stops the writer.
        with folder.with_suffix(".log").open("w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        while not list(folder.glob(until)):
            assert process.poll() is None
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not (folder / "report.json").exists()
        assert main([*arguments, "--run-dir", str(folder), "--resume"]) == 0

    return run
