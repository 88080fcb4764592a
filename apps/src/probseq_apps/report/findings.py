"""Claims that a comparison tests, and what its numbers say: one sentence and one word each.

Everything said is a function of one run's numbers. "Clearly" means that Welch's t-test (5%) over
the seeds tells two means apart; where standard errors overlap it never does.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from probseq.summary import Order, Summary, order_of
from probseq_apps.report.tables import Measure, decimals_of, with_error

# What becomes of a claim. A gain "survives" where the controls are clearly worse, too, and is
# "matched" where one of them is not; "better" is a gain without controls. One seed has no error:
# "undecided".
Outcome = Literal["survives", "matched", "better", "equal", "worse", "undecided"]

FINDINGS_LEGEND = (
    '"Clearly" means that Welch\'s t-test (5%) over the seeds tells two means apart. A gain '
    "survives where all controls are clearly worse, too, and is matched where one is not; of one "
    "seed nothing is decided."
)


class Claim(NamedTuple):
    """That a row of a table is better than others."""

    better: str  # name of the row
    than: tuple[str, ...]  # the rows that it is said to be better than
    controls: tuple[str, ...] = ()  # rows that have what a gain might be due to
    lesser: tuple[str, ...] = ()  # rows that have less of it: a gain must survive them


class Finding(NamedTuple):
    """What the numbers say about a claim."""

    claim: Claim
    outcome: Outcome
    text: str  # in one sentence, with the numbers


def compare(claim: Claim, rows: Mapping[str, Summary], measure: Measure) -> Finding | None:
    """Compare a row with those that it is claimed to be better than."""
    known = {name: found for name, found in rows.items() if found.mean is not None}
    than = [name for name in claim.than if name in known]
    controls = [name for name in claim.controls if name in known]
    lesser = [name for name in claim.lesser if name in known]
    if claim.better not in known or not (than or controls):
        return None
    if measure.direction is None:
        raise ValueError(f"measure must have a good end, got {measure.label!r} without one")
    own, direction = known[claim.better], measure.direction
    orders: dict[str, Order] = {
        name: order_of(own, known[name], direction) for name in (*than, *controls, *lesser)
    }
    digits = decimals_of([summary.mean for summary in rows.values()])
    write = with_error(digits)
    shown = {name: f"{write(summary)}{measure.unit}" for name, summary in known.items()}
    told = ", ".join(
        f"{_relation(order, own, known[name], measure, digits)} {name} {shown[name]}"
        for name, order in orders.items()
    )
    # Without the rows of the claim, the controls take their place.
    judged: list[Order] = [orders[name] for name in than or controls]
    outcome = _outcome(judged, [orders[name] for name in (*controls, *lesser) if than])
    if outcome == "survives" and not controls:
        outcome = "better"
    text = f"{measure.label}: {claim.better} {shown[claim.better]} is {told} ({outcome})."
    return Finding(claim, outcome, text)


def decides(finding: str) -> bool:
    """Return whether a sentence of `compare` tells means apart."""
    return not finding.endswith(("(undecided).", "(equal)."))


def compare_all(
    claims: Sequence[Claim], rows: Mapping[str, Summary], measure: Measure
) -> list[str]:
    """Return a sentence for each claim whose rows were measured."""
    found = (compare(claim, rows, measure) for claim in claims)
    return [finding.text for finding in found if finding is not None]


def _outcome(than: Sequence[Order], controls: Sequence[Order]) -> Outcome:
    if "undecided" in (*than, *controls):
        return "undecided"
    for order in ("worse", "equal"):
        if order in than:
            return order
    if not controls:
        return "better"
    return "survives" if set(controls) == {"better"} else "matched"


def _relation(order: Order, own: Summary, other: Summary, measure: Measure, digits: int) -> str:
    if order == "equal":
        return "not clearly different from"
    if order == "undecided":
        mine, theirs = (round(summary.mean or 0.0, digits) for summary in (own, other))
        # Numbers that look alike are not told to differ.
        if mine == theirs:
            return "the same as"
        return "higher than" if mine > theirs else "lower than"
    higher = (order == "better") == (measure.direction == "higher")
    return f"clearly {'higher' if higher else 'lower'} than"
