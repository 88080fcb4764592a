"""Tables of `probseq generate`: tokenizers and their samples, diffusion models, HVAEs."""

from collections.abc import Callable, Mapping, Sequence

from probseq_apps.report.results import (
    REAL,
    Group,
    Result,
    digits_of,
    fd_name,
    frame_groups,
    frames_of,
    groups_of,
    is_name,
    lengths_of,
    priors_of,
    sample_measures,
    value_of,
)
from probseq_apps.report.summary import summarise
from probseq_apps.report.tables import (
    DASH,
    Measure,
    Table,
    Writer,
    fact_text,
    percent,
    plain,
    with_error,
)

PSNR = Measure("PSNR", "higher", ("reconstruction", "psnr"), " dB")
INTERMEDIATE = Measure(
    "Squared error of the intermediate frames, in thousandths", "lower", ("intermediate",)
)
LAST = Measure("Squared error of the image, in thousandths", "lower", ("last",))
BOUND = Measure("bound (nats/dim)", "lower", ("bound",))

TOKENIZER_LEGEND = (
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
DIFFUSION_LEGEND = (
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
HVAE_LEGEND = (
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

# Where distances of other rows are from the test images.
_REAL_DISTANCE = "real images: test part from training part"
_WHOLE = plain(0)


def reconstruction_table(
    results: Sequence[Result], floors: Sequence[Result], real: Result
) -> Table:
    """Return all arms with both stems, patch k-means at equal tokens, and real images.

    Args:
        results: of all arms, stems and seeds.
        floors: of patch k-means, in the same form.
        real: of the test images as if they were samples.
    """
    trained = groups_of(results)
    groups = [*trained, *groups_of(floors)]
    distance = Measure(fd_name(results), "lower", ("reconstruction", "fd"))
    measures = [
        Measure("PSNR (dB)", "higher", PSNR.path),
        Measure("all frames (dB)", "higher", ("reconstruction", "psnr_all_frames")),
        distance,
    ]
    writers = [with_error(digits_of(trained, measure.path)) for measure in measures]
    heads = ["tokenizer", "n", "bits", "tokens", "steps", "parameters"]
    heads += [*(measure.head for measure in measures), "usage", "perplexity"]
    columns = [_column(groups, m.path, write) for m, write in zip(measures, writers, strict=True)]
    columns.append(_column(groups, ("reconstruction", "usage"), percent))
    columns.append(_column(groups, ("reconstruction", "perplexity"), _WHOLE))
    facts = ("bits", "tokens", "steps", "parameters")
    rows = _rows(groups, [*(_facts(groups, name) for name in facts), *columns])
    rows.append(_real_row(_REAL_DISTANCE, real, heads, {distance.head: ("fd", writers[2])}))
    return Table(heads, rows)


def generation_table(results: Sequence[Result], real: Result) -> Table | None:
    """Return samples under each prior, and real images; None where no prior was trained.

    Args:
        results: of all arms, stems and seeds.
        real: of the test images as if they were samples.
    """
    priors = priors_of(results)
    if not priors:
        return None
    groups = groups_of([result for result in results if result.get("generation")])
    heads = ["samples", "n", "bits", "tokens"]
    shown: dict[str, tuple[str, Writer]] = {}
    columns = [_facts(groups, name) for name in ("bits", "tokens")]
    for prior in priors:
        for measure in (
            Measure(f"{prior}: {fd_name(results)}", "lower", ("generation", prior, "fd")),
            Measure(f"{prior}: {is_name(results)}", "higher", ("generation", prior, "is")),
            Measure(f"{prior}: nats per token", "lower", ("generation", prior, "nats_per_token")),
            Measure(f"{prior}: samples", None, ("generation", prior, "num_samples")),
        ):
            key = measure.path[-1]
            if key == "is" and all(value_of(result, measure.path) is None for result in results):
                continue
            digits = digits_of(groups_of(results), measure.path)
            write = _WHOLE if measure.direction is None else with_error(digits)
            heads.append(measure.head)
            columns.append(_column(groups, measure.path, write))
            shown[measure.head] = (key, write)
    return Table(heads, [*_rows(groups, columns), _real_row(REAL, real, heads, shown)])


def diffusion_table(results: Sequence[Result], real: Result) -> Table:
    """Return all arms, and real images.

    Args:
        results: of all arms and seeds.
        real: of the test images as if they were samples.
    """
    facts: dict[str, Callable[[Group], object]] = {
        "T": lambda arm: arm.fact("frames"),
        "C": lambda arm: arm.fact("context"),
        "parameters": lambda arm: arm.fact("parameters"),
        "steps": lambda arm: arm.fact("steps"),
        "sampler": lambda arm: arm.fact("generation", "sampler"),
        "sampling steps": total_steps,
        "evaluations": lambda arm: arm.fact("generation", "evaluations"),
        "samples": lambda arm: arm.fact("generation", "num_samples"),
    }
    return _model_table(groups_of(results), real, diffusion_measures(results), facts)


def hvae_table(results: Sequence[Result], real: Result) -> Table:
    """Return both arms, and real images.

    Args:
        results: of all arms and seeds.
        real: of the test images as if they were samples.
    """
    facts: dict[str, Callable[[Group], object]] = {
        "samples": lambda arm: arm.fact("generation", "num_samples"),
        "splits": lambda arm: arm.fact("generation", "is_splits"),
        "levels": lambda arm: arm.fact("levels"),
        "noise": lambda arm: arm.fact("noise_std"),
        "parameters": lambda arm: arm.fact("parameters"),
        "steps": lambda arm: arm.fact("steps"),
        "evaluations": lambda arm: arm.fact("generation", "evaluations"),
    }
    distance, score = sample_measures(results)
    return _model_table(groups_of(results), real, [score, distance, BOUND], facts)


def frame_tables(results: Sequence[Result]) -> list[Table]:
    """Return errors of single frames, a table for each length of videos that has them.

    Args:
        results: of all arms and seeds.
    """
    groups = frame_groups(results)
    return [
        _frame_table([group for group in groups if group.fact("frames") == length])
        for length in lengths_of(groups)
    ]


def diffusion_measures(results: Sequence[Result]) -> list[Measure]:
    """Return numbers of samples and of likelihood that any result has.

    Args:
        results: of all arms and seeds.
    """
    distance, score = sample_measures(results)
    found = [distance]
    if any(group.summary(score.path).mean is not None for group in groups_of(results)):
        found.append(score)
    if any(result.get("bits_per_dim") is not None for result in results):
        found.append(Measure("bits/dim", "lower", ("bits_per_dim",)))
    return found


def total_steps(group: Group) -> int:
    """Return the denoising steps that make an image: those of a stage, times the stages.

    The first C frames are one stage, each later frame is one.

    Args:
        group: results of an arm.
    """
    frames, context = group.fact("frames"), group.fact("context")
    stages = 1 if frames == 1 else frames - context + 1
    return stages * group.fact("generation", "sampling_steps")


def _model_table(
    groups: Sequence[Group],
    real: Result,
    measures: Sequence[Measure],
    facts: Mapping[str, Callable[[Group], object]],
) -> Table:
    """Return all arms of trained models, and real images.

    Args:
        groups: the arms.
        real: of the test images as if they were samples.
        measures: numbers over the seeds.
        facts: further columns by their heads; before the seconds.
    """
    seconds = {"training s": ("training_seconds",), "sampling s": ("generation", "seconds")}
    heads = ["arm", "n", *(measure.head for measure in measures), *facts, *seconds]
    writers = [with_error(digits_of(groups, measure.path)) for measure in measures]
    columns = [_column(groups, m.path, write) for m, write in zip(measures, writers, strict=True)]
    columns += [[fact_text(fact(group)) for group in groups] for fact in facts.values()]
    columns += [_column(groups, path, _WHOLE) for path in seconds.values()]
    shown: dict[str, tuple[str, Writer]] = {
        measure.head: (measure.path[1], write)
        for measure, write in zip(measures, writers, strict=True)
        if measure.path[0] == "generation"
    }
    shown |= {"samples": ("num_samples", _WHOLE), "splits": ("is_splits", _WHOLE)}
    return Table(heads, [*_rows(groups, columns), _real_row(REAL, real, heads, shown)])


def _frame_table(groups: Sequence[Group]) -> Table:
    length = groups[0].fact("frames")
    frames = sorted({frame for group in groups for frame in frames_of(group)})
    places: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
        (
            "image" if frame == length else f"frame {frame}",
            ("model", str(frame)),
            ("exact", str(frame)),
        )
        for frame in frames
    ]
    if len(frames) > 2:
        places.insert(0, ("mean before the image", INTERMEDIATE.path, ("exact_intermediate",)))
    heads = [f"errors of frames, T = {length}", "n"]
    columns: list[list[str]] = []
    for label, model, exact in places:
        digits = digits_of(groups, model)
        heads += [f"{label} ↓", "exact"]
        columns.append(_column(groups, model, with_error(digits)))
        # A property of the data: the same for all seeds.
        columns.append(_column(groups, exact, plain(digits)))
    heads += ["images", "samples"]
    columns += [_facts(groups, name) for name in ("num_images", "num_samples")]
    return Table(heads, _rows(groups, columns))


def _column(groups: Sequence[Group], path: Sequence[str], write: Writer) -> list[str]:
    return [write(group.summary(path)) for group in groups]


def _facts(groups: Sequence[Group], name: str) -> list[str]:
    values = (group.fact(name) for group in groups)
    return [DASH if value is None else f"{value:,.0f}" for value in values]


def _rows(groups: Sequence[Group], columns: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return name, number of seeds and cells of each group."""
    return [
        [group.name, str(len(group.results)), *cells]
        for group, *cells in zip(groups, *columns, strict=True)
    ]


def _real_row(
    name: str, real: Result, heads: Sequence[str], shown: Mapping[str, tuple[str, Writer]]
) -> list[str]:
    """Return the row of real images.

    Args:
        name: of the row.
        real: what was measured of them.
        heads: of all columns; the second is the number of seeds, which they don't have.
        shown: of the columns that they have, the number's key and its writer.
    """
    row = [name, DASH]
    for head in heads[2:]:
        key, write = shown.get(head, ("", _WHOLE))
        row.append(write(summarise([value_of(real, (key,))])))
    return row
