"""What comes first of a comparison: a row a model with the metrics that decide, and sentences."""

from collections.abc import Mapping, Sequence

from probseq.summary import Summary, judge
from probseq_apps.report.tables import Measure, Table, summary_table

# The area under the ROC curve of a guess.
_GUESSES = 0.5

# Columns: of each the summary over the seeds by the row's title.
Lead = Mapping[Measure, Mapping[str, Summary]]


def lead_table(columns: Lead) -> Table:
    """Return one row a model; where a column lacks it, a dash."""
    missing, titles = Summary((), None, None), dict.fromkeys(n for c in columns.values() for n in c)
    rows = {title: [column.get(title, missing) for column in columns.values()] for title in titles}
    counts = {title: max(len(cell.values) for cell in cells) for title, cells in rows.items()}
    return summary_table("", list(columns), rows, counts, decimals=3)


def outcome(columns: Lead, plain: Sequence[str] = (), of: str = "seeds") -> list[str]:
    """Return what came out, a sentence for each of the first two metrics, and one on baselines.

    Detection that is worse than guesses has one too.

    A model leads where the 95% interval of the paired differences over the seeds is above 0.

    Plain are the titles of the rows that anybody would try first; `of` says what the values of a
    summary are.
    """
    sentences: list[str] = []
    for measure, rows in [item for item in columns.items() if item[0].direction][:2]:
        sign = 1.0 if measure.direction == "higher" else -1.0
        known = {name: row.mean for name, row in rows.items() if row.mean is not None}
        ranked = sorted(known, key=lambda name: -sign * known[name])
        if len(ranked) < 2:
            continue
        first, second = ranked[:2]
        sentences.append(_comparison(measure.label, first, second, rows, sign, of))
        usual = next((name for name in ranked if name in plain), None)
        if usual not in (None, first, second):
            sentences.append(_comparison(measure.label, first, usual, rows, sign, of))
    for measure, rows in columns.items():
        worse = [
            name
            for name, row in rows.items()
            if row.mean is not None
            and row.interval is not None
            and row.mean + row.interval < _GUESSES
        ]
        if "AUROC" in measure.label and worse:
            who = "all rows" if len(worse) == len(rows) else ", ".join(worse)
            sentences.append(f"{measure.label}: {who} below {_GUESSES} (95%), worse than guesses.")
    return sentences


def _comparison(
    label: str, first: str, second: str, rows: Mapping[str, Summary], sign: float, of: str
) -> str:
    """Return a sentence on two rows, by the differences of the seeds that both have."""
    ours, theirs = rows[first], rows[second]
    numbers = f"{label}: {first} {ours.mean:z.3f} against {second} {theirs.mean:z.3f}."
    if len(ours.values) != len(theirs.values):
        return f"{numbers} They have different {of}."
    differences = [
        sign * (a - b)
        for a, b in zip(ours.values, theirs.values, strict=True)
        if a is not None and b is not None
    ]
    if len(differences) < 2:
        return f"{numbers} Of one seed nothing is decided."
    if not any(differences):
        return f"{numbers} They are equal in all {of}."
    gain = judge(differences, 0.0)
    margin = f"{abs(gain.summary.mean or 0.0):.3f} ± {gain.summary.interval or 0.0:.3f}"
    verdict = "The first leads by" if gain.verdict == "holds" else "Not decided: they differ by"
    return f"{numbers} {verdict} {margin} (95%, {len(differences):,} {of})."
