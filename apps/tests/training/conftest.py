"""The small digits task, which also runs as a script in other processes."""

import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).with_name("digits_run.py")
_spec = importlib.util.spec_from_file_location("digits_run", _SCRIPT)
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)


@pytest.fixture(scope="session")
def digits_run():
    return _module


@pytest.fixture
def launch():
    """Start the script in a process of its own, or in several that know one another."""
    running = []

    def start(run_dir, *arguments, ranks=1):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        started = []
        for rank in range(ranks):
            env = dict(os.environ, OMP_NUM_THREADS="1")
            if ranks > 1:
                env |= {
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(ranks),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                }
            command = [sys.executable, str(_SCRIPT), str(run_dir), *arguments]
            started.append(subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True))
        running.extend(started)
        return started

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=30)
