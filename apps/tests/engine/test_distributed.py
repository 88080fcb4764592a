"""What the main rank does by itself, and how the waiting of the others ends."""

import os
import signal
import time

import pytest
import torch

from probseq_apps.engine import distributed
from probseq_apps.engine.signals import exit_on_sigterm
from pseudovideo.ranks import several_ranks


def work_alone(rank, folder, seconds):
    """Body of a process: the main rank tells how many work together, and works on."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    os.environ["MASTER_PORT"] = (folder / "port").read_text()

    def make():
        (folder / "working").write_text(f"{several_ranks()} {distributed.world_size()}")
        time.sleep(seconds)

    with exit_on_sigterm():
        distributed.join(torch.device("cpu"))
        (folder / f"joined-{rank}").touch()
        distributed.main_alone(make)
        (folder / f"together-{rank}").write_text(f"{several_ranks()} {distributed.world_size()}")


@pytest.fixture
def ranks(processes, tmp_path, free_port):
    """Two processes, the first of which works for some seconds."""
    started = []

    def start(seconds):
        (tmp_path / "port").write_text(str(free_port))
        for rank in range(2):
            started.append(processes.Process(target=work_alone, args=(rank, tmp_path, seconds)))
            started[-1].start()
        return started

    yield start
    for process in started:
        process.kill()
        process.join()


@pytest.mark.slow
def test_the_main_rank_is_the_only_one_while_it_works_alone(ranks, tmp_path):
    for process in ranks(0.0):
        process.join()
        assert process.exitcode == 0
    assert (tmp_path / "working").read_text() == "False 1"
    assert [(tmp_path / f"together-{rank}").read_text() for rank in range(2)] == ["True 2"] * 2


@pytest.mark.slow
def test_sigterm_ends_a_rank_that_waits_and_the_main_one(ranks, tmp_path):
    started = ranks(300.0)
    while not all((tmp_path / name).exists() for name in ("joined-0", "joined-1", "working")):
        assert all(process.is_alive() for process in started)
        time.sleep(0.05)
    time.sleep(0.5)  # the other one waits by now
    for process in reversed(started):
        os.kill(process.pid, signal.SIGTERM)
        process.join(timeout=30)
        assert process.exitcode == 143
