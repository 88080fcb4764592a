"""The papers' tables as data, without torch: numbers as printed, and the names of our metrics.

`papers/*.toml` hold a table's rows as text, one line a row. Beside them stands the metric of each
column, in the names of `MeasuredRun.numbers` without the method, and the units in which the paper
prints it. A metric may hold `*` (the mean over everything that matches), `{shift}` (the published
corruptions, or else those that the program makes), `{detector}` (that of the row), `{method}`
(where it doesn't come first), and a data set of its own in front, as in `cifar100:test/nll`. A
column of ranks names tables and the end of a metric instead.

Names: `B.6`, `3.2`, `4.1` and `5.3` are the thesis' tables, `cgpt:II` is Table II of CGPT's paper,
`kep:1` is Table 1 of KEP-SVGP's.
"""

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from tyro.conf import Positional, arg

from probseq.summary import Spread, Summary, direction_of
from probseq_apps.data.names import unknown_name_message
from probseq_apps.report.measured import MeasuredRun, distinct
from probseq_apps.report.tables import Measure

# The first two are of the thesis, whose tables have names of their own.
_PAPERS = ("thesis", "ohsvgp", "cgpt", "kep")
_NOT_A_TARGET = "!"


@cache
def _raw_tables() -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return the file's entries on the paper and on the table, by the name of each table."""
    tables: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
    for name in _PAPERS:
        text = (files("probseq_apps.report") / "papers" / f"{name}.toml").read_text("utf-8")
        paper = tomllib.loads(text)
        tables |= {paper["prefix"] + key: (paper, raw) for key, raw in paper["tables"].items()}
    return tables


def table_names() -> tuple[str, ...]:
    """Return all tables: `3.2`, `B.1`, ..., `4.1`, `cgpt:I`, ..., `kep:9`."""
    return tuple(_raw_tables())


def resolve_name(name: str) -> str:
    """Return the table that a name means.

    Case does not matter, and `cgpt-II`, `II` and `thesis:B.6` are understood as well; a plain
    number belongs to no paper in particular.
    """
    known = {full.lower(): full for full in table_names()}
    # Roman numerals are CGPT's alone.
    known |= {short.removeprefix("cgpt:"): full for short, full in known.items()}
    short = re.sub("^(thesis|ohsvgp):", "", name.strip().lower().replace("-", ":"))
    if short in known:
        return known[short]
    raise ValueError(unknown_name_message("table", name, table_names()))


class Value(NamedTuple):
    """A number as printed."""

    text: str
    spread: Spread  # mean, standard error (None without ±), and number of runs behind it
    decimals: int  # digits after the point
    target: bool  # whether it is to be reached; False for a known slip of the paper


class Cell(NamedTuple):
    """The paper's value, the name of our metric, and our value."""

    paper: Value
    data: str  # data set that the models were trained on
    metric: str  # pattern of its name, see above; empty for a method that `probseq` doesn't train
    scale: float  # the paper prints the metric times this
    where: Mapping[str, Sequence[object]]  # what settings of a run must be
    ours: Summary | None = None  # in the paper's units; None where no run has it
    runs: tuple[MeasuredRun, ...] = ()  # the run that has it; for ranks, the runs of all tasks
    source: str = ""  # the metric that was read, wildcards included
    mark: Literal["", "▲", "▼"] = ""  # where ours is better or worse by more than errors allow
    same: float | None = None  # for ranks, the paper's over the same methods and tasks as ours


class Row(NamedTuple):
    """A row."""

    label: str
    method: str | None  # the method on our command line; None for one that `probseq` doesn't train
    cells: tuple[Cell, ...]  # one for each column


class Group(NamedTuple):
    """Rows under one heading, which may have columns of their own."""

    title: str  # heading; empty for a table without
    heads: tuple[str, ...]  # labels of the columns, with an arrow to the good end
    rows: tuple[Row, ...]


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """A table, with our numbers in it where `compare` has filled them in."""

    name: str  # as on the command line
    title: str
    paper: str  # where it is from
    error: Literal["standard error", "standard deviation"]  # what the paper prints behind ±
    groups: tuple[Group, ...]
    sizes: Mapping[str, Mapping[str, int]]  # the paper's facts of each data set
    notes: Sequence[str]  # what a reader of the comparison should know
    recipes: Mapping[str, Sequence[str]]  # of the paper's setting by data set, that of most first
    ranks: bool = False  # average ranks over out-of-distribution tasks, not metrics
    experiment: str | None = None  # kind of generation that has the numbers; None for none
    augmented: bool | None = None  # whether its models were trained with augmentation

    @property
    def cells(self) -> list[Cell]:
        """All cells."""
        return [cell for group in self.groups for row in group.rows for cell in row.cells]

    @property
    def data(self) -> tuple[str, ...]:
        """The data sets of its columns; of generation, runs on others stand in for the first."""
        return tuple(dict.fromkeys(cell.data for cell in self.cells))

    @property
    def runs(self) -> tuple[MeasuredRun, ...]:
        """The runs that any cell is from, in order of appearance."""
        return distinct(run for cell in self.cells for run in cell.runs)


def load_table(name: str) -> PaperTable:
    """Read a table."""
    name = resolve_name(name)
    paper, raw = _raw_tables()[name]
    optional = ("title", "ranks", "experiment", "augmented")
    return PaperTable(
        name=name,
        paper=paper["paper"],
        error=paper["error"],
        groups=tuple(_group(paper, raw, group) for group in raw.get("groups", [{}])),
        sizes=raw.get("sizes", paper["sizes"]),
        notes=[note.format(**paper["texts"]) for note in raw.get("notes", [])],
        recipes=raw.get("recipes", {}),
        **{key: raw[key] for key in optional if key in raw},
    )


def _group(paper: Mapping[str, Any], table: Mapping[str, Any], group: Mapping[str, Any]) -> Group:
    options = {"runs": paper["runs"], **table, **group}
    methods = paper["methods"] | options.get("methods", {})
    wheres = options.get("column_where", [{}] * len(options["metrics"]))
    columns = list(zip(options["metrics"], wheres, strict=True))
    rows: list[Row] = []
    for line in options["rows"].strip().splitlines():
        label, *texts = (cell.strip() for cell in line.split(" | "))
        method = methods.get(options.get("method", label))
        # Conditions of a group hold for all its rows, those of a table for the rows that it names.
        where = {**group.get("where", {}), **table.get("where", {}).get(label, {})}
        cells: list[Cell] = []
        for text, (metric, column_where) in zip(texts, columns, strict=True):
            # What stands before a colon is a data set; without one it is the group's.
            data, metric = metric.split(":", 1) if ":" in metric else (options["data"], metric)
            scale = float(paper["scales"].get(metric.rpartition("/")[2], 1.0))
            if not options.get("experiment"):
                metric = f"{{method}}/{metric}"
            metric = metric.replace("{method}", method or "")
            metric = metric.replace("{detector}", paper.get("detectors", {}).get(label, ""))
            value = _value(text, options["runs"], paper["error"])
            conditions = {**where, **column_where}
            cells.append(Cell(value, data, metric if method else "", scale, conditions))
        rows.append(Row(label, method, tuple(cells)))
    measures = (
        Measure(label, "lower" if options.get("ranks") else direction_of(metric))
        for label, metric in zip(options["columns"], options["metrics"], strict=True)
    )
    return Group(group.get("title", ""), tuple(measure.head for measure in measures), tuple(rows))


def _value(text: str, runs: int, kind: str) -> Value:
    printed = text.removeprefix(_NOT_A_TARGET)
    mean, _, error = printed.partition("±")
    scale = 1.0 if kind == "standard error" else math.sqrt(runs)
    spread = float(mean), float(error) / scale if error else None, runs
    return Value(printed, spread, len(mean.partition(".")[2]), printed == text)


@dataclass(frozen=True, kw_only=True)
class ReportSettings:
    """Which table of the papers, and which runs to put beside it."""

    run_folders: Annotated[
        Positional[tuple[Path, ...]],
        arg(
            metavar="[RUN_FOLDER ...]",
            help="Run folders, or folders of them; none: runs/. Without --table their report.html "
            "is made anew, and opened from a terminal.",
        ),
    ] = ()
    table: Annotated[str | None, arg(metavar="NAME")] = None
    """Name of the table: 3.2, 4.1, 5.1 to 5.5, B.1 and B.4 to B.32 are the thesis', cgpt:I to
    cgpt:V those of CGPT's paper, kep:1 to kep:9 those of KEP-SVGP's."""
    show_list: Annotated[bool, arg(name="list")] = False
    """List the tables."""
    claims: bool = False
    """What the papers claim, beside what the runs say of it."""
    over: Annotated[str | None, arg(metavar="SETTING")] = None
    """What methods give over a number that runs differ in: train (training examples), or a setting
    by its path, model.num_inducing."""
    output_dir: Path = Path("paper-tables")
    """Folder for the table as Markdown and as a picture (of --claims, as Markdown alone); files of
    the same name are replaced."""

    def __post_init__(self) -> None:
        """Refuse an unknown table."""
        if self.table is not None:
            resolve_name(self.table)

    def check_complete(self) -> None:
        """Refuse a command line that asks for nothing, or for two things."""
        count = sum((self.table is not None, self.over is not None, self.show_list, self.claims))
        if count > 1 or not (count or self.run_folders):
            raise ValueError(
                "report needs a RUN_FOLDER, or one of --table, --over, --claims, --list"
            )
