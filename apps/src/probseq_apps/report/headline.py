"""The first table of a report, a row a model with the metrics that decide, and one sentence."""

from collections.abc import Collection, Mapping, Sequence

from probseq.summary import Summary, difference
from probseq_apps.report.tables import DASH, Measure, Table, summary_table

# Of each column the summary over the seeds by the row's title.
Columns = Mapping[Measure, Mapping[str, Summary]]
_DIGITS = 3
_KEY = "Δ: from the best row by {}, with the 95% interval of the differences paired by {}"


def headline_table(
    columns: Columns, apart: Collection[str] = (), of: str = "seed", *, errors: bool = True
) -> Table:
    """Return one row a model, with its difference from the best one by the first metric.

    Rows that stand apart, as a mark to reach, are not compared; `of` is what a summary's values are
    of. Without `errors` cells are means alone.
    """
    table = summary_table("", columns, _DIGITS, errors=errors)
    measure, ranked = _ranked(columns, apart)
    if measure is None or len(ranked) < 2:
        return table
    column = columns[measure]
    cells = {name: difference_text(column[name], column[ranked[0]], _DIGITS) for name in ranked[1:]}
    lines = [[*row, cells.get(row[0], DASH)] for row in table.rows]
    key = _KEY.format(measure.label, of)
    return table._replace(heads=[*table.heads, f"Δ {measure.label}"], rows=lines, about=key)


def difference_table(title: str, columns: Columns, marks: Sequence[Summary]) -> Table:
    """Return rows less the mark of each column, ± half of the 95% interval, paired by seed."""
    names = dict.fromkeys(name for column in columns.values() for name in column)
    pairs = list(zip(columns.values(), marks, strict=True))
    rows = [[n, *(difference_text(c[n], mark, _DIGITS) for c, mark in pairs)] for n in names]
    return Table([title, *(measure.label for measure in columns)], rows)


def conclusion(columns: Columns, apart: Collection[str] = (), of: str = "seed") -> str:
    """Return how the two best rows by the first metric stand to each other; "" of less than two.

    The first leads where the 95% interval of the paired differences is above 0.
    """
    measure, ranked = _ranked(columns, apart)
    if measure is None or len(ranked) < 2:
        return ""
    first, second = (columns[measure][name] for name in ranked[:2])
    gap = difference(first, second)
    relation = "leads" if gap.resolved else "is not told apart from"
    best, next_best = (f"{n} ({columns[measure][n].mean:z.{_DIGITS}f})" for n in ranked[:2])
    text = f"{measure.label}: {best} {relation} {next_best}"
    if gap.interval is None:
        return f"{text}: one {of} decides nothing."
    return f"{text}: {difference_text(first, second, _DIGITS)} (95%, {len(gap.values):,} {of}s)."


def difference_text(first: Summary, second: Summary, digits: int) -> str:
    """Return first minus second ± half of the interval, as far as there are both; else a dash."""
    gap = difference(first, second)
    if gap.mean is None:
        return DASH
    interval = "" if gap.interval is None else f" ± {gap.interval:.{digits}f}"
    return f"{gap.mean:+z.{digits}f}{interval}"


def _ranked(columns: Columns, apart: Collection[str]) -> tuple[Measure | None, list[str]]:
    """Return the first metric with a good end, and the rows that it compares, best first."""
    measure = next((each for each in columns if each.direction), None)
    if measure is None:
        return None, []
    sign = -1.0 if measure.direction == "higher" else 1.0
    means = {n: row.mean for n, row in columns[measure].items() if row.mean is not None}
    ranked = sorted(means, key=lambda name: sign * means[name])
    return measure, [name for name in ranked if name not in apart]
