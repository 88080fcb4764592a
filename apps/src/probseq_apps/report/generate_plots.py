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

from probseq.figures import COLOURS, GUIDE, headline, light_grid, line_style, panels
from probseq_apps.data.images import GenerationData, to_unit
from probseq_apps.report.curves import Quantity, save_losses, save_training_curves
from probseq_apps.report.figures import legend_below, log_axis
from probseq_apps.report.generate_tables import diffusion_measures
from probseq_apps.report.results import (
    FLOOR,
    REAL,
    Group,
    Result,
    fd_name,
    frame_groups,
    frames_of,
    groups_of,
    lengths_of,
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
_ERRORS_TITLE = (
    "How well a frame is predicted from the true frames before it; exact: the least error for "
    "Gaussian images with the data's covariance"
)
# Error bars of arms at the same frame stand so far apart.
_APART = 0.07
# Larger ratios of the largest to the smallest are shown on a logarithmic axis.
_WIDE = 10.0
_HOLLOW: dict[str, Any] = {"linestyle": "--", "markerfacecolor": "white"}
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
    """Draw what a run of `generate run` made.

    Args:
        plots: folder of the files.
        results: of all arms, stems and seeds.
        floors: of patch k-means.
        real: of the test images as if they were samples.
        data: the images.
        seed: of the models that drew.
        videos: the longest pseudo videos.
        reconstructed: test images by stem and arm.
        samples: title, images and videos by file name.
        tokenizer_logs: folders of `fit` by label.
        prior_logs: the same of priors.
    """
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
    """Draw a grid of samples; of videos also strips and a film.

    Args:
        images: samples.
        videos: the first of them with all their frames.
        plots: folder of the files.
        name: begins the files' names.
        title: stands above the images, and above the strips.
    """
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
    videos: Mapping[str, tuple[PseudoVideoConfig, int]],
    drawn: Mapping[str, Drawn],
    logs: Mapping[str, Sequence[Path]],
) -> list[Path]:
    """Draw what a run of `generate diffusion` made.

    Args:
        plots: folder of the files.
        results: of all arms and seeds.
        real: of the test images as if they were samples.
        data: the images.
        seed: of the models that drew.
        videos: what the videos of arms of more than one frame are made by, and the context.
        drawn: by arm.
        logs: folders of `fit`, by arm.
    """
    groups = groups_of(results)
    files = [save_bars(groups, diffusion_measures(results), real, plots / "summary.png")]
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
    """Write numbers of all arms as bars with standard errors, the seeds as dots.

    Args:
        groups: the arms.
        measures: a panel each; arms that lack a number have no bar.
        real: of the test images as if they were samples, a dashed line where it has the number.
        file: the file.
    """
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

    Args:
        results: of all arms, stems and seeds, as JSON holds them.
        file: the file.
        floors: of patch k-means in the same form; those among `results` are taken too.
        real: of the test images as if they were samples, a line across the panels of samples.

    Raises:
        ValueError: no results.
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


def save_frame_errors(results: Sequence[Result], file: Path) -> list[Path]:
    """Write the errors of each frame, a row for each length of videos.

    Left the errors of models, filled, beside the exact ones, hollow and dashed; right their ratio.

    Args:
        results: of all arms and seeds.
        file: the file.

    Returns:
        The file; none where no arm has errors of frames.
    """
    arms = frame_groups(results)
    lengths = lengths_of(arms)
    if not lengths:
        return []
    figure, found = panels(2 * len(lengths), 2, (4.4, 3.0), shared=False, extra=(0.3, 1.0))
    # The same colour for an arm in all panels.
    names = [arm.name for arm in arms]
    for place, frames in enumerate(lengths):
        own = [arm for arm in arms if arm.fact("frames") == frames]
        left, right = found[2 * place : 2 * place + 2]
        for number, arm in enumerate(own):
            style = line_style(names.index(arm.name))
            offset = _APART * (number - (len(own) - 1) / 2)
            _draw_errors(left, arm, offset, style)
            _draw_ratios(right, arm, offset, style)
        log_axis(left, _positive(own))
        right.axhline(1.0, color=GUIDE, linewidth=0.9, linestyle=":")
        ratios = _ratios(own)
        # Models that are hardly trained are far from exact, each frame by another factor.
        if ratios.min() > 0.0 and ratios.max() > _WIDE * ratios.min():
            log_axis(right, ratios)
        _finish(left, own, f"Error, T = {frames}", "Squared error per pixel ($10^{-3}$)")
        _finish(right, own, f"Error of the model / exact, T = {frames}", "Times the exact error")
    handles = [
        Line2D((), (), label=name, markersize=5, linewidth=1.4, **line_style(place))
        for place, name in enumerate(names)
    ]
    exact = "exact, in the arm's colour"
    handles.append(Line2D((), (), label=exact, color=GUIDE, marker="o", **_HOLLOW))
    legend_below(figure, handles)
    headline(figure, _ERRORS_TITLE, 10)
    figure.savefig(file)
    return [file]


def _draw_errors(axes: Axes, arm: Group, offset: float, style: dict[str, Any]) -> None:
    frames = frames_of(arm)
    places = np.array(frames) + offset
    for kind in ("model", "exact"):
        found = [arm.summary((kind, str(frame))) for frame in frames]
        means = np.array([summary.mean for summary in found], dtype=float)
        if np.isnan(means).all():
            continue
        errors = np.array([summary.standard_error or 0.0 for summary in found])
        _errorbars(axes, places, means, errors, style if kind == "model" else style | _HOLLOW)


def _draw_ratios(axes: Axes, arm: Group, offset: float, style: dict[str, Any]) -> None:
    frames = frames_of(arm)
    ratios: list[list[float]] = []
    for frame in frames:
        model = arm.summary(("model", str(frame))).values
        exact = arm.summary(("exact", str(frame))).mean
        ratios.append([float("nan") if v is None or not exact else v / exact for v in model])
    table = np.array(ratios)
    if np.isnan(table).all():
        return
    count = table.shape[1]
    errors = table.std(1, ddof=1) / np.sqrt(count) if count > 1 else np.zeros(len(table))
    _errorbars(axes, np.array(frames) + offset, table.mean(1), errors, style)


def _errorbars(
    axes: Axes, x: np.ndarray, y: np.ndarray, errors: np.ndarray, style: dict[str, Any]
) -> None:
    axes.errorbar(x, y, yerr=errors, markersize=5, linewidth=1.4, capsize=2.5, **style)


def _ratios(arms: Sequence[Group]) -> np.ndarray:
    """All means that the right panel shows, and 1."""
    found = [1.0]
    for arm in arms:
        for frame in frames_of(arm):
            model = arm.summary(("model", str(frame))).mean
            exact = arm.summary(("exact", str(frame))).mean
            if model is not None and exact:
                found.append(model / exact)
    return np.array(found)


def _positive(arms: Sequence[Group]) -> np.ndarray:
    """All errors that a logarithmic axis can show; an unbiased one may fall below zero."""
    found = [
        arm.summary((kind, str(frame))).mean
        for arm in arms
        for kind in ("model", "exact")
        for frame in frames_of(arm)
    ]
    return np.array([value for value in found if value is not None and value > 0.0] or [1.0])


def _finish(axes: Axes, arms: Sequence[Group], title: str, label: str) -> None:
    frames = sorted({frame for arm in arms for frame in frames_of(arm)})
    last = arms[0].fact("frames")
    names = ["image" if frame == last else str(frame) for frame in frames]
    axes.set_xticks(frames, names)
    axes.set_xlim(frames[0] - 0.5, frames[-1] + 0.5)
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("Predicted frame (number)", fontsize=9)
    axes.set_ylabel(label, fontsize=9)
    light_grid(axes)


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
