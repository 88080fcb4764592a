"""Reports of `probseq generate`: tables and findings of tokenizers, diffusion models and HVAEs."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from probseq_apps.data.images import GenerationData
from probseq_apps.report.findings import Claim, compare_all
from probseq_apps.report.generate_plots import (
    draw_diffusion,
    draw_hvae,
    draw_tokens,
)
from probseq_apps.report.report import Report
from probseq_apps.report.results import (
    BASE,
    FLOOR,
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
from probseq_apps.report.summary import Summary, summarise
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

_SEEDS = "mean ± standard error over the seeds; n: how many seeds. "
_SCORES = (
    "FID and IS: Fréchet distance and inception score by Inception's features; FD(NAME) and "
    "IS(NAME): by other features, a classifier's being one for all. Distances of samples are from "
    "the training images; a row of real images has those of the test part. Both depend on the "
    "number of samples, and the score on its splits. "
)
_DASH = "— not defined, or not measured."
TOKENIZER_LEGEND = (
    f"{_SEEDS}Bits: of the tokens of an image; arms compare at equal bits only. PSNR: mean over "
    "the test images of each one's PSNR in dB, last frame; all frames: the same over all frames. "
    f"{_SCORES}Distances of reconstructions are from the test images themselves. Usage: share of "
    "the codebook that the test images use; perplexity: exp of the entropy of its use. Nats per "
    "token: mean of -log p over tokens of the test images; of a masked prior over those that its "
    "masks hide alone, which is no likelihood; priors of different kinds or numbers of tokens "
    f"don't compare by it. {_DASH}"
)
DIFFUSION_LEGEND = (
    f"{_SEEDS}T: frames of a video, the last being the image; C: frames that a frame is generated "
    f"from. {_SCORES}Bits/dim: bound on the test images' bits per number of a pixel, of image "
    "models alone. Sampling steps: denoising steps that make an image, all stages of a video "
    f"together; evaluations: frames that pass through the network for it. {_DASH}"
)
FRAME_LEGEND = (
    "Errors of single frames: squared error per pixel, in thousandths, of the model's mean of a "
    "frame given the true frames before it (images are in -1..1; corrected for the number of "
    "samples). Exact: the least error for Gaussian images with the data's covariance; what is not "
    "linear in images can lie below. Frames of first-order and high-order noise are different "
    "targets, those of high-order and matched have equal signal-to-noise ratios."
)
HVAE_LEGEND = (
    f"{_SEEDS}heat: the encoder blurs and is not trained; learned: it is trained, too; the "
    "decoder is the same. Noise: standard deviation of the encoder's, for images in -1..1. "
    f"{_SCORES}Bound: negative evidence lower bound in nats per dimension, mean over the test "
    "images; that of heat lacks its prior's constant, and densities differ with the noise, so that "
    f"the two arms' don't compare. {_DASH}"
)

# Where distances of other rows are from the test images.
_REAL_DISTANCE = "real images: test part from training part"
_WHOLE = plain(0)


def reconstruction_table(
    results: Sequence[Result], floors: Sequence[Result], real: Result
) -> Table:
    """Return all arms with both stems, patch k-means at equal tokens, and real images."""
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
    """Return samples under each prior, and real images; None where no prior was trained."""
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
    """Return all arms, and real images."""
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
    """Return both arms, and real images."""
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
    """Return errors of single frames, a table for each length of videos that has them."""
    groups = frame_groups(results)
    return [
        _frame_table([group for group in groups if group.fact("frames") == length])
        for length in lengths_of(groups)
    ]


def diffusion_measures(results: Sequence[Result]) -> list[Measure]:
    """Return numbers of samples and of likelihood that any result has."""
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
    """Return all arms of trained models, and real images."""
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
    """Return the row of real images."""
    row = [name, DASH]
    for head in heads[2:]:
        key, write = shown.get(head, ("", _WHOLE))
        row.append(write(summarise([value_of(real, (key,))])))
    return row


HVAE_CLAIMS = (Claim("heat", ("learned",)),)
_LEAST_SCORE = 0.5


def tokens_report(
    results: Sequence[Result],
    floors: Sequence[Result],
    real: Result,
    *,
    settings: Mapping[str, Any],
    data: GenerationData,
    recipe: str,
    **drawn: Any,
) -> Report:
    """Return the report of `generate run`."""
    generation = generation_table(results, real)
    return _report(
        "generate",
        {"results": list(results), "floors": list(floors), "real": real},
        settings=settings,
        data=data,
        recipe=recipe,
        title="pseudo videos",
        about=f"corruption `{settings['videos']['corruption']}`",
        tables=[
            reconstruction_table(results, floors, real),
            *([] if generation is None else [generation]),
        ],
        legend=TOKENIZER_LEGEND,
        findings=tokens_findings(results, floors, real),
        plots=lambda plots: draw_tokens(plots, results, floors, real, data, **drawn),
    )


def diffusion_report(
    results: Sequence[Result],
    real: Result,
    *,
    settings: Mapping[str, Any],
    data: GenerationData,
    recipe: str,
    **drawn: Any,
) -> Report:
    """Return the report of `generate diffusion`; `drawn` are arguments of `draw_diffusion`."""
    errors, frames = frame_tables(results), settings["frames"]
    drawn |= {"seed": settings["seeds"][0], "measures": diffusion_measures(results)}
    return _report(
        "generate-diffusion",
        {"results": list(results), "real": real},
        settings=settings,
        data=data,
        recipe=recipe,
        title="diffusion models of images and of pseudo videos",
        about=f"frames' noise {frames['beta_min']:g} to {frames['beta_max']:g}",
        tables=[diffusion_table(results, real), *errors],
        legend=f"{DIFFUSION_LEGEND} {FRAME_LEGEND}" if errors else DIFFUSION_LEGEND,
        findings=diffusion_findings(results, real),
        plots=lambda plots: draw_diffusion(plots, results, real, data, **drawn),
    )


def hvae_report(
    results: Sequence[Result],
    real: Result,
    *,
    settings: Mapping[str, Any],
    data: GenerationData,
    recipe: str,
    **drawn: Any,
) -> Report:
    """Return the report of `generate hvae`; `drawn` are arguments of `draw_hvae`."""
    drawn |= {"seed": settings["seeds"][0]}
    return _report(
        "generate-hvae",
        {"results": list(results), "real": real},
        settings=settings,
        data=data,
        recipe=recipe,
        title="hierarchical VAEs, heat equation and learned encoder",
        about="",
        tables=[hvae_table(results, real)],
        legend=HVAE_LEGEND,
        findings=hvae_findings(results, real),
        plots=lambda plots: draw_hvae(plots, results, real, data, **drawn),
    )


def tokens_findings(results: Sequence[Result], floors: Sequence[Result], real: Result) -> list[str]:
    """Return what a run says of videos against one frame, controls and patch k-means.

    A control spends a video's bits on the image alone; one of more bits proves nothing against it.
    """
    groups = groups_of(results)
    gains: list[Claim] = []
    for video in groups:
        own = [group for group in groups if group.stem == video.stem]
        if _is_control(video) or video.fact("frames") == 1:
            continue
        base = tuple(group.name for group in own if group.arm == BASE)
        controls = [
            group
            for group in own
            if _is_control(group) and group.fact("frames") in (1, video.fact("frames"))
        ]
        bits = video.fact("bits")
        equal = tuple(group.name for group in controls if group.fact("bits") == bits)
        lesser = tuple(group.name for group in controls if group.fact("bits") < bits)
        gains.append(Claim(video.name, base, equal, lesser))
    name = fd_name(results)
    measures = [PSNR, Measure(f"{name} of reconstructions", "lower", ("reconstruction", "fd"))]
    measures += [
        Measure(f"{name} of samples, {prior} prior", "lower", ("generation", prior, "fd"))
        for prior in priors_of(results)
    ]
    found: list[str] = []
    for measure in measures:
        rows = _credible(groups, measure, real)
        found += compare_all([claim for claim in gains if claim.than], rows, measure)
    rows = {group.name: group.summary(PSNR.path) for group in (*groups, *groups_of(floors))}
    above = [Claim(group.name, (f"{group.arm}, {FLOOR}",)) for group in groups]
    return found + compare_all(above, rows, PSNR)


def diffusion_findings(results: Sequence[Result], real: Result) -> list[str]:
    """Return what a run says of orders of noise at matched levels, of blur, and of one frame."""
    groups, errors = groups_of(results), frame_groups(results)
    distance = sample_measures(results)[0]
    distance = distance._replace(label=f"{distance.label} of the last frame")
    found: list[str] = []
    for measure, own in ((INTERMEDIATE, errors), (LAST, errors), (distance, groups)):
        rows = _credible(own, measure, real)
        found += compare_all([order_claim(length) for length in lengths_of(own)], rows, measure)
    images = tuple(group.name for group in groups if group.fact("frames") == 1)
    claims = [Claim(name, (BASE,)) for name in images if name != BASE]
    claims += [Claim(group.name, images) for group in groups if group.name not in images]
    claims += [
        Claim(f"{length}-frame-blur", (f"{length}-frame-high-order",))
        for length in lengths_of(groups)
    ]
    rows = _credible(groups, distance, real)
    return found + compare_all(claims, rows, distance)


def hvae_findings(results: Sequence[Result], real: Result) -> list[str]:
    """Return what a run says of the two encoders."""
    groups = groups_of(results)
    distance, score = sample_measures(results)
    return [
        text
        for measure in (score, distance)
        for text in compare_all(HVAE_CLAIMS, _credible(groups, measure, real), measure)
    ]


def order_claim(length: int) -> Claim:
    """Return the claim that high-order noise is better, at matched levels, too."""
    first, high, matched = (f"{length}-frame-{k}" for k in ("first-order", "high-order", "matched"))
    return Claim(high, (first,), (matched,))


def _credible(groups: Sequence[Group], measure: Measure, real: Result) -> dict[str, Summary]:
    """Return a number of all groups; no distance of samples that no class is seen in.

    A distance of a few features cannot tell noise from poor samples: it counts where the inception
    score is at least half of the real images'.
    """
    path, least = measure.path, _LEAST_SCORE * (value_of(real, ("is",)) or 0.0)
    rows = {group.name: group.summary(path) for group in groups}
    if path[0] != "generation" or path[-1] != "fd":
        return rows
    scores = {group.name: group.summary((*path[:-1], "is")).mean for group in groups}
    return {name: row for name, row in rows.items() if not least or (scores[name] or 0.0) >= least}


def _report(
    experiment: str,
    found: Mapping[str, Any],
    *,
    settings: Mapping[str, Any],
    data: GenerationData,
    recipe: str,
    title: str,
    about: str,
    tables: Sequence[Table],
    legend: str,
    findings: Sequence[str],
    plots: Callable[[Path], Sequence[Path]],
) -> Report:
    size = data.image_size
    counts = {part: len(getattr(data, part)) for part in ("train", "validation", "test")}
    facts = {"name": data.name, **counts, "channels": data.channels, "image_size": size}
    return Report(
        numbers={
            "experiment": experiment,
            "recipe": recipe,
            "settings": settings,
            **found,
            "data": {**facts, "notes": list(data.notes)},
            "notes": findings,
        },
        title=f"{data.name}: {title}",
        opening=(
            f"{counts['train']:,} training, {counts['validation']:,} validation and "
            f"{counts['test']:,} test images of {data.channels}x{size}x{size}. Recipe `{recipe}`, "
            f"{f'{about}, ' if about else ''}seeds {', '.join(map(str, settings['seeds']))}; all "
            "settings are in `config.json`."
        ),
        facts=data.notes,
        tables=tables,
        legend=legend,
        findings=findings,
        plots=plots,
    )


def _is_control(group: Group) -> bool:
    """Return whether an arm spends a video's bits on the image alone."""
    return group.arm.endswith("-repeat") or group.arm.startswith(f"{BASE}-patch")
