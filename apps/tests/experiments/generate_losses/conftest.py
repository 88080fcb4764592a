"""The small runs, which also go on in processes of their own."""

import multiprocessing
import socket
import sys
from pathlib import Path

import pytest

# Other processes find the module by its name, too.
sys.path.insert(0, str(Path(__file__).parent))

import generate_runs as _module


@pytest.fixture
def launch():
    """Start a run in a process of its own, or in several that know one another."""
    # A server that has imported torch once forks each of them.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["torch._dynamo", "sklearn.datasets", "probseq_apps.experiments.tokens"]
    )
    running = []

    def start(kind, run_dir, *, delay=0.0, ranks=1):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        for rank in range(ranks):
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks}
            place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            process = context.Process(
                target=_module.train_elsewhere,
                args=(kind, run_dir, delay, place if ranks > 1 else {}),
            )
            process.start()
            running.append(process)
        return running[-ranks:]

    yield start
    for process in running:
        process.kill()
        process.join(30)
