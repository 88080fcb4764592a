"""Tables of comparisons of arms: a row an arm, means over the seeds with their standard errors."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from probseq_apps.report.arm_results import REAL, ArmGroup, Measure, Result, decimals_of, value_of
from probseq_apps.report.columns import aligned_blocks
from probseq_apps.report.labels import ARROWS
from probseq_apps.report.summary import Summary, summarise

# A mean and its standard error as text.
Writer = Callable[[float, float | None], str]


class Table(NamedTuple):
    """Cells of a table; the first column names the rows."""

    heads: list[str]
    rows: list[list[str]]

    def text(self, width: int) -> str:
        """For the terminal, columns that don't fit `width` below."""
        return aligned_blocks(self.heads, self.rows, width)

    def markdown(self) -> str:
        """For `report.md`."""
        lines = [self.heads, ["---", *("---:" for _ in self.heads[1:])], *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@runtime_checkable
class Summarised(Protocol):
    """All seeds of one row."""

    def summary(self, path: Sequence[str]) -> Summary:
        """A number over the seeds."""
        ...


# What all seeds of an arm share, such as its parameters.
Fact = Callable[[ArmGroup], object]

_SECONDS = (("training s", ("training_seconds",)), ("sampling s", ("generation", "seconds")))


def arm_table(
    groups: Sequence[ArmGroup],
    real: Result,
    measures: Sequence[Measure],
    facts: Mapping[str, Fact],
) -> Table:
    """All arms of trained models, and real images.

    Args:
        groups: the arms.
        real: of the test images as if they were samples.
        measures: numbers over the seeds.
        facts: further columns by their heads; before the seconds.
    """
    heads = ["arm", "n", *map(head_of, measures), *facts, *(head for head, _ in _SECONDS)]
    writers = [with_error(digits_of(groups, measure)) for measure in measures]
    columns = [
        column(groups, measure.path, write)
        for measure, write in zip(measures, writers, strict=True)
    ]
    columns += [[fact_text(fact(group)) for group in groups] for fact in facts.values()]
    columns += [column(groups, path, whole) for _, path in _SECONDS]
    rows = [
        [group.name, str(len(group.results)), *cells]
        for group, *cells in zip(groups, *columns, strict=True)
    ]
    shown: dict[str, tuple[str, Writer]] = {
        head_of(measure): (measure.path[1], write)
        for measure, write in zip(measures, writers, strict=True)
        if measure.path[0] == "generation"
    }
    shown |= {"samples": ("num_samples", whole), "splits": ("is_splits", whole)}
    return Table(heads, [*rows, real_row(REAL, real, heads, shown)])


def digits_of(groups: Sequence[ArmGroup], measure: Measure) -> int:
    """Decimals of a number in tables and statements.

    Args:
        groups: all arms.
        measure: the number.
    """
    return decimals_of([group.summary(measure.path).mean for group in groups])


def fact_text(value: object) -> str:
    """Text of what all seeds share; a dash for what is not there."""
    if value is None:
        return "—"
    return f"{value:,}" if isinstance(value, int) else str(value)


def head_of(measure: Measure) -> str:
    """Head of a column, with an arrow to the good end."""
    return f"{measure.label} {ARROWS[measure.direction]}"


def column(groups: Sequence[Summarised], path: Sequence[str], write: Writer) -> list[str]:
    """Cells of a number of all groups.

    Args:
        groups: the rows.
        path: keys that lead to the number.
        write: makes text of a mean.
    """
    return [_cell(group.summary(path), write) for group in groups]


def with_error(digits: int) -> Writer:
    """Writes a mean ± its standard error."""

    def write(mean: float, error: float | None) -> str:
        return f"{mean:,.{digits}f}{'' if error is None else f'±{error:.{digits}f}'}"

    return write


def whole(mean: float, error: float | None) -> str:
    """Writes a mean as a whole number."""
    return f"{mean:,.0f}"


def share(mean: float, error: float | None) -> str:
    """Writes a mean of shares in percent."""
    return f"{mean:.0%}"


def real_row(
    name: str, real: Result, heads: Sequence[str], shown: Mapping[str, tuple[str, Writer]]
) -> list[str]:
    """Row of real images.

    Args:
        name: of the row.
        real: what was measured of them.
        heads: of all columns; the second is the number of seeds, which they don't have.
        shown: of the columns that they have, the number's key and its writer.
    """
    row = [name, "—"]
    for head in heads[2:]:
        key, write = shown.get(head, ("", whole))
        row.append(_cell(summarise([value_of(real, (key,))]), write))
    return row


def _cell(summary: Summary, write: Writer) -> str:
    return "—" if summary.mean is None else write(summary.mean, summary.standard_error)
