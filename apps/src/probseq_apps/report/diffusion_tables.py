"""Tables of `probseq generate diffusion`: all arms, and errors of single frames."""

from collections.abc import Sequence

from probseq_apps.report.arm_results import Measure, Result, arms_of, generation_name
from probseq_apps.report.arm_tables import (
    Fact,
    Table,
    arm_table,
    column,
    digits_of,
    fact_text,
    with_error,
)
from probseq_apps.report.diffusion_results import (
    INTERMEDIATE,
    Arm,
    frame_arms,
    frames_of,
    lengths_of,
    total_steps,
)

LEGEND = (
    "mean ± standard error over the seeds; n: how many seeds. T: frames of a video, the last being "
    "the image; C: frames that a frame is generated from. FID and IS: Fréchet distance and "
    "inception score by Inception's features; FD(NAME) and IS(NAME): by other features; of last "
    "frames, distances from the training images. A row of real images has the test part's distance "
    "from the training part. Both depend on the number of samples, and the score on its splits. "
    "Bits/dim: bound on the test images' bits per number of a pixel, of image models alone. "
    "Sampling steps: denoising steps that make an image, all stages of a video together; "
    "evaluations: frames that pass through the network for it. — not defined, or not measured."
)
FRAME_LEGEND = (
    "Errors of single frames: squared error per pixel, in thousandths, of the model's mean of a "
    "frame given the true frames before it (images are in -1..1; corrected for the number of "
    "samples behind the mean). Exact: the least error there can be for Gaussian images with the "
    "data's covariance, the error of the best linear prediction; what is not linear in images can "
    "lie below. The frames of different corruptions have different noise: errors of first-order "
    "and high-order are of different targets, those of high-order and matched of equal "
    "signal-to-noise ratios."
)


def arms_table(results: Sequence[Result], real: Result) -> Table:
    """All arms, and real images.

    Args:
        results: of all arms and seeds.
        real: of the test images as if they were samples.
    """
    facts: dict[str, Fact] = {
        "T": lambda arm: arm.fact("frames"),
        "C": lambda arm: arm.fact("context"),
        "parameters": lambda arm: arm.fact("parameters"),
        "steps": lambda arm: arm.fact("steps"),
        "sampler": lambda arm: arm.fact("generation", "sampler"),
        "sampling steps": total_steps,
        "evaluations": lambda arm: arm.fact("generation", "evaluations"),
        "samples": lambda arm: arm.fact("generation", "num_samples"),
    }
    return arm_table(arms_of(results), real, quality_measures(results), facts)


def frame_tables(results: Sequence[Result]) -> list[Table]:
    """Errors of single frames, a table for each length of videos that has them.

    Args:
        results: of all arms and seeds.
    """
    arms = frame_arms(results)
    return [_frame_table([arm for arm in arms if arm.frames == n]) for n in lengths_of(arms)]


def quality_measures(results: Sequence[Result]) -> list[Measure]:
    """Numbers of samples and of likelihood that any result has.

    Args:
        results: of all arms and seeds.
    """
    found = [Measure(generation_name(results, "FD"), "", "lower", ("generation", "fd"))]
    if any(group.summary(("generation", "is")).mean is not None for group in arms_of(results)):
        found.append(Measure(generation_name(results, "IS"), "", "higher", ("generation", "is")))
    if any(result.get("bits_per_dim") is not None for result in results):
        found.append(Measure("bits/dim", "", "lower", ("bits_per_dim",)))
    return found


def _frame_table(arms: Sequence[Arm]) -> Table:
    groups = [arm.group for arm in arms]
    frames = sorted({frame for arm in arms for frame in frames_of(arm)})
    places: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
        (
            "image" if frame == arms[0].frames else f"frame {frame}",
            ("model", str(frame)),
            ("exact", str(frame)),
        )
        for frame in frames
    ]
    if len(frames) > 2:
        mean = ("mean before the image", INTERMEDIATE.path, ("exact_intermediate",))
        places.insert(0, mean)
    heads = [f"errors of frames, T = {arms[0].frames}", "n"]
    columns: list[list[str]] = []
    for label, model, exact in places:
        digits = digits_of(groups, INTERMEDIATE._replace(path=model))
        heads += [f"{label} ↓", "exact"]
        columns.append(column(groups, model, with_error(digits)))
        # A property of the data: the same for all seeds.
        columns.append(column(groups, exact, lambda mean, _, digits=digits: f"{mean:.{digits}f}"))
    heads += ["images", "samples"]
    columns += [
        [fact_text(group.fact(name)) for group in groups] for name in ("num_images", "num_samples")
    ]
    rows = [
        [group.name, str(len(group.results)), *cells]
        for group, *cells in zip(groups, *columns, strict=True)
    ]
    return Table(heads, rows)
