"""`probseq bench online`: what online updates cost in time and memory, and what they are beside.

All cases run in turns, on one thread, and the medians of the process' own time are shown, so that
ratios mean something on a busy machine too. The streams are generated: the time of an update
doesn't depend on the values.
"""

import json
import warnings
from collections.abc import Mapping
from typing import NamedTuple

import torch

from ohsvgp import LegS, LostInformationWarning
from probseq_apps.experiments.bench_online_cases import (
    AUDIO,
    FEATURES,
    LENGTH,
    LENGTHSCALE,
    SOLAR,
    TASKS,
    Case,
    Memory,
    euler,
    grown_model,
    in_tasks,
    interleaved,
    last_task,
    learned,
    next_points,
    one_by_one,
    state_bytes,
    stream,
    watch_memory,
    window_covariance,
)
from probseq_apps.experiments.bench_online_settings import BenchOnlineSettings
from probseq_apps.report.tables import aligned_blocks

# The thesis learns the inducing points of OSGPR by this many Adam steps at each task.
_ITERATIONS = 1000
_COMPARED = (50, 150)
_WIDTH = 120


class Row(NamedTuple):
    """A line of the table.

    Attributes:
        label: what was measured.
        value: a median, or what follows from medians.
        unit: "ms", "s", "x" (a ratio) or "bytes".
        goal: what it should reach; None without one.
        least: whether the goal is a lower limit.
    """

    label: str
    value: float
    unit: str
    goal: float | None = None
    least: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None without one."""
        if self.goal is None:
            return None
        return self.value >= self.goal if self.least else self.value <= self.goal


class Sizes(NamedTuple):
    """How much is run.

    Attributes:
        singles: points that are learned one by one where that is timed.
        few: Adam steps a task of the shorter run of OSGPR.
        more: of the longer one.
        early: points of the short stream.
        late: points of the long stream.
        watched: points of the stream on which memory is watched.
    """

    singles: int
    few: int
    more: int
    early: int
    late: int
    watched: int


def bench_online(settings: BenchOnlineSettings) -> list[Row]:
    """Measure, print the table, and write the numbers where asked.

    Args:
        settings: how often, and on how long streams.

    Returns:
        The table's rows.

    Raises:
        OSError: the file cannot be written.
    """
    sizes = Sizes(200, 5, 25, 1_000, 100_000, settings.long)
    if settings.quick:
        sizes = Sizes(40, 2, 6, 1_000, 10_000, min(500, settings.long))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            # Speed is measured on streams that are too long for M.
            warnings.simplefilter("ignore", LostInformationWarning)
            rows = measure(sizes, settings.repeats)
    finally:
        torch.set_num_threads(threads)
    print(table(rows))
    print(
        f"\ntorch {torch.__version__}, cpu, one thread, process time, medians of "
        f"{settings.repeats} runs in turns. Generated streams: sines with noise, "
        f"{LENGTH / LENGTHSCALE:.0f} lengthscales long, RBF kernel, LegS basis.\n"
        f"OSGPR's time is extrapolated: that of {sizes.few} Adam steps a task plus "
        f"{_ITERATIONS - sizes.few} times the time of one step."
    )
    if settings.json is not None:
        numbers = [row._asdict() | {"met": row.met} for row in rows]
        settings.json.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
    return rows


def measure(sizes: Sizes, repeats: int) -> list[Row]:
    """Run everything.

    Args:
        sizes: how much.
        repeats: timed runs of each case.
    """
    grown = {count: grown_model(count) for count in (sizes.early, sizes.late)}
    solar, audio = stream(SOLAR), stream(AUDIO)
    each = max(sizes.singles // 4, 2)
    cases: dict[str, Case] = {
        "solar-50": in_tasks(lambda: LegS(50), solar),
        "solar-150": in_tasks(lambda: LegS(150), solar),
        "audio-100": in_tasks(lambda: LegS(100), audio),
        "audio-200": in_tasks(lambda: LegS(200), audio),
        "batch": last_task(LegS(100), audio),
        "single-move": one_by_one(LegS(50), "task", sizes.singles),
        "single-grow": one_by_one(LegS(50), "grow:1.05", sizes.singles),
        "early": next_points(grown[sizes.early], each),
        "late": next_points(grown[sizes.late], each),
        **{f"window-{M}": window_covariance(LegS(M), solar[0]) for M in _COMPARED},
        **{f"euler-{M}": window_covariance(euler(M), solar[0]) for M in _COMPARED},
        "euler": in_tasks(lambda: euler(50), solar),
        "few": in_tasks(lambda: learned(50, sizes.few), solar),
        "more": in_tasks(lambda: learned(50, sizes.more), solar),
    }
    found = interleaved(cases, repeats)
    kept = state_bytes(grown[sizes.early]), state_bytes(grown[sizes.late])
    return [
        *_stream_rows(found),
        *_length_rows(found, sizes, kept),
        *(row for M in _COMPARED for row in _window_rows(M, found)),
        Row(f"{SOLAR} points in {TASKS} tasks by that recurrence, M=50", found["euler"], "s"),
        Row("  against LegS", found["euler"] / found["solar-50"], "x"),
        *_learning_rows(found, sizes),
        *_memory_rows(sizes.watched, watch_memory(sizes.watched)),
    ]


def table(rows: list[Row]) -> str:
    """Aligned text: what, measured, goal, and whether it is met."""
    cells = [
        [
            row.label,
            _shown(row.value, row.unit),
            "" if row.goal is None else f"{'≥' if row.least else '≤'} {_shown(row.goal, row.unit)}",
            {True: "met", False: "missed", None: ""}[row.met],
        ]
        for row in rows
    ]
    return aligned_blocks(("", "measured", "goal", ""), cells, _WIDTH)


def _stream_rows(found: Mapping[str, float]) -> list[Row]:
    return [
        Row(f"{SOLAR} points in {TASKS} tasks, M=50", found["solar-50"], "s", 0.05),
        Row(f"{SOLAR} points in {TASKS} tasks, M=150", found["solar-150"], "s", 0.25),
        Row(f"{AUDIO:,} points in {TASKS} tasks, M=100", found["audio-100"], "s", 0.25),
        Row(f"{AUDIO:,} points in {TASKS} tasks, M=200", found["audio-200"], "s", 0.6),
        Row("the last 900 points of them, M=100", 1e3 * found["batch"], "ms", 25.0),
        Row("one point at a time, M=50", 1e3 * found["single-move"], "ms", 3.0),
        Row('  with rebase="grow:1.05"', 1e3 * found["single-grow"], "ms", 3.0),
    ]


def _length_rows(found: Mapping[str, float], sizes: Sizes, kept: tuple[int, int]) -> list[Row]:
    return [
        Row(f"a point after {sizes.early:,} others, M=50", 1e3 * found["early"], "ms"),
        Row(f"a point after {sizes.late:,} others, M=50", 1e3 * found["late"], "ms"),
        Row("  late against early", found["late"] / found["early"], "x", 1.2),
        Row(f"state after {sizes.early:,} points, M=50", kept[0], "bytes"),
        Row(f"state after {sizes.late:,} points, M=50", kept[1], "bytes", kept[0]),
    ]


def _window_rows(M: int, found: Mapping[str, float]) -> list[Row]:
    legs, recurrence = found[f"window-{M}"], found[f"euler-{M}"]
    return [
        Row(f"K_uu after {SOLAR} points, M={M}", 1e3 * legs, "ms"),
        Row(f"  by {SOLAR} Euler steps, {FEATURES} random features", 1e3 * recurrence, "ms"),
        Row("  against LegS", recurrence / legs, "x", 100.0, least=True),
    ]


def _learning_rows(found: Mapping[str, float], sizes: Sizes) -> list[Row]:
    step = (found["more"] - found["few"]) / (sizes.more - sizes.few)
    seconds = found["few"] + (_ITERATIONS - sizes.few) * step
    return [
        Row(f"OSGPR, M=50: one Adam step at each of {TASKS} tasks", 1e3 * step, "ms"),
        Row(f"  {_ITERATIONS} steps a task, extrapolated", seconds, "s"),
        Row("  against LegS", seconds / found["solar-50"], "x", 500.0, least=True),
    ]


def _memory_rows(count: int, memory: Memory) -> list[Row]:
    rows = [
        Row(f"state after {memory.first:,} points one by one", memory.early, "bytes"),
        Row(f"  after {count:,} points", memory.late, "bytes", memory.early),
    ]
    if memory.growth is not None:
        # What an allocator may keep.
        rows.append(Row("  growth of the process in between", memory.growth, "bytes", 2**23))
    return rows


def _shown(value: float, unit: str) -> str:
    number = f"{value:,.0f}" if unit == "bytes" or value >= 100 else f"{value:.3g}"
    return f"{number}{'' if unit == 'x' else ' '}{unit}"
