"""Reports of `probseq generate`: tables of tokenizers, diffusion models and HVAEs."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from matplotlib.figure import Figure

from probseq.summary import Summary, summarise
from probseq_apps.data.images import GenerationData
from probseq_apps.engine.log import in_minutes
from probseq_apps.report.generate_plots import draw_diffusion, draw_hvae, draw_tokens
from probseq_apps.report.headline import Columns, conclusion, headline_table
from probseq_apps.report.report import PAGES, Report
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
    priors_of,
    sample_measures,
    unranked,
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

PSNR = Measure("PSNR", "higher", ("reconstruction", "psnr"))
# Of the image in units of the exact one; what distances count to.
TIMES, _MOST_TIMES = ("times",), 3.0
# The distance in which Gaussian images are known exactly.
PIXELS = "FD(pixels)"
BOUND = Measure("bound (nats/dim)", "lower", ("bound",))
# Samples that show too little: how many times as long to train.
_LONGER = 4
# What heads of the first table leave out: features, and words that the column's place tells.
_SHORT = re.compile(r"\(.*?\)| of samples,| prior")
# Where distances of other rows are from the test images.
_REAL_DISTANCE = "real images: test part from training part"
_WHOLE = plain(0)

# Of samples, as far as they were measured.
_QUALITY = (Measure("looks real", "higher", ("realism",)), Measure("KID", "lower", ("kid",)))
# A column: a number over the seeds with its error, or as it is written; without a good end and a
# writer, what all seeds share.
Column = tuple[Measure, Writer | None]


def token_tables(results: Sequence[Result], real: Result) -> list[Table]:
    """Return reconstructions of all tokenizers, and samples under each prior."""
    columns: list[Column] = [
        (Measure("bits"), _WHOLE),
        *_facts({name: name for name in ("tokens", "steps", "parameters")}),
        (Measure("PSNR (dB)", "higher", PSNR.path), None),
        (Measure("all frames (dB)", "higher", ("reconstruction", "psnr_all_frames")), None),
        (Measure(fd_name(results), "lower", ("reconstruction", "fd")), None),
        (Measure("usage", None, ("reconstruction", "usage")), percent),
        (Measure("perplexity", None, ("reconstruction", "perplexity")), _WHOLE),
    ]
    tables = [_table("tokenizer", groups_of(results), columns, real, _REAL_DISTANCE)]
    columns = [(Measure("bits"), _WHOLE), *_facts({"tokens": "tokens"})]
    for prior in priors_of(results):
        at = ("generation", prior)
        columns.append((Measure(f"{prior}: {fd_name(results)}", "lower", (*at, "fd")), None))
        if any(value_of(result, (*at, "is")) is not None for result in results):
            columns.append((Measure(f"{prior}: {is_name(results)}", "higher", (*at, "is")), None))
        nats = Measure(f"{prior}: nats per token", "lower", (*at, "nats_per_token"))
        columns += [(nats, None), (Measure(f"{prior}: samples", None, (*at, "num_samples")), None)]
        columns += _quality(results, at, f"{prior}: ")
    if sampled := groups_of([result for result in results if result.get("generation")]):
        tables.append(_table("samples", sampled, columns, real))
    return tables


def diffusion_tables(results: Sequence[Result], real: Result) -> list[Table]:
    """Return all variants, and errors of frames for each length of videos that has them."""
    measures, rows = diffusion_measures(results), list[Result]()
    for result in results:
        distance, least = value_of(result, measures[0].path), value_of(real, ("fd",))
        gap = None if distance is None or least is None else distance - least
        rows.append({**result, "total_steps": total_steps(result), "gap": gap})
    if fd_name(results) == PIXELS:
        measures.insert(1, Measure("above the optimum", "lower", ("gap",)))
    tables = [_model_table(rows, measures, "generate-diffusion", real)]
    every = frame_groups(results)
    for length in sorted({group.fact("frames") for group in every}):
        groups = [group for group in every if group.fact("frames") == length]
        frames = sorted({frame for group in groups for frame in frames_of(group)})
        paths: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
            ("image" if f == length else f"frame {f}", ("model", str(f)), ("exact", str(f)))
            for f in frames
        ]
        if len(frames) > 2:
            exact = ("exact_intermediate",)
            paths.insert(0, ("mean before the image", ("intermediate",), exact))
        columns: list[Column] = []
        for label, model, exact in paths:
            columns.append((Measure(label, "lower", model), None))
            # A property of the data: the same for all seeds.
            columns.append((Measure("least error", None, exact), plain(digits_of(groups, model))))
        if any(group.summary(TIMES).mean is not None for group in groups):
            columns.append((Measure("image / least error", "lower", TIMES), None))
        columns += _facts({"images": "num_images", "samples": "num_samples"})
        tables.append(_table(f"errors of frames, T = {length}", groups, columns))
    return tables


def hvae_tables(results: Sequence[Result], real: Result) -> list[Table]:
    """Return both variants, and real images."""
    return [_model_table(results, [*hvae_measures(results), BOUND], "generate-hvae", real)]


def _model_table(
    results: Sequence[Result], measures: Sequence[Measure], experiment: str, real: Result
) -> Table:
    columns: list[Column] = [
        *((measure, None) for measure in measures),
        *_quality(results, ("generation",)),
        *_facts(PAGES[experiment]["facts"]),
        (Measure("training s", None, ("training_seconds",)), _WHOLE),
        (Measure("sampling s", None, ("generation", "seconds")), _WHOLE),
    ]
    return _table("variant", groups_of(results), columns, real)


def _quality(results: Sequence[Result], path: tuple[str, ...], prefix: str = "") -> list[Column]:
    """Return what is measured of samples beside distance and score, as far as any result has it."""
    columns: list[Column] = []
    for measure in _QUALITY:
        whole = measure._replace(label=f"{prefix}{measure.label}", path=(*path, *measure.path))
        if any(value_of(result, whole.path) is not None for result in results):
            columns.append((whole, None if measure.direction else with_error(3)))
    return columns


def _facts(paths: Mapping[str, str]) -> list[Column]:
    return [(Measure(head, None, tuple(path.split("."))), None) for head, path in paths.items()]


def _table(
    title: str,
    groups: Sequence[Group],
    columns: Sequence[Column],
    real: Result | None = None,
    name: str = REAL,
) -> Table:
    """Return a row for each group, and one of what is measured of real images, if anything is."""
    paths = {m.path[:-1] for m, _ in columns if m.path[:1] + m.path[-1:] == ("generation", "fd")}
    poor = {path: unranked(groups, real or {}, path) for path in paths}
    # What is not ranked at all stands below.
    groups = sorted(groups, key=lambda g: bool(poor) and all(g.name in p for p in poor.values()))
    cells: list[list[str]] = [
        [group.name for group in groups],
        [str(len(g.results)) for g in groups],
    ]
    ends = [name, DASH]
    for measure, write in columns:
        path = measure.path or (measure.label,)
        if write is None and measure.direction is None:
            cells.append([fact_text(group.fact(*path)) for group in groups])
            ends.append(fact_text((real or {}).get(path[-1])))
        else:
            write = write or with_error(digits_of(groups, path))
            column = [write(group.summary(path)) for group in groups]
            if path[-1] == "fd":
                column = [
                    f"not ranked ({cell})" if group.name in poor.get(path[:-1], ()) else cell
                    for group, cell in zip(groups, column, strict=True)
                ]
            cells.append(column)
            ends.append(write(summarise([value_of(real or {}, path[-1:])])))
    rows = [list(row) for row in zip(*cells, strict=True)]
    heads = [title, "n", *(measure.head for measure, _ in columns)]
    return Table(heads, rows if real is None else [*rows, ends])


def token_measures(results: Sequence[Result]) -> list[Measure]:
    """Return what tokenizers and priors are compared by."""
    name = fd_name(results)
    measures = [PSNR, Measure(f"{name} of reconstructions", "lower", ("reconstruction", "fd"))]
    return measures + [
        Measure(f"{name} of samples, {prior} prior", "lower", ("generation", prior, "fd"))
        for prior in priors_of(results)
    ]


def diffusion_measures(results: Sequence[Result]) -> list[Measure]:
    """Return numbers of samples and of likelihood that any result has."""
    bits = Measure("bits/dim", "lower", ("bits_per_dim",))
    distance, *others = (*sample_measures(results), bits)
    return [distance, *(m for m in others if any(value_of(r, m.path) is not None for r in results))]


def hvae_measures(results: Sequence[Result]) -> list[Measure]:
    """Return score and distance; not the bound, by which the variants don't compare."""
    return [*sample_measures(results)[::-1]]


def total_steps(result: Result) -> int:
    """Return the denoising steps that make an image: those of a stage, times the stages.

    The first C frames are one stage, each later frame is one.
    """
    frames, context = result["frames"], result["context"]
    return (1 if frames == 1 else frames - context + 1) * result["generation"]["sampling_steps"]


def _credible(groups: Sequence[Group], measure: Measure, real: Result) -> dict[str, Summary]:
    """Return a number of all groups; none of samples that are not ranked."""
    path = measure.path
    rows = {group.name: group.summary(path) for group in groups}
    if path[0] != "generation" or path[-1] != "fd":
        return rows
    errors = frame_groups([result for group in groups for result in group.results])
    times = {group.name: group.summary(TIMES).mean or 0.0 for group in errors}
    rows = {name: row for name, row in rows.items() if times.get(name, 0.0) <= _MOST_TIMES}
    poor = unranked(groups, real, path[:-1])
    return {name: row for name, row in rows.items() if name not in poor}


def headline_columns(
    results: Sequence[Result], measures: Sequence[Measure], real: Result
) -> Columns:
    """Return what decides by title; no distances of samples that are not ranked."""
    groups, columns = groups_of(results), dict[Measure, dict[str, Summary]]()
    for measure in (m for m in measures if m.path != ("reconstruction", "fd")):
        rows = _credible(groups, measure, real)
        credible = [(g.title, rows[g.name]) for g in groups if g.name in rows]
        column = columns[measure] = {t: row for t, row in credible if row.mean is not None}
        if measure.path[0] == "generation" and (of_real := value_of(real, measure.path[-1:])):
            column[REAL] = summarise([of_real])
    return {measure: rows for measure, rows in columns.items() if rows}


def conclusion_of(results: Sequence[Result], columns: Columns) -> str:
    """Return what came out: of tokenizers at equal bits, else of samples by their distance."""
    groups = groups_of(results)
    spent = [group.fact("bits") for group in groups if group.fact("bits") is not None]
    if most := max((bits for bits in spent if spent.count(bits) > 1), default=None):
        equal = {g.title: g.summary(PSNR.path) for g in groups if g.fact("bits") == most}
        return conclusion({PSNR: equal})
    distances = {m: rows for m, rows in columns.items() if m.path[-1] == "fd"}
    return conclusion(distances, [REAL])


def _sampled(results: Sequence[Result]) -> dict[str, tuple[str, ...]]:
    """Return the paths of what is measured of samples by the name of the prior, if there is any."""
    if "reconstruction" not in results[0]:
        return {"": ("generation",)}
    return {f", {prior} prior": ("generation", prior) for prior in priors_of(results)}


def verdicts(
    results: Sequence[Result], real: Result, settings: Mapping[str, Any], resume: str
) -> list[str]:
    """Return how near the samples of each model are to images, and what to do where they aren't.

    `resume` is the command that goes on.
    """
    lines: list[str] = []
    key, groups = "realism" if value_of(real, ("is",)) is None else "is", groups_of(results)
    of_real, name = value_of(real, (key,)), "looks real" if key == "realism" else is_name(results)
    for prior, path in _sampled(results).items():
        poor, of_prior = unranked(groups, real, path), path if prior else ()
        longer = _LONGER * settings[path[-1] if prior else "training"]["steps"]
        flag = f"--{path[-1]}.steps" if prior else "--steps"
        seconds = sum(value_of(r, (*of_prior, "training_seconds")) or 0.0 for r in results)
        more = in_minutes((_LONGER - 1) * seconds)
        for group in groups:
            score = group.summary((*path, key)).mean
            if score is None or of_real is None:
                continue
            verdict = f"{name} {score:.2f}, real images {of_real:.2f}"
            if group.name in poor:
                verdict = f"samples are not like the data yet ({verdict})"
            elif len(groups) > 1:  # the table tells
                continue
            advice = f"To train longer, about {more} more:\n{resume} {flag} {longer}"
            lines.append(f"{group.title}{prior}: {verdict}. {advice}")
    return lines


# Tables, measures, and what draws.
_WORKFLOWS: Mapping[str, tuple[Callable[..., Any], ...]] = {
    "generate": (token_tables, token_measures, draw_tokens),
    "generate-diffusion": (diffusion_tables, diffusion_measures, draw_diffusion),
    "generate-hvae": (hvae_tables, hvae_measures, draw_hvae),
}


def _class_facts(classes: Mapping[str, Any]) -> list[str]:
    """Return what models and samples know of classes, in a line, if anything."""
    if not classes["labels"]:
        return []
    return [
        "models are told the images' classes, and samples have the training images' shares of them "
        f"(guidance {classes['guidance']:g})"
    ]


def generate_report(
    experiment: str,
    results: Sequence[Result],
    real: Result,
    *,
    settings: Mapping[str, Any],
    data: GenerationData,
    recipe: str,
    folder: Path,
    **plotted: Any,
) -> Report:
    """Return the report of a command.

    Test images are measured as `real`, as if they were samples; `folder` is that of the run;
    `plotted` is what pictures show, see `draw_tokens` and `draw_models`.
    """
    tables, measures, pictures = _WORKFLOWS[experiment]
    size, channels = data.image_size, data.channels
    counts = {name: len(getattr(data, name)) for name in ("train", "validation", "test")}
    facts = {"channels": channels, "image_size": size, "notes": list(data.notes)}
    compared = measures(results)
    if value_of(real, ("realism",)) is not None:
        compared += [
            Measure(f"looks real{prior}", "higher", (*path, "realism"))
            for prior, path in _sampled(results).items()
        ]
    columns = headline_columns(results, compared, real)
    resume = f"probseq {PAGES[experiment]['command']} --run-dir {quote(str(folder))} --resume"
    decided = verdicts(results, real, settings, resume)
    return Report(
        experiment=experiment,
        recipe=recipe,
        settings=settings,
        data={"name": data.name, **counts, **facts},
        opening=(
            f"{counts['train']:,} training, {counts['validation']:,} validation and "
            f"{counts['test']:,} test images of {channels}x{size}x{size}"
            f"{PAGES[experiment]['about'].format(**settings)}."
        ),
        facts=_class_facts(settings["classes"]),
        numbers={"results": results, "real": real},
        headline=headline_table(
            {m._replace(label=_SHORT.sub("", m.label)): rows for m, rows in columns.items()}, [REAL]
        ),
        conclusions=[*decided, *filter(None, [conclusion_of(results, columns)])],
        story=(
            "samples" if plotted.get("samples", True) else f"reconstructions-{settings['stem'][0]}",
        ),
        tables=tables(results, real),
        legend="\n\n".join(
            [PAGES[experiment].get("legend", ""), PAGES["samples"]["legend"]]
        ).strip(),
        figures=dict[str, Figure],
        pictures=lambda plots: pictures(plots, results, data, seed=settings["seeds"][0], **plotted),
    )
