"""A table of a paper beside what run folders hold, cell by cell."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from scipy import stats

from probseq_apps.report.measured import GENERATIONS, SECONDS_PER_EPOCH, SIZES, MeasuredRun
from probseq_apps.report.papers import Column, PaperTable, TableRow, Value, load_table
from probseq_apps.report.summary import LEVEL, Direction, Summary, average_ranks, summarise
from probseq_apps.report.tables import direction_of

Mark = Literal["", "▲", "▼"]

# The tables whose tasks Table 3.2 ranks: without augmentation, and with it.
_TASK_TABLES = (("B.28", "B.30"), ("B.29", "B.31"))
_RANKED: Mapping[str, int] = {"auroc": 0, "aupr-out": 1}


class Cell(NamedTuple):
    """The paper's value and ours."""

    paper: Value
    ours: Summary | None = None  # in the paper's units; None where no run has it
    runs: tuple[MeasuredRun, ...] = ()  # the run that has it; for ranks, the runs of all tasks
    source: str | None = None  # the metric that was read, wildcards included
    mark: Mark = ""  # ▲ or ▼ where ours is better or worse by more than both errors allow
    same: float | None = None  # for ranks, the paper's over the same methods and tasks as ours


class ComparedRow(NamedTuple):
    """A row of the table."""

    label: str
    method: str | None  # our name of the method; None without one
    cells: tuple[Cell, ...]  # one for each column


class ComparedGroup(NamedTuple):
    """Rows under one heading."""

    title: str  # heading; may be empty
    heads: tuple[str, ...]  # labels of the columns, with an arrow to the good end
    rows: tuple[ComparedRow, ...]


@dataclass(frozen=True)
class Comparison:
    """A table with our numbers in it."""

    table: PaperTable
    groups: tuple[ComparedGroup, ...]
    tasks: tuple[str, ...] = ()  # for ranks, the tasks that ours are over

    @property
    def runs(self) -> tuple[MeasuredRun, ...]:
        """The runs that any cell is from, in order of appearance."""
        cells = [cell for group in self.groups for row in group.rows for cell in row.cells]
        return _distinct(run for cell in cells for run in cell.runs)


def compare(table: PaperTable, runs: Sequence[MeasuredRun]) -> Comparison:
    """Find our number for every cell of a table.

    Of several runs that have a number, one that was started from a recipe of the paper's is taken,
    and of several of these the newest. Where no run is on the first data set of a table of
    generated images, those on images that the table has not stand in.
    """
    runs = [run for run in runs if fits_experiment(table, run)]
    if table.kind == "ranks":
        return _compare_ranks(table, runs)
    groups: list[ComparedGroup] = []
    for group in table.groups:
        rows = [
            ComparedRow(
                row.label,
                row.method,
                tuple(
                    _cell(table, column, row, value, runs)
                    for column, value in zip(group.columns, row.values, strict=True)
                ),
            )
            for row in group.rows
        ]
        groups.append(ComparedGroup(group.title, _heads(group.columns), tuple(rows)))
    return Comparison(table, tuple(groups))


def fits_experiment(table: PaperTable, run: MeasuredRun) -> bool:
    """Whether a run is of a kind of experiment that a table has numbers of."""
    if table.experiment is None:
        return run.experiment not in GENERATIONS
    return run.experiment == table.experiment


def _cell(
    table: PaperTable, column: Column, row: TableRow, value: Value, runs: Sequence[MeasuredRun]
) -> Cell:
    if row.method is None:
        return Cell(value)
    metric = column.metric.replace("{detector}", row.detector or "")
    others = table.first_data == column.data and all(run.data != column.data for run in runs)
    fitting = [
        run
        for run in runs
        if (run.data not in table.data if others else run.data == column.data)
        and _fits(table, column, row, run)
    ]
    for run in sorted(fitting, key=lambda run: run.recipe not in column.recipes):
        found = run.values(row.method, metric)
        if found is not None:
            source, values = found
            ours = summarise([v if v is None else v * column.scale for v in values])
            mark = _mark(source, value, ours) if _same_images(column, run) else ""
            return Cell(value, ours, (run,), source, mark)
    return Cell(value)


def _fits(table: PaperTable, column: Column, row: TableRow, run: MeasuredRun) -> bool:
    if table.augmented not in (None, run.augmented):
        return False
    conditions = (*column.where.items(), *row.where.items())
    return all(run.setting(path) in allowed for path, allowed in conditions)


def _same_images(column: Column, run: MeasuredRun) -> bool:
    """Whether numbers of generated images are of those of the paper, and of their size."""
    if run.experiment not in GENERATIONS:
        return True
    size = SIZES.get(column.data)
    return run.data == column.data and (size is None or size[1] == run.facts["image_size"])


def _mark(source: str, value: Value, ours: Summary) -> Mark:
    # A distance in other features than the paper's has no direction here.
    direction = direction_of(source)
    # Seconds are those of different machines, scores those of different classifiers.
    if direction is None or source == SECONDS_PER_EPOCH or source.endswith("/is"):
        return ""
    if not value.target or ours.mean is None or not differs(value, ours):
        return ""
    return "▲" if (ours.mean > value.mean) == (direction == "higher") else "▼"


def _heads(columns: Sequence[Column]) -> tuple[str, ...]:
    arrows: dict[Direction | None, str] = {"higher": " ↑", "lower": " ↓", None: ""}
    return tuple(f"{column.label}{arrows[direction_of(column.metric)]}" for column in columns)


def _compare_ranks(table: PaperTable, runs: Sequence[MeasuredRun]) -> Comparison:
    (group,) = table.groups
    compared = [[compare(load_table(name), runs) for name in names] for names in _TASK_TABLES]
    columns = [
        _rank_column(
            [row.label for row in group.rows], compared[index // 2], _RANKED[column.metric]
        )
        for index, column in enumerate(group.columns)
    ]
    rows = [
        ComparedRow(
            row.label,
            row.method,
            tuple(
                columns[index].cells.get(row.label, Cell(value))._replace(paper=value)
                for index, value in enumerate(row.values)
            ),
        )
        for row in group.rows
    ]
    heads = tuple(f"{column.label} ↓" for column in group.columns)
    tasks = tuple(task for column in columns[::2] for task in column.tasks)
    return Comparison(table, (ComparedGroup(group.title, heads, tuple(rows)),), tasks)


class _RankColumn(NamedTuple):
    cells: dict[str, Cell]
    tasks: list[str]


def _rank_column(
    labels: Sequence[str], comparisons: Sequence[Comparison], metric: int
) -> _RankColumn:
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []
    tasks: list[str] = []
    runs_of: dict[str, list[MeasuredRun]] = {}
    for comparison in comparisons:
        (group,) = comparison.groups
        for place in range(metric, len(group.heads), len(_RANKED)):
            found = {
                row.label: row.cells[place]
                for row in group.rows
                if row.label in labels and _is_measured(row.cells[place])
            }
            if len(found) < 2:
                continue
            ours.append({label: _mean_of(cell) for label, cell in found.items()})
            theirs.append({label: cell.paper.mean for label, cell in found.items()})
            for label, cell in found.items():
                runs_of.setdefault(label, []).extend(cell.runs)
            head = group.heads[place].rsplit(" ", 2)[0]
            kind = "with" if comparison.table.augmented else "without"
            trained = comparison.table.groups[0].columns[0].data
            tasks.append(f"{trained} {kind} augmentation against {head}: {len(found)} methods")
    paper_ranks = average_ranks(theirs, "higher")
    cells = {
        label: Cell(
            # Replaced by the printed value.
            paper=Value("", rank, None, 0, 4, target=True),
            ours=Summary((rank,), rank, None),
            runs=_distinct(runs_of[label]),
            same=paper_ranks[label],
        )
        for label, rank in average_ranks(ours, "higher").items()
    }
    return _RankColumn(cells, tasks)


def _distinct(runs: Iterable[MeasuredRun]) -> tuple[MeasuredRun, ...]:
    return tuple({run.folder: run for run in runs}.values())


def _is_measured(cell: Cell) -> bool:
    return cell.ours is not None and cell.ours.mean is not None


def _mean_of(cell: Cell) -> float:
    mean = None if cell.ours is None else cell.ours.mean
    return 0.0 if mean is None else mean


LEGEND = (
    "▲ ours is better, ▼ ours is worse than the paper's by more than both errors allow: Welch's "
    "t-test at 5%; where one of the two has no error, it counts as one more draw with the other's "
    "scatter; where neither has, nothing is marked. — not measured."
)


def differs(paper: Value, ours: Summary) -> bool:
    """Test at the 5% level whether two means differ.

    Two-sided: Welch's t-test if both have an error. If one has none, as a single run or an
    ensemble, it is taken for one more draw with the scatter of the other, for which
    t = (x − m) / (s √(1 + 1/n)) has n − 1 degrees of freedom. Without any error the answer is no.
    What the paper's rounding explains is no difference.
    """
    if ours.mean is None:
        return False
    distance = abs(ours.mean - paper.mean)
    if distance <= 0.5 * 10.0**-paper.decimals:
        return False
    theirs, own = (paper.error, paper.runs), (ours.standard_error, len(ours.values))
    known = [(error, count) for error, count in (theirs, own) if error is not None and count > 1]
    if not known:
        return False
    if len(known) == 1:
        error, count = known[0]
        # s √(1 + 1/n) with s = error √n.
        return _exceeds(distance, error * math.sqrt(count + 1), float(count - 1))
    total = sum(error**2 for error, _ in known)
    if total == 0.0:
        return True
    # Welch–Satterthwaite.
    freedom = total**2 / sum(error**4 / (count - 1) for error, count in known)
    return _exceeds(distance, math.sqrt(total), freedom)


def _exceeds(distance: float, scale: float, freedom: float) -> bool:
    return scale == 0.0 or 2.0 * float(stats.t.sf(distance / scale, freedom)) < LEVEL
