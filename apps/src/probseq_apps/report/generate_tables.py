"""Tables of `probseq generate run`: reconstruction, and generation under each prior."""

from collections.abc import Sequence

from probseq_apps.report.arm_results import REAL, Measure, Result, value_of
from probseq_apps.report.arm_tables import (
    Table,
    Writer,
    column,
    head_of,
    real_row,
    share,
    whole,
    with_error,
)
from probseq_apps.report.generate_results import (
    Group,
    decimals,
    fd_name,
    groups_of,
    is_name,
    priors_of,
)
from probseq_apps.report.labels import ARROWS, Direction

LEGEND = (
    "mean ± standard error over the seeds; n: how many seeds. Bits: of the tokens of an image; "
    "arms compare at equal bits only. PSNR: mean over the test images of each one's PSNR in dB, "
    "last frame; all frames: the same over all frames. FID and IS: Fréchet distance and inception "
    "score by Inception's features; FD(NAME) and IS(NAME): by other features. Distances of "
    "reconstructions are from the test images themselves, those of samples from the training "
    "images; a row of real images has the test part's distance from the training part. Usage: "
    "share of the codebook that the test images use; perplexity: exp of the entropy of its use. "
    "A classifier's features are those of one classifier for all seeds. Distances and inception "
    "scores depend on the number of images, and the score on its splits. Nats per token: mean of "
    "-log p over tokens of the test images; of an autoregressive prior over all of them, of a "
    "masked one over those that its masks hide alone, which is no likelihood; priors of different "
    "kinds or numbers of tokens don't compare by it. — not defined, or not measured."
)
# Where distances of other rows are from the test images.
_REAL_DISTANCE = "real images: test part from training part"


def reconstruction_table(
    results: Sequence[Result], floors: Sequence[Result], real: Result
) -> Table:
    """All arms with both stems, patch k-means at equal tokens, and real images.

    Args:
        results: of all arms, stems and seeds.
        floors: of patch k-means, in the same form.
        real: of the test images as if they were samples.
    """
    groups = [*groups_of(results), *groups_of(floors)]
    measures = [
        _measure("PSNR (dB)", "higher", "psnr"),
        _measure("all frames (dB)", "higher", "psnr_all_frames"),
        _measure(fd_name(results), "lower", "fd"),
    ]
    heads = ["tokenizer", "n", "bits", "tokens", "steps", "parameters"]
    heads += [*(head_of(measure) for measure in measures), "usage", "perplexity"]
    writers = [with_error(decimals(results, measure.path)) for measure in measures]
    columns = [
        column(groups, measure.path, write)
        for measure, write in zip(measures, writers, strict=True)
    ]
    columns.append(column(groups, ("reconstruction", "usage"), share))
    columns.append(column(groups, ("reconstruction", "perplexity"), whole))
    rows = [[*_facts(group), *cells] for group, *cells in zip(groups, *columns, strict=True)]
    shown_of_real = {head_of(measures[2]): ("fd", writers[2])}
    rows.append(real_row(_REAL_DISTANCE, real, heads, shown_of_real))
    return Table(heads, rows)


def generation_table(results: Sequence[Result], real: Result) -> Table | None:
    """Samples under each prior, and real images; None where no prior was trained.

    Args:
        results: of all arms, stems and seeds.
        real: of the test images as if they were samples.
    """
    priors = priors_of(results)
    if not priors:
        return None
    groups = groups_of([result for result in results if result.get("generation")])
    shown: tuple[tuple[str, Direction | None, str], ...] = (
        (fd_name(results), "lower", "fd"),
        (is_name(results), "higher", "is"),
        ("nats per token", "lower", "nats_per_token"),
        ("samples", None, "num_samples"),
    )
    heads = ["samples", "n", "bits", "tokens"]
    shown_of_real: dict[str, tuple[str, Writer]] = {}
    columns: list[list[str]] = []
    for prior in priors:
        for label, direction, key in shown:
            path = ("generation", prior, key)
            if key == "is" and all(value_of(result, path) is None for result in results):
                continue
            head = f"{prior}: {label}{f' {ARROWS[direction]}' if direction else ''}"
            heads.append(head)
            write = with_error(decimals(results, path)) if direction else whole
            columns.append(column(groups, path, write))
            shown_of_real[head] = (key, write)
    rows = [[*_facts(group)[:4], *cells] for group, *cells in zip(groups, *columns, strict=True)]
    rows.append(real_row(REAL, real, heads, shown_of_real))
    return Table(heads, rows)


def _measure(label: str, direction: Direction, key: str) -> Measure:
    return Measure(label, "", direction, ("reconstruction", key))


def _facts(group: Group) -> list[str]:
    """Name and the columns that all seeds share."""
    numbers = (group.fact(name) for name in ("bits", "tokens", "steps", "parameters"))
    seeds = str(len(group.results))
    return [group.name, seeds, *("—" if n is None else f"{n:,.0f}" for n in numbers)]
