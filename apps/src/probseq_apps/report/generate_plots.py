"""Plots of `probseq generate`: numbers of all variants, errors of frames, and what is drawn."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int64, UInt8
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from probseq.figures import COLOURS, GUIDE, headline, light_grid, panels
from probseq_apps.data.images import GenerationData, to_unit
from probseq_apps.report.curves import Quantity, save_losses, save_training_curves
from probseq_apps.report.figures import legend_below
from probseq_apps.report.frame_errors import save_frame_errors
from probseq_apps.report.results import (
    FLOOR,
    REAL,
    Group,
    Result,
    fd_name,
    groups_of,
    priors_of,
    sample_measures,
    value_of,
)
from probseq_apps.report.tables import Measure
from pseudovideo.corruptions import PseudoVideoConfig, pseudo_videos
from pseudovideo.plots import (
    check_images,
    frame_captions,
    frame_heads,
    save_gif,
    save_grid,
    save_process,
    save_rows,
    save_strips,
    save_theorem,
    side,
    tiles,
)

# Width and height of a panel of the summary, and the letters of its title that fit a line.
_PANEL, _TITLE_LETTERS = (2.5, 0.34), 32
_ACROSS = 3
# Width of a panel of bars, height of a bar, and what titles, ticks and legend take.
_WIDTH, _BAR, _AROUND = 2.7, 0.36, 1.15
_SEED_DOT: dict[str, Any] = {"color": GUIDE, "marker": ".", "linestyle": "", "alpha": 0.6}
# Strips of generated videos, videos of a film, and those of a film of their process.
_STRIPS, _FILM, _ROWS = 3, 16, 4
# Samples of a grid, videos below each other; images whose covariance the theorem is drawn for.
_SAMPLES, _VIDEOS, _COVARIANCE = 64, 4, 2000
# Samples of each model beside others; grids of a row, inches of one, letters of its title.
_GRID = 36
_GRIDS_ACROSS, _GRID_PANEL, _GRID_LETTERS = 3, (2.8, 2.95), 34
_DIFFUSION_LOSSES = {
    name: Quantity(name, title, label, wide=True)
    for name, title, label in (
        ("loss", "Training loss", "Hybrid loss"),
        ("parts/mse", "Squared error of the noise, training", "Squared error per number"),
        ("parts/vlb", "Variational bound, training", "Bits per number, one step"),
    )
}
_HVAE_LOSSES = {
    name: Quantity(name, title, label, wide=True)
    for name, title, label in (
        ("loss", "Bound, training; arms don't compare", "Nats per dimension"),
        ("parts/steps", "Steps of the decoder; arms don't compare", "Nats per dimension"),
        ("parts/prior", "Prior, training; arms don't compare", "Nats per dimension"),
        ("parts/mse", "Error of the sharper frame, training", "Squared error per pixel"),
    )
}


class Drawn(NamedTuple):
    """What a model drew.

    Attributes:
        images: samples, bytes.
        videos: a few of them with all their frames.
        process: snapshots of how a few came into being, bytes.
        done: steps or levels that were done at each snapshot.
    """

    images: UInt8[Tensor, "n c h w"]
    videos: UInt8[Tensor, "m t c h w"]
    process: UInt8[Tensor, "n k t c h w"]
    done: Int64[Tensor, " k"]


def draw_tokens(
    plots: Path,
    results: Sequence[Result],
    floors: Sequence[Result],
    real: Result,
    data: GenerationData,
    *,
    seed: int,
    videos: PseudoVideoConfig,
    reconstructed: Mapping[str, Mapping[str, Float[Tensor, "n c h w"]]],
    samples: Mapping[str, tuple[str, Tensor, Tensor]],
    tokenizer_logs: Mapping[str, Sequence[Path]],
    prior_logs: Mapping[str, Sequence[Path]],
) -> list[Path]:
    """Draw what a run of `generate run` made."""
    files = [save_summary(results, plots / "summary.png", floors=floors, real=real)]
    if videos.num_frames > 1:
        shown = pseudo_videos(to_unit(data.test[:_VIDEOS]), videos)
        files.append(save_strips(shown, plots / "pseudo-videos.png"))
    if videos.random:
        images = to_unit(data.train[:_COVARIANCE])
        files.append(save_theorem(images, plots / "theorem.png", videos))
    for stem, arms in reconstructed.items():
        truth = to_unit(data.test[: max(map(len, arms.values()))])
        title = f"Test images and their reconstructions, stem {stem}, seed {seed}"
        labels, rows = ["truth", *arms], [truth, *arms.values()]
        files.append(save_rows(labels, rows, plots / f"reconstructions-{stem}.png", title=title))
    for name, (title, pictures, shown) in samples.items():
        files += draw_grids(pictures, shown, plots, name, title=title)
    files += save_training_curves(tokenizer_logs, plots)
    return files + (save_training_curves(prior_logs, plots, name="prior") if prior_logs else [])


def draw_grids(
    images: UInt8[Tensor, "n c h w"],
    videos: UInt8[Tensor, "m t c h w"],
    plots: Path,
    name: str,
    *,
    title: str | None = None,
) -> list[Path]:
    """Draw a grid of samples; of videos also strips and a film."""
    files = [save_grid(to_unit(images[:_SAMPLES]), plots / f"{name}.png", title=title)]
    if videos.shape[1] > 1:
        shown = to_unit(videos)
        files.append(save_strips(shown[:_VIDEOS], plots / f"{name}-videos.png", title=title))
        captions = frame_captions(title or name, shown.shape[1])
        files.append(save_gif(shown[:_FILM], plots / f"{name}.gif", captions=captions))
    return files


def draw_diffusion(
    plots: Path,
    results: Sequence[Result],
    real: Result,
    data: GenerationData,
    *,
    seed: int,
    measures: Sequence[Measure],
    videos: Mapping[str, tuple[PseudoVideoConfig, int]],
    drawn: Mapping[str, Drawn],
    logs: Mapping[str, Sequence[Path]],
) -> list[Path]:
    """Draw what a run of `generate diffusion` made."""
    groups = groups_of(results)
    files = [save_bars(groups, measures, real, plots / "summary.png")]
    files += save_frame_errors(results, plots / "frame-errors.png")
    noisy = [one for one in videos.values() if one[0].random]
    if noisy:
        config, context = max(noisy, key=lambda one: one[0].num_frames)
        images = to_unit(data.train[:_COVARIANCE])
        files.append(save_theorem(images, plots / "theorem.png", config, context=context))
    files.append(_draw_samples(plots, data, drawn, seed))
    for name, (config, _) in videos.items():
        files += _draw_videos(plots, name, seed, config, data, to_unit(drawn[name].videos))
    for name in drawn:
        what = name if name in videos else f"{name}, predicted image"
        files.append(_draw_process(plots, name, drawn[name], what=what, unit="step"))
    return files + save_losses(logs, plots / "losses.png", _DIFFUSION_LOSSES)


def draw_hvae(
    plots: Path,
    results: Sequence[Result],
    real: Result,
    data: GenerationData,
    *,
    seed: int,
    drawn: Mapping[str, Drawn],
    logs: Mapping[str, Sequence[Path]],
) -> list[Path]:
    """Draw what a run of `generate hvae` made; arguments as for `draw_diffusion`."""
    distance, score = sample_measures(results)
    # Not the bound, by which the arms don't compare.
    files = [save_bars(groups_of(results), [score, distance], real, plots / "summary.png")]
    files.append(_draw_samples(plots, data, drawn, seed))
    for name in drawn:
        files.append(_draw_process(plots, name, drawn[name], what=f"{name} HVAE", unit="level"))
    return files + save_losses(logs, plots / "losses.png", _HVAE_LOSSES)


def save_bars(
    groups: Sequence[Group], measures: Sequence[Measure], real: Result, file: Path
) -> Path:
    """Write numbers of all arms as bars with standard errors, the seeds as dots."""
    size = (_WIDTH, _BAR * len(groups) + _AROUND)
    figure, found = panels(len(measures), _ACROSS, size, shared=False, extra=(1.9, 0.35))
    lined, dotted = False, False
    for place, (axes, measure) in enumerate(zip(found, measures, strict=True)):
        dotted |= _draw_bars(axes, groups, measure)
        level = value_of(real, measure.path[1:]) if measure.path[0] == "generation" else None
        if level is not None:
            axes.axvline(level, color=GUIDE, linestyle="--", linewidth=1.2)
            lined = True
        first = place % min(_ACROSS, len(measures)) == 0
        axes.set_yticks(range(len(groups)), [group.name if first else "" for group in groups])
        axes.set_ylim(len(groups) - 0.5, -0.5)
    handles = [Line2D((), (), label="a seed", **_SEED_DOT)] if dotted else []
    if lined:
        handles.append(Line2D((), (), color=GUIDE, linestyle="--", linewidth=1.2, label=REAL))
    if handles:
        legend_below(figure, handles)
    figure.savefig(file)
    return file


def _draw_bars(axes: Axes, groups: Sequence[Group], measure: Measure) -> bool:
    """A panel of bars; gives whether it has dots of seeds."""
    dotted = False
    style: dict[str, Any] = {"ecolor": GUIDE, "capsize": 3, "height": 0.66, "alpha": 0.85}
    for place, group in enumerate(groups):
        summary = group.summary(measure.path)
        if summary.mean is None:
            axes.text(
                *(0.02, place, "not measured"),
                transform=axes.get_yaxis_transform(),
                va="center",
                fontsize=8,
                color="#6A6A6A",
            )
            continue
        colour = COLOURS[place % len(COLOURS)]
        axes.barh(place, summary.mean, xerr=summary.standard_error, color=colour, **style)
        if len(summary.values) > 1:
            values = np.array(summary.values, dtype=float)
            axes.plot(values, np.full(len(values), place + 0.22), **_SEED_DOT)
            dotted = True
    axes.margins(x=0.08)
    axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
    axes.locator_params(axis="x", nbins=5)
    axes.set_title(measure.head, fontsize=10)
    light_grid(axes)
    if measure.unit:
        axes.set_xlabel(measure.unit.strip(), fontsize=9)
    return dotted


def save_summary(
    results: Sequence[Result],
    file: Path,
    *,
    floors: Sequence[Result] = (),
    real: Result | None = None,
) -> Path:
    """Write the comparison as a picture: an arm a row, a colour a stem, a panel a number.

    Means over the seeds with their standard errors, the seeds as small dots; a bar across an arm's
    row is patch k-means at equal tokens. Panels of samples have the arms that were sampled alone.
    """
    trained = [result for result in results if result["stem"] != FLOOR]
    floors = [*floors, *(result for result in results if result["stem"] == FLOOR)]
    if not trained:
        raise ValueError("results must hold at least one trained tokenizer, got none")
    measures = _measures(trained)
    groups = groups_of(trained)
    bits = {group.arm: group.fact("bits") for group in reversed(groups)}
    order = list(dict.fromkeys(group.arm for group in groups))
    sampled = {result["arm"] for result in trained if result.get("generation")}
    stems = list(dict.fromkeys(group.stem for group in groups))
    columns = 2 if len(measures) == 4 else min(_ACROSS, len(measures))
    width, row = _PANEL
    size = (width, row * len(order) * max(1, len(stems) / 2) + 1.05)
    figure, found = panels(len(measures), columns, size, shared=False, extra=(1.6, 0.5))
    distance = None if real is None else value_of(real, ("fd",))
    shown: list[str] = []
    for place, (axes, measure) in enumerate(zip(found, measures, strict=True)):
        of_samples = measure.path[0] == "generation"
        arms = [arm for arm in order if arm in sampled] if of_samples else order
        _draw_measure(axes, measure, groups, groups_of(floors), arms, stems)
        if of_samples and distance is not None:
            axes.axvline(distance, color=GUIDE, linestyle="--", linewidth=1.2)
        named = place % columns == 0 or arms != shown
        labels = [f"{arm}\n{bits[arm]:,.0f} bits" if named else "" for arm in arms]
        axes.set_yticks(range(len(arms)), labels)
        axes.set_ylim(len(arms) - 0.5, -0.5)
        shown = arms
    lined = distance is not None and any(m.path[0] == "generation" for m in measures)
    _summary_legend(figure, stems, floors=bool(floors), real=lined)
    figure.savefig(file)
    return file


def _summary_legend(figure: Figure, stems: Sequence[str], *, floors: bool, real: bool) -> None:
    handles = [
        Line2D((), (), color=COLOURS[i], marker="os"[i % 2], linestyle="", label=f"stem {stem}")
        for i, stem in enumerate(stems)
    ]
    if floors:
        handles.append(
            Line2D((), (), color=GUIDE, marker="|", markersize=12, linestyle="", label=FLOOR)
        )
    if real:
        handles.append(Line2D((), (), color=GUIDE, linestyle="--", linewidth=1.2, label=REAL))
    across = 2 if len(handles) == 4 else 3
    figure.legend(
        handles=handles, loc="outside lower center", ncols=across, frameon=False, fontsize=9
    )


def _measures(results: Sequence[Result]) -> list[Measure]:
    distance = fd_name(results)
    found = [
        Measure("PSNR (dB)", "higher", ("reconstruction", "psnr")),
        Measure(f"{distance}\nreconstructions", "lower", ("reconstruction", "fd")),
    ]
    found += [
        Measure(f"{distance}\n{prior} samples", "lower", ("generation", prior, "fd"))
        for prior in priors_of(results)
    ]
    return found


def _draw_measure(
    axes: Axes,
    measure: Measure,
    groups: Sequence[Group],
    floors: Sequence[Group],
    arms: Sequence[str],
    stems: Sequence[str],
) -> None:
    spread = 0.36 if len(stems) > 1 else 0.0
    for group in groups:
        if group.arm not in arms:
            continue
        stem = stems.index(group.stem)
        height = arms.index(group.arm) + spread * (stem / max(1, len(stems) - 1) - 0.5)
        summary = group.summary(measure.path)
        seeds = [value for value in summary.values if value is not None]
        colour = COLOURS[stem % len(COLOURS)]
        if len(seeds) > 1:
            axes.plot(seeds, [height] * len(seeds), ".", color=colour, markersize=4, alpha=0.45)
        if summary.mean is not None:
            axes.errorbar(
                summary.mean,
                height,
                xerr=summary.standard_error,
                color=colour,
                marker="os"[stem % 2],
                markersize=5.5,
                linewidth=1.6,
                capsize=3,
            )
    for floor in floors:
        mean = floor.summary(measure.path).mean
        if mean is not None and floor.arm in arms:
            place = arms.index(floor.arm)
            axes.vlines(mean, place - 0.36, place + 0.36, color=GUIDE, linewidth=1.6)
    axes.margins(x=0.08)
    axes.locator_params(axis="x", nbins=5)
    lines = [textwrap.fill(line, _TITLE_LETTERS) for line in measure.head.splitlines()]
    axes.set_title("\n".join(lines), fontsize=9.5)
    light_grid(axes)


def _draw_samples(plots: Path, data: GenerationData, drawn: Mapping[str, Drawn], seed: int) -> Path:
    """Draw samples of all models beside images of the test part, no more of these."""
    shown = {name: to_unit(one.images[:_GRID]) for name, one in drawn.items()}
    shown = {REAL: to_unit(data.test[: max(map(len, shown.values()))]), **shown}
    figure, found = panels(len(shown), _GRIDS_ACROSS, _GRID_PANEL, shared=False, extra=(0.2, 0.45))
    for axes, (label, own) in zip(found, shown.items(), strict=True):
        check_images(label, own, 4)
        axes.imshow(tiles(own, side(len(own))))
        axes.set_axis_off()
        axes.set_title(textwrap.fill(label, _GRID_LETTERS), fontsize=10)
    headline(figure, f"{data.name}: samples, seed {seed}", 11)
    figure.savefig(plots / "samples.png")
    return plots / "samples.png"


def _draw_videos(
    plots: Path,
    name: str,
    seed: int,
    config: PseudoVideoConfig,
    data: GenerationData,
    videos: Float[Tensor, "n t c h w"],
) -> list[Path]:
    """Draw strips of generated videos below one that was made of a test image, and a film."""
    rows = [*pseudo_videos(to_unit(data.test[:1]), config), *videos[:_STRIPS]]
    labels = ["made of a test image"] + ["generated"] * (len(rows) - 1)
    frames = videos.shape[1]
    title = f"{name}, seed {seed}: frames of videos"
    strips = plots / f"videos-{name}.png"
    save_rows(labels, rows, strips, frame_heads(frames), title=title)
    captions = frame_captions(name, frames)
    return [strips, save_gif(videos[:_FILM], plots / f"videos-{name}.gif", captions=captions)]


def _draw_process(plots: Path, name: str, drawn: Drawn, *, what: str, unit: str) -> Path:
    """Draw a film of how samples come into being."""
    frames = drawn.process[:_ROWS] if drawn.process.shape[2] > 1 else drawn.process
    return save_process(frames, drawn.done, plots / f"process-{name}.gif", name=what, unit=unit)
