"""SIGTERM and SIGINT as a request that the loop honours between two steps, or as an exception."""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Generator
from types import FrameType


class StopRequest:
    """Handler that notes signals instead of dying of them; a second SIGINT interrupts at once."""

    signum = 0  # of the first signal received
    _interrupted = False

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        """Note a signal."""
        if signum == signal.SIGINT:
            if self._interrupted:
                raise KeyboardInterrupt
            self._interrupted = True
        self.signum = self.signum or signum


@contextlib.contextmanager
def handling(handler: Callable[[int, FrameType | None], None], *signums: int) -> Generator[None]:
    """Send signals to a handler; the previous handlers come back at exit.

    Outside the main thread, where Python allows no handlers, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {signum: signal.signal(signum, handler) for signum in signums}
    try:
        yield
    finally:
        for signum, before in previous.items():
            # None stands for a handler that was not installed from Python: it cannot come back.
            signal.signal(signum, signal.SIG_DFL if before is None else before)


def exit_on_sigterm() -> contextlib.AbstractContextManager[None]:
    """Return a context in which SIGTERM raises `SystemExit(143)`, so that work is cleaned up."""
    return handling(lambda signum, _: sys.exit(128 + signum), signal.SIGTERM)
