"""Rows of `probseq bench online` of many series: in one table, and each as a live stream."""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ohsvgp import OnlineGP
from ohsvgp.integrations.live import LiveStream
from probseq_apps.bench import Row, timed

Series = tuple[Tensor, Tensor]


def table_rows(series: Series, count: int, model: OnlineGP) -> list[Row]:
    """Return the rows of forecasts of many series in one table, and in a loop over a few of them.

    All are one series with other noise. There are no rows without pandas.
    """
    if find_spec("pandas") is None:
        return []
    import pandas as pd

    from ohsvgp.integrations.frames import forecast_groups

    (t, y), few = series, min(count, 20)
    values = y + 0.3 * torch.randn(count, len(t), generator=torch.Generator().manual_seed(1))
    names, stamps = np.repeat(np.arange(count), len(t)), np.tile(t.numpy(), count)
    table = pd.DataFrame({"series": names, "t": stamps, "y": values.flatten().numpy()})
    tables = [table[table["series"] == name] for name in range(few)]
    rows: list[Row] = []
    for label, one in ((f"M={model.basis.num_inducing}", model), ("the default models", None)):
        columns: Any = {"by": "series", "time": "t", "target": "y", "horizon": 7, "model": one}
        apply = partial(forecast_groups, **columns)
        at_once = timed(partial(apply, table), gradients=True)
        loop = timed(lambda apply=apply: [*map(apply, tables)], gradients=True)
        share = few / count
        rows += [
            Row(f"{count:,} series of {len(t)} stamps, {label}", at_once, "/s", amount=count),
            Row("  in a loop", loop, "/s", amount=few),
            Row("  against one table", loop, goal=20.0, least=True, over=at_once, amount=share),
        ]
    return rows


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
