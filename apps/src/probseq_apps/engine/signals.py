"""SIGTERM and SIGINT as a request that the loop honours between two steps, or as an exception."""

import contextlib
import signal
import threading
from collections.abc import Generator
from types import FrameType, TracebackType


class StopRequest:
    """Context manager that notes SIGTERM and SIGINT instead of dying of them.

    A second SIGINT raises KeyboardInterrupt at once. The previous handlers come back at exit.
    Outside the main thread, where Python allows no handlers, it notes nothing.

    Attributes:
        signum: number of the first signal received; 0 while there is none.
    """

    def __init__(self) -> None:
        self.signum = 0
        self._interrupted = False
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGTERM, signal.SIGINT):
                self._previous[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for signum, handler in self._previous.items():
            # None stands for a handler that was not installed from Python: it cannot come back.
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)  # pyright: ignore[reportArgumentType]
        self._previous.clear()

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGINT:
            if self._interrupted:
                raise KeyboardInterrupt
            self._interrupted = True
        self.signum = self.signum or signum


@contextlib.contextmanager
def exit_on_sigterm() -> Generator[None]:
    """Context manager in which SIGTERM raises `SystemExit(143)`, so that work is cleaned up.

    A `StopRequest` within it takes SIGTERM for itself as long as it lasts. The previous handler
    comes back at exit. Outside the main thread, where Python allows no handlers, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        # None stands for a handler that was not installed from Python: it cannot come back.
        signal.signal(signal.SIGTERM, signal.SIG_DFL if previous is None else previous)


def _leave(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)
