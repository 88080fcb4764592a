"""What a run of `probseq generate hvae` says: whether frames that are given help.

Everything said here is a function of one run's numbers. "Clearly" means that Welch's t-test (5%)
over the seeds tells two means apart; where standard errors overlap it never does.
"""

from collections.abc import Sequence

from probseq_apps.report.arm_results import Measure, Result, arms_of, value_of
from probseq_apps.report.arm_tables import digits_of
from probseq_apps.report.arm_verdict import ONE_SEED, Order, Other, comparison, number_text
from probseq_apps.report.hvae_tables import distance_measure, score_measure

HEAT, LEARNED = "heat", "learned"
# So many samples in ten splits are usual (Salimans et al., 2016).
_USUAL = 50_000

_SAID: dict[Order, str] = {
    "better": "The encoder of the heat equation is clearly better than the learned one.",
    "worse": "The encoder of the heat equation is clearly worse than the learned one.",
    "no clear difference": "These runs show no clear difference between the encoders.",
    "undecided": ONE_SEED,
}


def hvae_notes(results: Sequence[Result], real: Result) -> list[str]:
    """All that a run's numbers say.

    Args:
        results: of all arms and seeds.
        real: of the test images as if they were samples.
    """
    notes = [
        note
        for measure in (score_measure(results), distance_measure(results))
        for note in encoder_notes(results, measure)
    ]
    return notes + score_notes(results, real)


def encoder_notes(results: Sequence[Result], measure: Measure) -> list[str]:
    """The heat equation's encoder against the learned one; nothing where one alone was run.

    Args:
        results: of all arms and seeds.
        measure: the number to judge by.
    """
    groups = {group.name: group for group in arms_of(results)}
    if not {HEAT, LEARNED} <= groups.keys():
        return []
    own, other = (groups[name].summary(measure.path) for name in (HEAT, LEARNED))
    if own.mean is None or other.mean is None:
        return []
    digits = digits_of(list(groups.values()), measure)
    compared, (order,) = comparison(own, [Other(LEARNED, other)], measure, digits)
    told = f"{measure.label}: {HEAT} {number_text(own, measure, digits)} is {compared}."
    return [f"{told} {_SAID[order]}"]


def score_notes(results: Sequence[Result], real: Result) -> list[str]:
    """What the inception scores are of, and what they can't be compared with.

    Args:
        results: of all arms and seeds.
        real: of the test images as if they were samples.
    """
    first = next((r for r in results if value_of(r, ("generation", "is")) is not None), None)
    if first is None:
        return [
            "No inception score: the features have no classes. Labels, or Inception's weights, "
            "give one."
        ]
    measure = score_measure(results)
    count, splits = (int(first["generation"][key]) for key in ("num_samples", "is_splits"))
    parts = "as one part" if splits == 1 else f"as a mean over {splits} splits"
    notes = [
        f"{measure.label} is of {count:,} samples {parts}. The score of few samples is biased "
        "downwards, the more so the more splits: scores compare at equal numbers of both, and by "
        "the same classifier only."
    ]
    if count < _USUAL:
        notes[0] += f" Usual are {_USUAL:,} samples in ten splits."
    score = value_of(real, ("is",))
    if score is not None:
        other = int(real["num_samples"])
        unequal = "" if other == count else ", another number than of the samples"
        notes.append(f"Real images have {measure.label} {score:.3f} ({other:,} of them{unequal}).")
    return notes
