"""The papers' tables as data, without torch: numbers as printed, and where ours are to be found.

`thesis.toml`, `ohsvgp.toml`, `cgpt.toml` and `kep.toml` hold a table's rows as text, one line a
row. Beside them stand the metric of each column in the names of `report.json`, and the units in
which the paper prints it. A metric may hold `*` (the mean over everything that matches), `{shift}`
(the published corruptions, or else those that the program makes), `{detector}` (that of the row),
and a data set of its own in front, as in `cifar100:test/nll`. Where a run of generated images has
no `fid`, its Fréchet distance in other features is shown.

Names: `B.6`, `3.2`, `4.1` and `5.3` are the thesis' tables, `cgpt:II` is Table II of CGPT's paper,
`kep:1` is Table 1 of KEP-SVGP's.
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from tyro.conf import Positional, arg

PAPERS = ("thesis", "ohsvgp", "cgpt", "kep")


@cache
def raw_paper(paper: str) -> dict[str, Any]:
    """Everything that a paper's file says, as plain values."""
    text = (files("probseq_apps.report") / "papers" / f"{paper}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


# Both files are of the thesis, whose tables have names of their own.
_OF_THESIS = ("thesis", "ohsvgp")


def table_names() -> tuple[str, ...]:
    """All tables: `3.2`, `B.1`, ..., `4.1`, `cgpt:I`, ..., `kep:9`."""
    return tuple(f"{_shown_prefix(paper)}{key}" for paper in PAPERS for key in _keys(paper))


def resolve_name(name: str) -> str:
    """The table that a name means.

    Case does not matter, and `cgpt-II`, `II` and `thesis:B.6` are understood as well; a plain
    number belongs to no paper in particular.
    """
    known = {alias.lower(): full for alias, full in _aliases().items()}
    typed = name.strip().lower()
    if typed in known:
        return known[typed]
    nearest = get_close_matches(typed, list(known), n=1, cutoff=0.5)
    hint = f"; did you mean {known[nearest[0]]!r}?" if nearest else ";"
    raise ValueError(f"unknown table {name!r}{hint} known: {', '.join(table_names())}")


def paper_and_key(name: str) -> tuple[str, str]:
    """The file that holds a table, and the table's name in it."""
    prefix, _, key = name.rpartition(":")
    return prefix or next(paper for paper in _OF_THESIS if key in _keys(paper)), key


def _aliases() -> dict[str, str]:
    aliases: dict[str, str] = {}
    for paper in PAPERS:
        for key in _keys(paper):
            full = f"{_shown_prefix(paper)}{key}"
            for start in (paper, "thesis") if paper in _OF_THESIS else (paper,):
                aliases |= {f"{start}:{key}": full, f"{start}-{key}": full}
            aliases[full] = full
            # Roman numerals are CGPT's alone.
            if key.isalpha():
                aliases[key] = full
    return aliases


def _shown_prefix(paper: str) -> str:
    return "" if paper in _OF_THESIS else f"{paper}:"


def _keys(paper: str) -> list[str]:
    return list(raw_paper(paper)["tables"])


Kind = Literal["metrics", "ranks"]
NOT_A_TARGET = "!"


class Value(NamedTuple):
    """A number as printed."""

    text: str
    mean: float
    error: float | None  # what stands behind ±, as a standard error; None without one
    runs: int  # number of runs behind the error
    decimals: int  # digits after the point
    target: bool  # whether it is to be reached; False for a known slip of the paper


class Column(NamedTuple):
    """A column and where its numbers are in a run's `report.json`."""

    label: str
    data: str  # data set that the models were trained on
    recipes: tuple[str, ...]  # recipes of the paper's setting, the first being that of most rows
    metric: str  # name of the metric, maybe with wildcards, see :mod:`probseq_apps.report.papers`
    scale: float  # the paper prints the metric times this
    where: Mapping[str, tuple[object, ...]]  # settings that a run must have for this column


class TableRow(NamedTuple):
    """A row."""

    label: str
    method: str | None  # the method on our command line; None for one that `probseq` doesn't train
    detector: str | None  # out-of-distribution detector of the row, for `{detector}`
    where: Mapping[str, tuple[object, ...]]  # settings that a run must have for this row
    values: tuple[Value, ...]  # one for each column


class Group(NamedTuple):
    """Rows under one heading, which may have columns of their own."""

    title: str  # heading; empty for a table without
    columns: tuple[Column, ...]  # what the rows' values are
    rows: tuple[TableRow, ...]
    sizes: Mapping[str, int]  # the paper's number of examples by part of the data


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """A table."""

    name: str  # as on the command line
    title: str
    paper: str  # where it is from
    kind: Kind  # `ranks` for average ranks over out-of-distribution tasks
    experiment: str | None  # kind of experiment that has the numbers, as `report.json` names it
    error: Literal["standard error", "standard deviation"]  # what the paper prints behind ±
    augmented: bool | None  # whether its models were trained with augmentation
    recipes: Mapping[str, tuple[str, ...]]  # recipes of the paper's setting by data set
    groups: tuple[Group, ...]
    notes: tuple[str, ...]  # what a reader of the comparison should know

    @property
    def data(self) -> tuple[str, ...]:
        """The data sets of its columns, in order of appearance."""
        columns = [column for group in self.groups for column in group.columns]
        return tuple(dict.fromkeys(column.data for column in columns))

    @property
    def first_data(self) -> str | None:
        """The data set for which runs on others stand in; None where they don't."""
        return None if self.experiment is None else self.data[0]


def load_table(name: str) -> PaperTable:
    """Read a table."""
    name = resolve_name(name)
    file, key = paper_and_key(name)
    paper = raw_paper(file)
    raw: dict[str, Any] = paper["tables"][key]
    parts: list[dict[str, Any]] = raw.get("groups", [{}])
    groups = tuple(_group(paper, raw, raw | part, part) for part in parts)
    columns = [column for group in groups for column in group.columns]
    return PaperTable(
        name=name,
        title=raw["title"],
        paper=paper["paper"],
        kind=raw.get("kind", "metrics"),
        experiment=raw.get("experiment"),
        error=paper["error"],
        augmented=raw.get("augmented"),
        recipes={data: tuple(names) for data, names in raw.get("rank_recipes", {}).items()}
        | {column.data: column.recipes for column in columns if column.recipes},
        groups=groups,
        notes=tuple(note.format(**paper["texts"]) for note in raw.get("notes", [])),
    )


def _group(
    paper: Mapping[str, Any],
    table: Mapping[str, Any],
    merged: Mapping[str, Any],
    part: Mapping[str, Any],
) -> Group:
    # The row conditions of a table stand beside those of a whole group.
    by_label: Mapping[str, Mapping[str, Any]] = table.get("where", {})
    for_all: Mapping[str, Any] = part.get("where", {})
    methods = paper["methods"] | merged.get("methods", {})
    rows: list[TableRow] = []
    for line in merged["rows"].strip().splitlines():
        label, *texts = (cell.strip() for cell in line.split(" | "))
        detector = paper.get("detectors", {}).get(label)
        conditions = {**for_all, **by_label.get(label, {})}
        rows.append(
            TableRow(
                label=label,
                method=methods.get(merged.get("method", label)),
                detector=detector,
                where={key: _alternatives(value) for key, value in conditions.items()},
                values=tuple(
                    _value(text, merged.get("runs", paper["runs"]), paper["error"])
                    for text in texts
                ),
            )
        )
    conditions_of: list[Mapping[str, Any]] = merged.get(
        "column_where", [{}] * len(merged["columns"])
    )
    columns = tuple(
        _column(paper, merged, label, metric, where)
        for label, metric, where in zip(
            merged["columns"], merged["metrics"], conditions_of, strict=True
        )
    )
    return Group(merged.get("title", "") if part else "", columns, tuple(rows), _sizes(merged))


def _column(
    paper: Mapping[str, Any],
    merged: Mapping[str, Any],
    label: str,
    metric: str,
    where: Mapping[str, Any],
) -> Column:
    data, colon, own = metric.partition(":")
    data, metric = (data, own) if colon else (merged["data"], metric)
    recipes = merged.get("recipes", {}).get(data, merged.get("recipe", ()))
    recipes = (recipes,) if isinstance(recipes, str) else tuple(recipes)
    scale = paper["scales"].get(metric.rpartition("/")[2], 1.0)
    allowed = {key: _alternatives(value) for key, value in where.items()}
    return Column(label, data, recipes, metric, float(scale), allowed)


def _value(text: str, runs: int, kind: str) -> Value:
    target = not text.startswith(NOT_A_TARGET)
    text = text.removeprefix(NOT_A_TARGET)
    mean, _, error = text.partition("±")
    decimals = len(mean.partition(".")[2])
    if not error:
        return Value(text, float(mean), None, runs, decimals, target)
    scale = 1.0 if kind == "standard error" else math.sqrt(runs)
    return Value(text, float(mean), float(error) / scale, runs, decimals, target)


def _alternatives(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, list) else (value,)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _sizes(merged: Mapping[str, Any]) -> Mapping[str, int]:
    return merged.get("sizes", {})


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
    output_dir: Path = Path("paper-tables")
    """Folder for the table as Markdown and as a picture; files of the same name are replaced."""

    def __post_init__(self) -> None:
        """Refuse an unknown table."""
        if self.table is not None:
            resolve_name(self.table)

    def check_given(self) -> None:
        """Refuse a command line that asks for nothing, or for two things."""
        asked = (self.table is not None, self.show_list)
        if all(asked) or not (any(asked) or self.run_folders):
            raise ValueError("report needs a RUN_FOLDER, --table NAME or --list")
