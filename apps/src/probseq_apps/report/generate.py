"""Reports of `probseq generate`: tokenizers and priors, diffusion models, HVAEs."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from probseq_apps.data.images import GenerationData
from probseq_apps.report.findings import Claim, compare_all
from probseq_apps.report.generate_plots import (
    Drawn,
    draw_diffusion,
    draw_grids,
    draw_hvae,
    draw_tokens,
)
from probseq_apps.report.generate_tables import (
    DIFFUSION_LEGEND,
    FRAME_LEGEND,
    HVAE_LEGEND,
    INTERMEDIATE,
    LAST,
    PSNR,
    TOKENIZER_LEGEND,
    diffusion_table,
    frame_tables,
    generation_table,
    hvae_table,
    reconstruction_table,
)
from probseq_apps.report.report import Report
from probseq_apps.report.results import (
    BASE,
    FLOOR,
    Group,
    Result,
    fd_name,
    frame_groups,
    groups_of,
    lengths_of,
    priors_of,
    sample_measures,
    value_of,
)
from probseq_apps.report.summary import Summary
from probseq_apps.report.tables import Measure, Table
from pseudovideo.spec import PseudoVideoConfig

__all__ = ["Drawn", "diffusion_report", "draw_grids", "hvae_report", "tokens_report"]

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
    """Return the report of `generate run`.

    Args:
        results: contents of `results/*.json`, in the order of the arms.
        floors: of patch k-means, in the same form: "arm" is the arm whose tokens it equals, "stem"
            is `patch-k-means`, "steps" is None, "parameters" counts the codebook.
        real: what `pseudovideo.evaluation.generation` says of the test images.
        settings: what was compared.
        data: the images.
        recipe: name of the recipe that the settings came from.
        drawn: further arguments of `draw_tokens`.
    """
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
    videos: Mapping[str, tuple[PseudoVideoConfig, int]],
    drawn: Mapping[str, Drawn],
    logs: Mapping[str, Sequence[Path]],
) -> Report:
    """Return the report of `generate diffusion`; arguments as for `draw_diffusion`."""
    errors, frames = frame_tables(results), settings["frames"]
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
        plots=lambda plots: draw_diffusion(
            plots,
            results,
            real,
            data,
            seed=settings["seeds"][0],
            videos=videos,
            drawn=drawn,
            logs=logs,
        ),
    )


def hvae_report(
    results: Sequence[Result],
    real: Result,
    *,
    settings: Mapping[str, Any],
    data: GenerationData,
    recipe: str,
    drawn: Mapping[str, Drawn],
    logs: Mapping[str, Sequence[Path]],
) -> Report:
    """Return the report of `generate hvae`; arguments as for `draw_hvae`."""
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
        plots=lambda plots: draw_hvae(
            plots, results, real, data, seed=settings["seeds"][0], drawn=drawn, logs=logs
        ),
    )


def tokens_findings(results: Sequence[Result], floors: Sequence[Result], real: Result) -> list[str]:
    """Return what a run says of videos against one frame, controls and patch k-means.

    A control spends a video's bits on the image alone; one of more bits proves nothing against it.

    Args:
        results: of all arms, stems and seeds.
        floors: of patch k-means.
        real: of the test images as if they were samples.
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
    """Return what a run says of orders of noise at matched levels, of blur, and of one frame.

    Args:
        results: of all arms and seeds.
        real: of the test images as if they were samples.
    """
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
    """Return what a run says of the two encoders.

    Args:
        results: of all arms and seeds.
        real: of the test images as if they were samples.
    """
    groups = groups_of(results)
    distance, score = sample_measures(results)
    return [
        text
        for measure in (score, distance)
        for text in compare_all(HVAE_CLAIMS, _credible(groups, measure, real), measure)
    ]


def order_claim(length: int) -> Claim:
    """Return the claim that high-order noise is better, at matched levels, too.

    Args:
        length: frames T of the videos.
    """
    return Claim(
        f"{length}-frame-high-order",
        (f"{length}-frame-first-order",),
        (f"{length}-frame-matched",),
    )


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
