"""Whether the gain of pseudo videos survives a plain stem and controls of equal bits.

Everything said here is a function of one run's numbers. "Clearly" means that Welch's t-test (5%)
over the seeds tells two means apart; where standard errors overlap it never does.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from probseq_apps.report.arm_results import Measure, Result
from probseq_apps.report.arm_verdict import (
    ONE_SEED,
    Order,
    Other,
    comparison,
    number_text,
    order_of,
)
from probseq_apps.report.generate_results import (
    BASE,
    FLOOR,
    Group,
    decimals,
    fd_name,
    groups_of,
    priors_of,
)

State = Literal["survives", "fails controls", "no controls", "no gain", "worse", "undecided"]

_GAINS: tuple[State, ...] = ("survives", "fails controls", "no controls")
_PSNR = Measure("PSNR", " dB", "higher", ("reconstruction", "psnr"))
# A difference in dB that two decimals don't show.
_SAME = 0.005


class Verdict(NamedTuple):
    """What a run says about the videos of one length.

    Attributes:
        measure: label of the number that it is about.
        arm: the videos' arm.
        stem: of the tokenizers.
        state: the verdict.
        text: the verdict with its numbers, for readers.
    """

    measure: str
    arm: str
    stem: str
    state: State
    text: str


def verdict_notes(results: Sequence[Result], floors: Sequence[Result]) -> list[str]:
    """All that a run's numbers say about its videos.

    Args:
        results: of all arms, stems and seeds.
        floors: of patch k-means, with the names of the arms whose tokens it equals.
    """
    notes: list[str] = []
    for measure in _measures(results):
        found = verdicts(results, measure)
        notes += [verdict.text for verdict in found]
        notes += stem_notes(found)
    return [*notes, *floor_notes(results, floors)]


def verdicts(results: Sequence[Result], measure: Measure) -> list[Verdict]:
    """A verdict for each stem and each length of videos that has the number.

    Args:
        results: of all arms, stems and seeds.
        measure: the number to judge by.
    """
    groups = [g for g in groups_of(results) if g.summary(measure.path).mean is not None]
    digits = decimals(results, measure.path)
    found: list[Verdict] = []
    for stem in dict.fromkeys(group.stem for group in groups):
        own = [group for group in groups if group.stem == stem]
        base = next((group for group in own if group.arm == BASE), None)
        for video in own:
            if video.is_video and base is not None:
                controls = [g for g in own if g.is_control and _of_length(g, video)]
                found.append(_verdict(measure, digits, video, base, controls))
    return found


def stem_notes(found: Sequence[Verdict]) -> list[str]:
    """Whether gains depend on the stem; nothing where one stem alone was run.

    Args:
        found: the verdicts of one measure.
    """
    notes: list[str] = []
    for arm in dict.fromkeys(verdict.arm for verdict in found):
        states = {v.stem: v.state for v in found if v.arm == arm}
        if not {"plain", "layernorm"} <= states.keys():
            continue
        about = f"{found[0].measure}, both stems: "
        plain, normed = states["plain"] in _GAINS, states["layernorm"] in _GAINS
        if "undecided" in states.values():
            text = f"one seed doesn't decide whether a gain of {arm} depends on the stem."
        elif plain and normed:
            text = f"{arm} is clearly better than {BASE} with either stem."
        elif normed:
            text = (
                f"{arm} is clearly better than {BASE} with the layernorm stem and not with the "
                "plain one: the gain does not survive a plain stem."
            )
        elif plain:
            text = f"{arm} is clearly better than {BASE} with the plain stem only."
        else:
            text = f"{arm} is not clearly better than {BASE} with either stem."
        notes.append(about + text)
    return notes


def floor_notes(results: Sequence[Result], floors: Sequence[Result]) -> list[str]:
    """How the tokenizers' PSNR stands to that of k-means on raw patches at equal tokens.

    Args:
        results: of all arms, stems and seeds.
        floors: of patch k-means, with the names of the arms whose tokens it equals.
    """
    floor = {group.arm: group.summary(_PSNR.path) for group in groups_of(floors)}
    found: dict[str, list[str]] = {place: [] for place in _PLACES}
    for group in groups_of(results):
        own, other = group.summary(_PSNR.path), floor.get(group.arm)
        if own.mean is not None and other is not None and other.mean is not None:
            gap = own.mean - other.mean
            place = _place(order_of(own, other, _PSNR), gap)
            far = "" if abs(gap) < _SAME else f" ({gap:+.2f} dB)"
            found[place].append(f"{group.name}{far}")
    told = [f"{place}: {', '.join(names)}" for place, names in found.items() if names]
    if not told:
        return []
    undecided = any(found[place] for place in _PLACES[:3])
    about = f"PSNR against {FLOOR} at equal tokens. "
    return [f"{about}{'. '.join(told)}.{f' {ONE_SEED}' if undecided else ''}"]


# Of one seed, then of several.
_PLACES = (
    "Below",
    "Less than 0.005 dB away",
    "Above",
    "Clearly below",
    "Not clearly different",
    "Clearly above",
)


def _place(order: Order, gap: float) -> str:
    """Where a tokenizer stands that lies so many dB above another."""
    if order == "undecided":
        below, same, above = _PLACES[:3]
        place = below if gap < 0 else above
    else:
        below, same, above = _PLACES[3:]
        place = {"better": above, "worse": below}.get(order, same)
    return same if abs(gap) < _SAME else place


def _verdict(
    measure: Measure, digits: int, video: Group, base: Group, controls: Sequence[Group]
) -> Verdict:
    own = video.summary(measure.path)
    others = [
        Other(group.arm, group.summary(measure.path), _bits(video, group))
        for group in (base, *controls)
    ]
    compared, orders = comparison(own, others, measure, digits)
    # More bits than the video's prove nothing against it, fewer nothing for it.
    judged: list[tuple[Group, Order]] = [
        (control, order)
        for control, order in zip(controls, orders[1:], strict=True)
        if control.fact("bits") <= video.fact("bits")
    ]
    equal = any(control.fact("bits") == video.fact("bits") for control, _ in judged)
    state = _state(orders[0], [order for _, order in judged], equal=equal)
    said = _SAID[state].format(
        video=video.arm,
        base=base.arm,
        controls=" and ".join(control.arm for control, _ in judged),
        unbeaten=" and ".join(c.arm for c, order in judged if order != "better"),
    )
    text = (
        f"{measure.label}, stem {video.stem}: {video.arm} "
        f"{number_text(own, measure, digits)} is {compared}. {said}"
    )
    return Verdict(measure.label, video.arm, video.stem, state, text)


_SAID: dict[State, str] = {
    "survives": "The gain over {base} survives: {video} is clearly better than {controls} too.",
    "fails controls": (
        "{video} is clearly better than {base}, but the gain does not survive the controls: "
        "it is not clearly better than {unbeaten}."
    ),
    "no controls": (
        "{video} is clearly better than {base}; no control of equal bits was run, so that "
        "bits may be the whole of it."
    ),
    "no gain": "No clear difference between {video} and {base}: these runs show no gain.",
    "worse": "{video} is clearly worse than {base}.",
    "undecided": ONE_SEED,
}


def _state(base: Order, controls: Sequence[Order], *, equal: bool) -> State:
    """The verdict.

    Args:
        base: how the video stands to one frame.
        controls: how it stands to controls of no more bits.
        equal: whether one of them has just as many.
    """
    if base == "undecided" or "undecided" in controls:
        return "undecided"
    if base == "no clear difference":
        return "no gain"
    if base == "worse":
        return "worse"
    if set(controls) - {"better"}:
        return "fails controls"
    return "survives" if equal else "no controls"


def _bits(video: Group, other: Group) -> str:
    """Bits of an arm that are not those of the video."""
    if other.fact("bits") == video.fact("bits"):
        return ""
    return f" ({other.fact('bits'):,.0f} bits, not {video.fact('bits'):,.0f})"


def _of_length(control: Group, video: Group) -> bool:
    """Whether a control belongs to the videos of a length; half patches belong to all."""
    return control.fact("frames") in (1, video.fact("frames"))


def _measures(results: Sequence[Result]) -> list[Measure]:
    distance = fd_name(results)
    found = [
        _PSNR,
        Measure(f"{distance} of reconstructions", "", "lower", ("reconstruction", "fd")),
    ]
    found += [
        Measure(f"{distance} of samples, {prior} prior", "", "lower", ("generation", prior, "fd"))
        for prior in priors_of(results)
    ]
    return found
