"""The table of `probseq generate hvae`."""

from collections.abc import Sequence

from probseq_apps.report.arm_results import Measure, Result, arms_of, generation_name
from probseq_apps.report.arm_tables import Fact, Table, arm_table

LEGEND = (
    "mean ± standard error over the seeds; n: how many seeds. heat: the encoder blurs and is not "
    "trained; learned: the encoder is trained, too; the decoder is the same. Noise: standard "
    "deviation of the encoder's, for images in -1..1. IS and FID: inception score and Fréchet "
    "distance by Inception's features; IS(NAME) and FD(NAME): by other features, a classifier's "
    "being one for all arms and seeds. The score is a mean over the splits, and FD is from the "
    "training images; a row of real images has those of the test part. Both depend on the number "
    "of samples. Bound: negative evidence lower bound in nats per dimension, mean over the test "
    "images; that of heat lacks its prior's constant, and densities differ with the noise, so that "
    "the two arms' don't compare. — not defined, or not measured."
)
BOUND = Measure("bound (nats/dim)", "", "lower", ("bound",))


def hvae_table(results: Sequence[Result], real: Result) -> Table:
    """Both arms, and real images.

    Args:
        results: of all arms and seeds.
        real: of the test images as if they were samples.
    """
    facts: dict[str, Fact] = {
        "samples": lambda arm: arm.fact("generation", "num_samples"),
        "splits": lambda arm: arm.fact("generation", "is_splits"),
        "levels": lambda arm: arm.fact("levels"),
        "noise": lambda arm: arm.fact("noise_std"),
        "parameters": lambda arm: arm.fact("parameters"),
        "steps": lambda arm: arm.fact("steps"),
        "evaluations": lambda arm: arm.fact("generation", "evaluations"),
    }
    return arm_table(arms_of(results), real, hvae_measures(results), facts)


def score_measure(results: Sequence[Result]) -> Measure:
    """The inception score of samples.

    Args:
        results: of all arms and seeds.
    """
    return Measure(generation_name(results, "IS"), "", "higher", ("generation", "is"))


def distance_measure(results: Sequence[Result]) -> Measure:
    """The Fréchet distance of samples from the training images.

    Args:
        results: of all arms and seeds.
    """
    return Measure(generation_name(results, "FD"), "", "lower", ("generation", "fd"))


def hvae_measures(results: Sequence[Result]) -> list[Measure]:
    """Numbers of the table.

    Args:
        results: of all arms and seeds.
    """
    return [score_measure(results), distance_measure(results), BOUND]
