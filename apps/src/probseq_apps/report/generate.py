"""Reports of `probseq generate`: tables and findings of tokenizers, diffusion models and HVAEs."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from probseq.summary import Summary, summarise
from probseq_apps.data.images import GenerationData
from probseq_apps.report.generate_plots import draw_models, draw_tokens
from probseq_apps.report.report import Report, comparison
from probseq_apps.report.results import (
    BASE,
    FLOOR,
    REAL,
    Claim,
    Group,
    Result,
    compare_all,
    digits_of,
    entry_of,
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

_SCORES = (
    "mean ± standard error over the seeds; n: how many seeds. FID and IS: Fréchet distance and "
    "inception score by Inception's features; FD(NAME) and IS(NAME): by other features, of samples "
    "from the training images, in the row of real images of the test part; both depend on the "
    "number of samples, the score on its splits, too. — not defined, or not measured. "
)
TOKENIZER_LEGEND = (
    f"{_SCORES}Distances of reconstructions are from the test images. Bits: of the tokens of an "
    "image; arms compare at equal bits only. PSNR: mean over the test images of each one's, last "
    "frame; all frames: the same over all. Usage: share of the codebook that the test images use; "
    "perplexity: exp of the entropy of its use. Nats per token: mean of -log p over tokens of the "
    "test images; of a masked prior over those that its masks hide alone, which is no likelihood; "
    "priors of different kinds or numbers of tokens don't compare by it."
)
DIFFUSION_LEGEND = (
    f"{_SCORES}T: frames of a video, the last being the image; C: frames that a frame is generated "
    "from. Bits/dim: bound on the test images' bits per number of a pixel, of image models alone. "
    "Sampling steps: denoising steps that make an image, all stages of a video together; "
    "evaluations: frames that pass through the network for it."
)
FRAME_LEGEND = (
    " Errors of single frames: squared error per pixel, in thousandths, of the model's mean of a "
    "frame given the true frames before it (images are in -1..1; corrected for the number of "
    "samples). Exact: the least error for Gaussian images with the data's covariance; what is not "
    "linear in images can lie below. Frames of first-order and high-order noise are different "
    "targets, those of high-order and matched have equal signal-to-noise ratios."
)
HVAE_LEGEND = (
    f"{_SCORES}heat: the encoder blurs and is not trained; learned: it is trained, too. Noise: its "
    "standard deviation, for images in -1..1. Bound: negative evidence lower bound in nats per "
    "dimension, mean over the test images; that of heat lacks its prior's constant, and densities "
    "differ with the noise, so that the two arms' don't compare."
)

# Where distances of other rows are from the test images.
_REAL_DISTANCE = "real images: test part from training part"
_LEAST_SCORE = 0.5
_WHOLE = plain(0)


class _Column(NamedTuple):
    """A column of a table: its head, the cell of a group, and that of real images."""

    head: str
    cell: Callable[[Group], str]
    real: str = DASH


def _number(measure: Measure, groups: Sequence[Group], real: Result | None = None) -> _Column:
    """Return means over the seeds with their errors, in the digits of these groups."""
    path, write = measure.path, with_error(digits_of(groups, measure.path))
    shown = DASH if real is None else write(summarise([value_of(real, path[-1:])]))
    return _Column(measure.head, lambda group: write(group.summary(path)), shown)


def _mean(head: str, *path: str, write: Writer = _WHOLE) -> _Column:
    """Return means over the seeds without their errors."""
    return _Column(head, lambda group: write(group.summary(path)))


def _fact(head: str, *path: str, real: Result | None = None) -> _Column:
    """Return what all seeds share, by default the entry of the head's name."""
    path = path or (head,)
    shown = DASH if real is None else fact_text(entry_of(real, path[-1:]))
    return _Column(head, lambda group: fact_text(group.fact(*path)), shown)


def _table(
    title: str, groups: Sequence[Group], columns: Sequence[_Column], real: str = REAL
) -> Table:
    """Return a row for each group, and one of real images; no such row without its name."""
    rows = [
        [group.name, str(len(group.results)), *(column.cell(group) for column in columns)]
        for group in groups
    ]
    if real:
        rows.append([real, DASH, *(column.real for column in columns)])
    return Table([title, "n", *(column.head for column in columns)], rows)


def reconstruction_table(
    results: Sequence[Result], floors: Sequence[Result], real: Result
) -> Table:
    """Return all arms with both stems, patch k-means at equal tokens, and real images."""
    trained = groups_of(results)
    columns = [
        _mean("bits", "bits"),
        *(_fact(name) for name in ("tokens", "steps", "parameters")),
        _number(Measure("PSNR (dB)", "higher", PSNR.path), trained),
        _number(
            Measure("all frames (dB)", "higher", ("reconstruction", "psnr_all_frames")), trained
        ),
        _number(Measure(fd_name(results), "lower", ("reconstruction", "fd")), trained, real),
        _mean("usage", "reconstruction", "usage", write=percent),
        _mean("perplexity", "reconstruction", "perplexity"),
    ]
    return _table("tokenizer", [*trained, *groups_of(floors)], columns, _REAL_DISTANCE)


def generation_table(results: Sequence[Result], real: Result) -> Table | None:
    """Return samples under each prior, and real images; None where no prior was trained."""
    groups = groups_of([result for result in results if result.get("generation")])
    if not groups:
        return None
    columns = [_mean("bits", "bits"), _fact("tokens")]
    for prior in priors_of(results):
        at = ("generation", prior)
        columns.append(
            _number(Measure(f"{prior}: {fd_name(results)}", "lower", (*at, "fd")), groups, real)
        )
        if any(value_of(result, (*at, "is")) is not None for result in results):
            score = Measure(f"{prior}: {is_name(results)}", "higher", (*at, "is"))
            columns.append(_number(score, groups, real))
        nats = Measure(f"{prior}: nats per token", "lower", (*at, "nats_per_token"))
        columns += [
            _number(nats, groups, real),
            _fact(f"{prior}: samples", *at, "num_samples", real=real),
        ]
    return _table("samples", groups, columns)


def diffusion_table(results: Sequence[Result], real: Result) -> Table:
    """Return all arms, and real images."""
    columns = [
        _fact("T", "frames"),
        _fact("C", "context"),
        *(_fact(name) for name in ("parameters", "steps")),
        _fact("sampler", "generation", "sampler"),
        _Column("sampling steps", lambda arm: fact_text(total_steps(arm))),
        _fact("evaluations", "generation", "evaluations"),
        _fact("samples", "generation", "num_samples", real=real),
    ]
    return _model_table(results, real, diffusion_measures(results), columns)


def hvae_table(results: Sequence[Result], real: Result) -> Table:
    """Return both arms, and real images."""
    columns = [
        _fact("samples", "generation", "num_samples", real=real),
        _fact("splits", "generation", "is_splits", real=real),
        _fact("levels"),
        _fact("noise", "noise_std"),
        *(_fact(name) for name in ("parameters", "steps")),
        _fact("evaluations", "generation", "evaluations"),
    ]
    distance, score = sample_measures(results)
    return _model_table(results, real, [score, distance, BOUND], columns)


def _model_table(
    results: Sequence[Result], real: Result, measures: Sequence[Measure], facts: Sequence[_Column]
) -> Table:
    groups = groups_of(results)
    numbers = [_number(m, groups, real if m.path[0] == "generation" else None) for m in measures]
    seconds = _mean("training s", "training_seconds"), _mean("sampling s", "generation", "seconds")
    return _table("arm", groups, [*numbers, *facts, *seconds])


def frame_tables(results: Sequence[Result]) -> list[Table]:
    """Return errors of single frames, a table for each length of videos that has them."""
    tables: list[Table] = []
    every = frame_groups(results)
    for length in lengths_of(every):
        groups = [group for group in every if group.fact("frames") == length]
        frames = sorted({frame for group in groups for frame in frames_of(group)})
        places: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
            ("image" if f == length else f"frame {f}", ("model", str(f)), ("exact", str(f)))
            for f in frames
        ]
        if len(frames) > 2:
            exact = ("exact_intermediate",)
            places.insert(0, ("mean before the image", INTERMEDIATE.path, exact))
        columns: list[_Column] = []
        for label, model, exact in places:
            columns.append(_number(Measure(label, "lower", model), groups))
            # A property of the data: the same for all seeds.
            columns.append(_mean("exact", *exact, write=plain(digits_of(groups, model))))
        columns += [_fact("images", "num_images"), _fact("samples", "num_samples")]
        tables.append(_table(f"errors of frames, T = {length}", groups, columns, real=""))
    return tables


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


class Generated(NamedTuple):
    """A finished run of `probseq generate`: results, and measures of real images beside them."""

    results: Sequence[Result]
    real: Result
    settings: Mapping[str, Any]
    data: GenerationData
    recipe: str


def tokens_report(run: Generated, floors: Sequence[Result], **drawn: Any) -> Report:
    """Return the report of `generate run`; `drawn` are arguments of `draw_tokens`."""
    results, real, settings, data, _ = run
    every, measures = [*results, *floors], token_measures(results)
    generation = generation_table(results, real)
    return _report(
        run,
        "generate",
        "pseudo videos",
        f", corruption `{settings['videos']['corruption']}`",
        [reconstruction_table(results, floors, real), *([generation] if generation else [])],
        TOKENIZER_LEGEND,
        tokens_findings(results, floors, real),
        lambda plots: draw_tokens(plots, every, real, data, measures=measures, **drawn),
        floors=floors,
    )


def diffusion_report(run: Generated, **drawn: Any) -> Report:
    """Return the report of `generate diffusion`; `drawn` are arguments of `draw_models`."""
    results, real, settings, data, _ = run
    errors, frames = frame_tables(results), settings["frames"]
    drawn |= {"measures": diffusion_measures(results), "seed": settings["seeds"][0]}
    return _report(
        run,
        "generate-diffusion",
        "diffusion models of images and of pseudo videos",
        f", frames' noise {frames['beta_min']:g} to {frames['beta_max']:g}",
        [diffusion_table(results, real), *errors],
        DIFFUSION_LEGEND + (FRAME_LEGEND if errors else ""),
        diffusion_findings(results, real),
        lambda plots: draw_models(plots, results, real, data, kind="diffusion", **drawn),
    )


def hvae_report(run: Generated, **drawn: Any) -> Report:
    """Return the report of `generate hvae`; `drawn` are arguments of `draw_models`."""
    results, real, settings, data, _ = run
    # Not the bound, by which the arms don't compare.
    drawn |= {"measures": sample_measures(results)[::-1], "seed": settings["seeds"][0]}
    return _report(
        run,
        "generate-hvae",
        "hierarchical VAEs, heat equation and learned encoder",
        "",
        [hvae_table(results, real)],
        HVAE_LEGEND,
        hvae_findings(results, real),
        lambda plots: draw_models(plots, results, real, data, kind="hvae", **drawn),
    )


def _report(
    run: Generated,
    experiment: str,
    title: str,
    about: str,
    tables: Sequence[Table],
    legend: str,
    findings: Sequence[str],
    plots: Callable[[Path], Sequence[Path]],
    **numbers: Sequence[Result],
) -> Report:
    results, real, settings, data, recipe = run
    size, channels = data.image_size, data.channels
    counts = {part: len(getattr(data, part)) for part in ("train", "validation", "test")}
    facts = {"channels": channels, "image_size": size, "notes": list(data.notes)}
    return comparison(
        experiment,
        recipe=recipe,
        settings=settings,
        data={"name": data.name, **counts, **facts},
        title=title,
        opening=(
            f"{counts['train']:,} training, {counts['validation']:,} validation and "
            f"{counts['test']:,} test images of {channels}x{size}x{size}{about}."
        ),
        numbers={"results": results, **numbers, "real": real, "notes": findings},
        tables=tables,
        legend=legend,
        findings=findings,
        plots=plots,
    )


def token_measures(results: Sequence[Result]) -> list[Measure]:
    """Return what tokenizers and priors are compared by."""
    name = fd_name(results)
    measures = [PSNR, Measure(f"{name} of reconstructions", "lower", ("reconstruction", "fd"))]
    return measures + [
        Measure(f"{name} of samples, {prior} prior", "lower", ("generation", prior, "fd"))
        for prior in priors_of(results)
    ]


def tokens_findings(results: Sequence[Result], floors: Sequence[Result], real: Result) -> list[str]:
    """Return what a run says of videos against one frame, controls and patch k-means.

    A control spends a video's bits on the image alone; one of more bits proves nothing against it.
    """
    groups = groups_of(results)
    gains: list[Claim] = []
    for video in groups:
        length, bits = video.fact("frames"), video.fact("bits")
        if _is_control(video) or length == 1:
            continue
        own = [group for group in groups if group.stem == video.stem]
        base = tuple(group.name for group in own if group.arm == BASE)
        spent = {
            group.name: group.fact("bits")
            for group in own
            if _is_control(group) and group.fact("frames") in (1, length)
        }
        equal = tuple(name for name, found in spent.items() if found == bits)
        lesser = tuple(name for name, found in spent.items() if found < bits)
        if base:
            gains.append(Claim(video.name, base, equal, lesser))
    found = [
        text
        for measure in token_measures(results)
        for text in compare_all(gains, _credible(groups, measure, real), measure)
    ]
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
        for text in compare_all(
            [Claim("heat", ("learned",))], _credible(groups, measure, real), measure
        )
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


def _is_control(group: Group) -> bool:
    """Return whether an arm spends a video's bits on the image alone."""
    return group.arm.endswith("-repeat") or group.arm.startswith(f"{BASE}-patch")
