"""How one arm stands to another by a number over the seeds, in words.

"Clearly" means that Welch's t-test (5%) over the seeds tells two means apart.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from probseq_apps.report.arm_results import Measure
from probseq_apps.report.summary import Summary, best_names

Order = Literal["better", "worse", "no clear difference", "undecided"]

ONE_SEED = "One seed has no error: nothing is decided."


class Other(NamedTuple):
    """What an arm is compared with.

    Attributes:
        name: of the other arm.
        summary: its number.
        about: what is said behind the number, with a space before; may be empty.
    """

    name: str
    summary: Summary
    about: str = ""


def comparison(
    own: Summary, others: Sequence[Other], measure: Measure, digits: int
) -> tuple[str, list[Order]]:
    """How an arm stands to others: words with numbers, and the order of each.

    Args:
        own: of the arm in question.
        others: what it is compared with.
        measure: the number.
        digits: decimals that are shown.
    """
    orders: list[Order] = [order_of(own, other.summary, measure) for other in others]
    told = ", ".join(
        f"{relation_text(own, other.summary, order, digits)} {other.name} "
        f"{number_text(other.summary, measure, digits)}{other.about}"
        for other, order in zip(others, orders, strict=True)
    )
    return told, orders


def order_of(first: Summary, second: Summary, measure: Measure) -> Order:
    """How the first stands to the second.

    Args:
        first: the one in question.
        second: what it is compared with.
        measure: tells which end is good.

    Returns:
        `undecided` where either has fewer than two seeds.
    """
    if first.standard_error is None or second.standard_error is None:
        return "undecided"
    best = best_names({"first": first, "second": second}, measure.direction)
    if not best:
        return "no clear difference"
    return "better" if "first" in best else "worse"


def relation_text(own: Summary, other: Summary, order: Order, digits: int) -> str:
    """How the first stands to the other, in words before the other's name.

    Args:
        own: of the first.
        other: of the one that it is compared with.
        order: how the first stands to it; undecided says no more than which number is higher.
        digits: decimals that are shown.
    """
    if order == "undecided":
        mine, theirs = (round(summary.mean or 0.0, digits) for summary in (own, other))
        # Numbers that look alike are not told to differ.
        if mine == theirs:
            return "the same as"
        return "higher than" if mine > theirs else "lower than"
    if order == "no clear difference":
        return "not clearly different from"
    return f"clearly {order} than"


def number_text(summary: Summary, measure: Measure, digits: int) -> str:
    """A mean with its standard error and unit."""
    error = summary.standard_error
    around = "" if error is None else f"±{error:.{digits}f}"
    return f"{summary.mean:.{digits}f}{around}{measure.unit}"
