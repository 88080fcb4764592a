"""The small digits task, which also runs in processes of its own."""

import socket
import sys
from pathlib import Path

import pytest

# Other processes find the module by its name, too.
sys.path.insert(0, str(Path(__file__).parent))

import digits_run


@pytest.fixture
def run(tmp_path):
    """Train the small task; returns it with its result."""

    def start(*, path="run", task=None, data=None, metadata=None, **changes):
        task, data = task or digits_run.DigitsTask(), data or digits_run.digits()
        config = digits_run.settings(**changes)
        return task, digits_run.train(task, data, tmp_path / path, config, metadata=metadata)

    return start


@pytest.fixture
def free_port():
    """Return a port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def launch(processes, free_port):
    """Start the task in a process of its own, or in several that know one another."""
    needed = ["torch._dynamo", "sklearn.datasets", "probseq_apps.engine.fit"]
    processes.set_forkserver_preload(needed)  # ten seconds saved a process
    running = []

    def start(run_dir, *, ranks=1, **options):
        for rank in range(ranks):
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks}
            place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port}
            arguments = (run_dir, place if ranks > 1 else {})
            running.append(
                processes.Process(target=digits_run.train_elsewhere, args=arguments, kwargs=options)
            )
            running[-1].start()
        return running[-ranks:]

    yield start
    for process in running:
        process.kill()
        process.join()
