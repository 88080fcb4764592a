"""Rows of `probseq bench online` of many series: in one table, and each as a live stream."""

from collections.abc import Callable

from torch import Tensor

from ohsvgp import OnlineGP
from ohsvgp.integrations.live import LiveStream
from probseq_apps.bench import Row, timed

Series = tuple[Tensor, Tensor]


def state_rows(series: Series, model: Callable[[int], OnlineGP], first: int) -> list[Row]:
    """Return the rows of live streams whose states an engine keeps.

    The `first` lines are learned at once, and not timed.
    """
    lines = [f"{t},{y}" for t, y in zip(*(column.tolist() for column in series), strict=True)]
    middle, rows = (first + len(lines)) // 2, list[Row]()
    early, late = lines[first:middle], lines[middle:]
    for M in (20, 50, 100):
        live = LiveStream(model(M), warmup=first)
        for line in lines[:first]:
            live.answer(line)

        def moved(line: str, live: LiveStream = live) -> None:
            live.load_bytes(live.to_bytes())
            live.answer(line)

        alone = timed(lambda live=live: [*map(live.answer, early)], gradients=True)()
        with_states = timed(lambda moved=moved: [*map(moved, late)], gradients=True)()
        size, rates = len(live.to_bytes()), (len(early) / alone, len(late) / with_states)
        goals = (60_000.0, 300.0) if M == 50 else (None, None)
        rows += [
            Row(f"state of a live stream, M={M}", size, "bytes", goals[0]),
            Row("  lines without a file", rates[0], "/s", goals[1], least=True),
            Row("  lines with the state taken up and given back at each", rates[1], "/s"),
        ]
    return rows
