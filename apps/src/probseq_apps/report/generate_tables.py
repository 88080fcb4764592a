"""Tables of `probseq generate run`: reconstruction, and generation under each prior."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from probseq_apps.report.columns import aligned_blocks
from probseq_apps.report.generate_results import (
    Group,
    Measure,
    Result,
    fd_name,
    groups_of,
    priors_of,
)
from probseq_apps.report.labels import ARROWS, Direction
from probseq_apps.report.summary import Summary, summarise

LEGEND = (
    "mean ± standard error over the seeds. Bits: of the tokens of an image; arms compare at equal "
    "bits only. PSNR: mean over the test images of each one's PSNR, last frame. Distances of "
    "reconstructions are from the test images themselves, those of samples from the training "
    "images; the row of real images has the test part's distance from the training part. Usage: "
    "share of the codebook that the test images use; perplexity: exp of the entropy of its use. "
    "Distances and inception scores (IS) depend on the number of images, and IS on its splits. "
    "— not defined, or not measured."
)
REAL = "real images, test part"


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


def reconstruction_table(
    results: Sequence[Result], floors: Sequence[Result], references: Sequence[Result]
) -> Table:
    """All arms with both stems, patch k-means at equal tokens, and real images.

    Args:
        results: of all arms, stems and seeds.
        floors: of patch k-means, in the same form.
        references: of the test images as if they were samples, one for each seed.
    """
    groups = [*groups_of(results), *groups_of(floors)]
    measures = [
        _measure("PSNR", "higher", "psnr"),
        _measure("PSNR, all frames", "higher", "psnr_all_frames"),
        _measure(fd_name(results), "lower", "fd"),
    ]
    extra = [("usage", "usage"), ("perplexity", "perplexity")]
    heads = ["tokenizer", "n", "bits", "tokens", "steps", "parameters"]
    columns = [_column(groups, measure.path) for measure in measures]
    columns += [_column(groups, ("reconstruction", key)) for _, key in extra]
    heads += [_head(measure) for measure in measures] + [label for label, _ in extra]
    rows = [[*_facts(group), *cells] for group, *cells in zip(groups, *columns, strict=True)]
    if references:
        rows.append(_real_row(references, heads, {_head(measures[2]): "fd"}))
    return Table(heads, rows)


def generation_table(results: Sequence[Result], references: Sequence[Result]) -> Table | None:
    """Samples under each prior, and real images; None where no prior was trained.

    Args:
        results: of all arms, stems and seeds.
        references: of the test images as if they were samples, one for each seed.
    """
    priors = priors_of(results)
    if not priors:
        return None
    groups = groups_of([result for result in results if result.get("generation")])
    shown: tuple[tuple[str, Direction | None, str], ...] = (
        (fd_name(results), "lower", "fd"),
        ("IS", "higher", "is"),
        ("nats per token", "lower", "nats_per_token"),
        ("samples", None, "num_samples"),
    )
    heads, real = ["samples", "n", "bits", "tokens"], dict[str, str]()
    columns: list[list[str]] = []
    for prior in priors:
        for label, direction, key in shown:
            head = f"{prior}: {label}{f' {ARROWS[direction]}' if direction else ''}"
            heads.append(head)
            columns.append(_column(groups, ("generation", prior, key), whole=direction is None))
            if key in ("fd", "is"):
                real[head] = key
    rows = [[*_facts(group)[:4], *cells] for group, *cells in zip(groups, *columns, strict=True)]
    if references:
        rows.append(_real_row(references, heads, real))
    return Table(heads, rows)


def _measure(label: str, direction: Direction, key: str) -> Measure:
    return Measure(label, "", direction, ("reconstruction", key))


def _head(measure: Measure) -> str:
    return f"{measure.label} {ARROWS[measure.direction]}"


def _facts(group: Group) -> list[str]:
    """Name and the columns that all seeds share."""
    numbers = (group.fact(name) for name in ("bits", "tokens", "steps", "parameters"))
    seeds = str(len(group.results))
    return [group.name, seeds, *("—" if n is None else f"{n:,.0f}" for n in numbers)]


def _column(groups: Sequence[Group], path: Sequence[str], *, whole: bool = False) -> list[str]:
    """A number of all groups, with the decimals that suit the largest."""
    summaries = [group.summary(path) for group in groups]
    write = _writer(summaries, whole=whole)
    return [write(summary) for summary in summaries]


def _writer(summaries: Sequence[Summary], *, whole: bool = False) -> Callable[[Summary], str]:
    largest = max((abs(s.mean) for s in summaries if s.mean is not None), default=0.0)
    digits = 0 if whole else 4 - sum(largest >= bound for bound in (1.0, 10.0, 1000.0))

    def write(summary: Summary) -> str:
        if summary.mean is None:
            return "—"
        error = summary.standard_error
        around = "" if error is None or whole else f"±{error:.{digits}f}"
        return f"{summary.mean:,.{digits}f}{around}"

    return write


def _real_row(
    references: Sequence[Result], heads: Sequence[str], shown: dict[str, str]
) -> list[str]:
    row = [REAL, str(len(references))]
    for head in heads[2:]:
        summary = summarise([_real_value(r, shown.get(head)) for r in references])
        row.append(_writer([summary])(summary))
    return row


def _real_value(reference: Result, key: str | None) -> float | None:
    """A number of real images; None for columns that they don't have."""
    found = None if key is None else reference.get(key)
    return None if found is None else float(found)
