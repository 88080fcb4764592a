"""What a run of `probseq generate diffusion` says: orders of noise, matched levels, one frame.

Everything said here is a function of one run's numbers. "Clearly" means that Welch's t-test (5%)
over the seeds tells two means apart; where standard errors overlap it never does.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from probseq_apps.report.arm_results import ArmGroup, Measure, Result, generation_name
from probseq_apps.report.arm_tables import digits_of
from probseq_apps.report.arm_verdict import (
    ONE_SEED,
    Order,
    Other,
    comparison,
    number_text,
)
from probseq_apps.report.diffusion_results import (
    BASE,
    INTERMEDIATE,
    LAST,
    Arm,
    diffusion_arms,
    frame_arms,
    lengths_of,
    of_kind,
    total_steps,
)

State = Literal[
    "survives", "fails matched", "no matched", "no gain", "worse", "undecided", "no comparison"
]

# Models whose errors are more than so many times the exact ones are no test of the theorem.
_FAR = 2.0
_SHORT: dict[str | None, str] = {
    "first-order-noise": "first-order",
    "high-order-noise": "high-order",
    "matched-noise": "matched",
}
_SAID: dict[State, str] = {
    "survives": (
        "The gain of high-order noise survives matched levels: {high} is clearly better than "
        "{matched} too, which has its signal-to-noise ratios."
    ),
    "fails matched": (
        "The gain of high-order noise does not survive matched levels: {high} is not clearly "
        "better than {matched}, first-order noise with its signal-to-noise ratios, so that the "
        "levels may be the whole of it."
    ),
    "no matched": (
        "High-order noise is clearly better than first-order noise; the arm of matched levels was "
        "not run, so that the levels may be the whole of it."
    ),
    "no gain": "No clear difference between high-order and first-order noise.",
    "worse": "High-order noise is clearly worse than first-order noise.",
    "undecided": ONE_SEED,
    "no comparison": "Its first-order arm was not run.",
}


class Verdict(NamedTuple):
    """What a run says about high-order noise in videos of one length.

    Attributes:
        measure: label of the number that it is about.
        frames: T.
        state: the verdict.
        text: the verdict with its numbers, for readers.
    """

    measure: str
    frames: int
    state: State
    text: str


def diffusion_notes(results: Sequence[Result]) -> list[str]:
    """All that a run's numbers say.

    Args:
        results: of all arms and seeds.
    """
    arms, errors = diffusion_arms(results), frame_arms(results)
    notes: list[str] = []
    for measure in (INTERMEDIATE, LAST):
        notes += [verdict.text for verdict in order_verdicts(errors, measure)]
    notes += exact_notes(errors)
    distance = fd_measure(results)
    notes += [verdict.text for verdict in order_verdicts(arms, distance)]
    return notes + image_notes(arms, distance) + blur_notes(arms, distance)


def fd_measure(results: Sequence[Result]) -> Measure:
    """The distance of samples from the training images.

    Args:
        results: of all arms and seeds.
    """
    name = f"{generation_name(results, 'FD')} of the last frame"
    return Measure(name, "", "lower", ("generation", "fd"))


def order_verdicts(arms: Sequence[Arm], measure: Measure) -> list[Verdict]:
    """High-order against first-order noise, and against matched levels, for each length of videos.

    Args:
        arms: all, by what `measure` is a number of.
        measure: the number to judge by.
    """
    groups = [arm.group for arm in arms]
    digits = digits_of(groups, measure)
    found: list[Verdict] = []
    for frames in lengths_of(arms):
        high = _measured(of_kind(arms, frames, "high-order-noise"), measure)
        first = _measured(of_kind(arms, frames, "first-order-noise"), measure)
        matched = _measured(of_kind(arms, frames, "matched-noise"), measure)
        if high is not None and (first is not None or matched is not None):
            found.append(_order_verdict(measure, digits, frames, high, first, matched))
    return found


def exact_notes(errors: Sequence[Arm]) -> list[str]:
    """How errors of the intermediate frames stand to the exact ones of Gaussian images.

    Args:
        errors: all arms, as `frame_arms` gives them.
    """
    notes: list[str] = []
    for frames in lengths_of(errors):
        known = {
            arm.corruption: both
            for arm in errors
            if arm.frames == frames and (both := _model_and_exact(arm)) is not None
        }
        if not known:
            continue
        told = [f"{_SHORT[kind]} {model / exact:.2f}" for kind, (model, exact) in known.items()]
        note = (
            f"Intermediate frames, T = {frames}: errors of models are multiples of the exact ones "
            f"of Gaussian images with the data's covariance, {', '.join(told)}."
        )
        far = any(model > _FAR * exact for model, exact in known.values())
        high = known.pop("high-order-noise", None)
        if high is not None and known:
            falls = [
                f"{_apart(high[1], exact)} those of {_SHORT[kind]} when exact and "
                f"{_apart(high[0], model)} in models"
                for kind, (model, exact) in known.items()
            ]
            note += f" Errors of high-order are {', '.join(falls)}."
        if far:
            note += (
                " Models so far above the exact errors are not the best predictors that the "
                "theorem supposes (remark 5.4.2): their differences say little about it."
            )
        notes.append(note)
    return notes


def image_notes(arms: Sequence[Arm], measure: Measure) -> list[str]:
    """Videos against one frame, at the steps that each took.

    Args:
        arms: all.
        measure: the distance of samples.
    """
    digits = digits_of([arm.group for arm in arms], measure)
    measured = [arm for arm in arms if _measured(arm.group, measure)]
    images = [arm.group for arm in measured if arm.corruption is None]
    base = [group for group in images if group.name == BASE]
    pairs = [(group, base) for group in images if group.name != BASE]
    pairs += [(arm.group, images) for arm in measured if arm.corruption is not None]
    return [_against(group, others, measure, digits) for group, others in pairs if others]


def blur_notes(arms: Sequence[Arm], measure: Measure) -> list[str]:
    """High-order blur against high-order noise.

    Args:
        arms: all.
        measure: the distance of samples.
    """
    digits = digits_of([arm.group for arm in arms], measure)
    notes: list[str] = []
    for frames in lengths_of(arms):
        blur = _measured(of_kind(arms, frames, "high-order-blur"), measure)
        noise = _measured(of_kind(arms, frames, "high-order-noise"), measure)
        if blur is not None and noise is not None:
            notes.append(_against(blur, [noise], measure, digits))
    return notes


def _order_verdict(
    measure: Measure,
    digits: int,
    frames: int,
    high: ArmGroup,
    first: ArmGroup | None,
    matched: ArmGroup | None,
) -> Verdict:
    own = high.summary(measure.path)
    others = [group for group in (first, matched) if group is not None]
    compared, orders = comparison(
        own, [Other(group.name, group.summary(measure.path)) for group in others], measure, digits
    )
    state = _state(orders, has_first=first is not None, has_matched=matched is not None)
    said = _SAID[state].format(high=high.name, matched="" if matched is None else matched.name)
    text = (
        f"{measure.label}, T = {frames}: {high.name} {number_text(own, measure, digits)} is "
        f"{compared}. {said}"
    )
    return Verdict(measure.label, frames, state, text)


def _state(orders: Sequence[Order], *, has_first: bool, has_matched: bool) -> State:
    """The verdict.

    Args:
        orders: how high-order noise stands to first-order noise and to matched levels, as far as
            they were run.
        has_first: whether the former was run.
        has_matched: whether the latter was run.
    """
    if "undecided" in orders:
        return "undecided"
    if not has_first:
        return "no comparison"
    if orders[0] == "worse":
        return "worse"
    if orders[0] == "no clear difference":
        return "no gain"
    if not has_matched:
        return "no matched"
    return "survives" if orders[1] == "better" else "fails matched"


def _model_and_exact(arm: Arm) -> tuple[float, float] | None:
    model = arm.group.summary(INTERMEDIATE.path).mean
    exact = arm.group.summary(("exact_intermediate",)).mean
    return None if model is None or not exact else (model, exact)


def _apart(error: float, other: float) -> str:
    """How far an error is below or above another."""
    share = error / other - 1
    return f"{abs(share):.1%} {'below' if share < 0 else 'above'}"


def _against(group: ArmGroup, others: Sequence[ArmGroup], measure: Measure, digits: int) -> str:
    """How an arm stands to others, with the steps of each, and what one seed says."""
    own = group.summary(measure.path)
    compared, orders = comparison(
        own,
        [Other(o.name, o.summary(measure.path), f" ({_spent(o)})") for o in others],
        measure,
        digits,
    )
    undecided = f" {ONE_SEED}" if "undecided" in orders else ""
    return (
        f"{measure.label}: {group.name} {number_text(own, measure, digits)} ({_spent(group)}) is "
        f"{compared}.{undecided}"
    )


def _spent(group: ArmGroup) -> str:
    """Denoising steps and evaluations behind a sample."""
    return f"{total_steps(group):,} steps, {group.fact('generation', 'evaluations'):,} evaluations"


def _measured(group: ArmGroup | None, measure: Measure) -> ArmGroup | None:
    """The group, where all its seeds have the number."""
    if group is None or group.summary(measure.path).mean is None:
        return None
    return group
