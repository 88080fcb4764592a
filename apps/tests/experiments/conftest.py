import json
import os
import signal
import subprocess
import sys
import time

import pytest

from probseq_apps.cli import main


def _timeless(values):
    times = {"seconds", "train_seconds", "training_seconds", "tokenizer_seconds"}
    if isinstance(values, list):
        return [_timeless(value) for value in values]
    if not isinstance(values, dict):
        return values
    return {key: _timeless(value) for key, value in values.items() if key not in times}


@pytest.fixture(scope="session")
def report_of():
    """What report.json holds, without times."""
    return lambda folder: _timeless(json.loads((folder / "report.json").read_text("utf-8")))


@pytest.fixture(scope="session")
def killed():
    """Starts a command, kills it when a file is there, and resumes it."""

    def run(arguments, folder, until):
        command = [sys.executable, "-m", "probseq_apps", *arguments, "--run-dir", str(folder)]
        # A file and not a pipe: nobody reads it, and a full pipe stops the writer.
        with folder.with_suffix(".log").open("w") as log:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        deadline = time.monotonic() + 300
        while not list(folder.glob(until)):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not (folder / "report.json").exists()
        assert main([*arguments, "--run-dir", str(folder), "--resume"]) == 0

    return run
