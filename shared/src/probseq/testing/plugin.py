"""A plugin of pytest, `-p probseq.testing.plugin`: one thread, and processes that start quickly."""

import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing.context import BaseContext

import pytest

# Two threads under load are slower than one for small tests. Before torch is loaded, and for the
# processes that tests start, too.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def processes(pytestconfig: pytest.Config) -> Iterator[BaseContext]:
    """Return processes of a server without threads that has loaded torch.

    A fork of the tests' own process would wait forever for threads that only the parent has.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest", "torch"])
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(pytestconfig.rootpath)  # where modules of tests are imported from
        yield context
