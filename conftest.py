"""What all tests share: one thread, and processes that start quickly."""

import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing.context import BaseContext

import pytest

# The tests are small, and two threads under load are slower than one. Before torch is loaded, and
# for the processes that tests start, too.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Ray listens on this machine alone, reports to nobody, and has this environment as it is.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"


@pytest.fixture(scope="session")
def processes(pytestconfig: pytest.Config) -> Iterator[BaseContext]:
    """Return processes of a server without threads that has loaded the slow imports.

    A fork of the tests' own process would wait forever for threads that only the parent has.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["pytest", "ohsvgp.integrations.live.stream", "pseudovideo.token_cache"]
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(pytestconfig.rootpath)  # where modules of tests are imported from
        yield context
