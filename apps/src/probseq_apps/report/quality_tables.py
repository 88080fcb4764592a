"""Tables of what a `SampleEvaluator` measures of samples: heads and cells, as text."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

# Keys of `measure` (inner ones after a point), what tables call them, and the decimals of their
# numbers; None: as many as suit the largest.
_COLUMNS = (
    ("realism", "looks real ↑", 2),
    ("kid", "KID ↓", None),
    ("lpips", "LPIPS diversity", 3),
    ("torch_fidelity.fd", "torch-fidelity: {fd} ↓", None),
    ("torch_fidelity.is", "torch-fidelity: IS ↑", None),
    ("torch_fidelity.kid", "torch-fidelity: KID ↓", None),
    ("torch_fidelity.precision", "torch-fidelity: precision ↑", 2),
    ("torch_fidelity.recall", "torch-fidelity: recall ↑", 2),
)


def quality_table(
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
) -> tuple[list[str], list[list[str]]]:
    """Return heads and cells of a table of what `measure` says, a row for each model.

    Cells are means over the seeds. What no row has is left out.
    """
    every = [one for runs in rows.values() for one in runs]
    heads, columns = ["quality of samples", "n"], list[list[str]]()
    for key, head, digits in _COLUMNS:
        if any(_entry(one, key) is not None for one in every):
            heads.append(head.format(fd=every[0].get("fd_name", "FD")))
            digits = _decimals(_entry(one, key) for one in every) if digits is None else digits
            columns.append([_cell(runs, key, digits) for runs in rows.values()])
    names = [[name, str(len(runs))] for name, runs in rows.items()]
    return heads, [[*name, *cells] for name, *cells in zip(names, *columns, strict=True)]


def frame_table(
    rows: Mapping[str, Sequence[Mapping[str, Mapping[str, Any]]]],
) -> tuple[list[str], list[list[str]]]:
    """Return heads and cells of a table of what `measure_videos` says, a row for each frame.

    Measurements are over the seeds; what no row has is left out.
    """
    heads = ["frames of samples", "n", "FD ↓", "FD, real test videos", "KID ↓"]
    heads.append("videos")
    every = [of_frame for runs in rows.values() for one in runs for of_frame in one.values()]
    kinds = [(key, _decimals(one.get(key) for one in every)) for key in ("fd", "real_fd", "kid")]
    cells: list[list[str]] = []
    for name, runs in rows.items():
        for head in runs[0]:
            of_frame = [one[head] for one in runs]
            shown = head if head in ("image", "video") else f"frame {head}"
            row = [f"{name}, {'whole video' if shown == 'video' else shown}", str(len(runs))]
            for key, digits in kinds:
                row.append(_cell(of_frame, key, digits))
            cells.append([*row, f"{of_frame[0]['num_videos']:,}"])
    return heads, cells


def _entry(one: Mapping[str, Any], key: str) -> float | None:
    outer, _, inner = key.partition(".")
    entry: Any = one.get(outer)
    return (entry or {}).get(inner) if inner else entry


def _decimals(values: Iterable[float | None]) -> int:
    """Return four decimals for numbers below 1, none from 1,000 on."""
    largest = max((abs(value) for value in values if value is not None), default=0.0)
    return 4 - sum(largest >= bound for bound in (1.0, 10.0, 100.0, 1000.0))


def _cell(runs: Sequence[Mapping[str, Any]], key: str, digits: int) -> str:
    """Return the mean over seeds; a dash where a seed lacks it."""
    values = [_entry(one, key) for one in runs]
    known = [float(value) for value in values if value is not None]
    if len(known) < len(values):
        return "—"
    return f"{fmean(known):z.{digits}f}"
