"""Curves of `probseq generate`: training, codebooks, and the comparison at a glance; as PNG."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullFormatter

from probseq_apps.report.generate_results import (
    FLOOR,
    Group,
    Measure,
    Result,
    fd_name,
    groups_of,
    priors_of,
)
from probseq_apps.report.labels import ARROWS
from probseq_apps.report.online_look import (
    COLOURS,
    GUIDE,
    legend,
    light_grid,
    line_style,
    panels,
)
from probseq_apps.training.runs import read_metrics

_ACROSS = 3
# Smaller ratios of the largest to the smallest loss need no logarithm.
_WIDE = 3.0
# Rows of a log up to which each has a marker.
_FEW_POINTS = 30
_LOSS = {"loss": "Training loss", "parts/reconstruction": "Squared error, training"}
_PSNR = {"parts/psnr": "PSNR of the image, training (dB)"}
_SCORES = {
    "tokenizer": "Validation PSNR (dB)",
    "prior": "Validation: less the nats per token",
}
_CODES = {"parts/usage": "Codebook usage of a batch", "parts/perplexity": "Perplexity of a batch"}


def save_training_curves(
    runs: Mapping[str, Path | Sequence[Path]],
    folder: Path,
    *,
    name: str = "tokenizer",
) -> list[Path]:
    """Write `NAME-loss.png` and, where codebooks were trained, `NAME-codebook.png`.

    Args:
        runs: folders of `fit` by label; several of one label, such as seeds, look alike.
        folder: where to write; made if it is not there.
        name: what was trained, `tokenizer` or `prior`; begins the files' names.

    Returns:
        The files; none where no run has logged anything.
    """
    logs = {
        label: [read_metrics(path) for path in ([one] if isinstance(one, Path) else one)]
        for label, one in runs.items()
    }
    score = _SCORES.get(name, "Validation score")
    written: list[Path] = []
    for kind, quantities in (("loss", _LOSS | _PSNR | {"score": score}), ("codebook", _CODES)):
        curves = {
            title: {label: [_curve(rows, key) for rows in found] for label, found in logs.items()}
            for key, title in quantities.items()
        }
        curves = {
            title: found
            for title, found in curves.items()
            if any(len(x) for several in found.values() for x, _ in several)
        }
        if curves:
            folder.mkdir(parents=True, exist_ok=True)
            written.append(folder / f"{name}-{kind}.png")
            _draw_curves(curves, written[-1])
    return written


def save_summary(results: Sequence[Result], file: Path, *, floors: Sequence[Result] = ()) -> Path:
    """Write the comparison as a picture: an arm a row, a colour a stem, a panel a number.

    Means over the seeds with their standard errors, the seeds as small dots; a bar across an arm's
    row is the floor, patch k-means at equal tokens.

    Args:
        results: of all arms, stems and seeds, as JSON holds them.
        floors: of patch k-means in the same form; those among `results` are taken too.
        file: the file; its folder is made.

    Raises:
        ValueError: no results.
    """
    trained = [result for result in results if result["stem"] != FLOOR]
    floors = [*floors, *(result for result in results if result["stem"] == FLOOR)]
    if not trained:
        raise ValueError("results must hold at least one trained tokenizer, got none")
    measures = _measures(trained)
    groups = groups_of(trained)
    arms = {group.arm: group for group in reversed(groups)}
    order = list(dict.fromkeys(group.arm for group in groups))
    stems = list(dict.fromkeys(group.stem for group in groups))
    columns = 2 if len(measures) == 4 else min(_ACROSS, len(measures))
    size = (2.5, 0.34 * len(order) * max(1, len(stems) / 2) + 0.9)
    figure, found = panels(len(measures), columns, size, shared=False, extra=(1.6, 0.5))
    for place, (axes, measure) in enumerate(zip(found, measures, strict=True)):
        _draw_measure(axes, measure, groups, groups_of(floors), order, stems)
        labels = [f"{arm}\n{arms[arm].fact('bits'):,.0f} bits" for arm in order]
        axes.set_yticks(range(len(order)), labels if place % columns == 0 else [""] * len(order))
        axes.set_ylim(len(order) - 0.5, -0.5)
    handles = [
        Line2D((), (), color=COLOURS[i], marker="os"[i % 2], linestyle="", label=f"stem {stem}")
        for i, stem in enumerate(stems)
    ]
    if floors:
        handles.append(
            Line2D(
                (),
                (),
                color=GUIDE,
                marker="|",
                markersize=12,
                linestyle="",
                label=f"floor: {FLOOR}",
            )
        )
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)
    return file


def _curve(rows: Sequence[Mapping[str, Any]], key: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values of a number, where it was logged."""
    points: list[tuple[float, float]] = []
    for row in rows:
        found: Any = row
        for part in key.split("/"):
            found = found.get(part) if isinstance(found, Mapping) else None
        if found is not None:
            points.append((row["step"], found))
    array = np.array(points, dtype=float).reshape(-1, 2)
    return array[:, 0], array[:, 1]


def _draw_curves(
    curves: Mapping[str, Mapping[str, Sequence[tuple[np.ndarray, np.ndarray]]]], file: Path
) -> None:
    count = len(curves)
    across = 2 if count == 4 else _ACROSS
    figure, found = panels(count, across, (3.5, 2.7), shared=False)
    for axes, (title, by_label) in zip(found, curves.items(), strict=True):
        values = np.concatenate([y for several in by_label.values() for _, y in several])
        for place, (label, several) in enumerate(by_label.items()):
            for x, y in several:
                style = line_style(place)
                if len(x) > _FEW_POINTS:
                    style["marker"] = ""
                axes.plot(x, y, label=label, markersize=3, linewidth=1.4, **style)
        if title in _LOSS.values() and 0.0 < _WIDE * values.min() < values.max():
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(_plain)
            # Less than two decades may have one power of ten.
            if values.max() < 100 * values.min():
                axes.yaxis.set_minor_formatter(_some)
            else:
                axes.yaxis.set_minor_formatter(NullFormatter())
            axes.tick_params(which="minor", labelsize=8)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("Optimizer steps", fontsize=9)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        light_grid(axes)
    letters = max(len(label) for by_label in curves.values() for label in by_label)
    legend(figure, found, across=max(1, int(figure.get_figwidth() / (0.085 * letters + 0.6))))
    figure.savefig(file)


def _plain(value: float, _: float | int | None) -> str:
    return f"{value:g}"


def _some(value: float, _: float | int | None) -> str:
    """Twice, three and five times a power of ten: all would be too close."""
    return f"{value:g}" if f"{value:.0e}"[0] in "235" else ""


def _measures(results: Sequence[Result]) -> list[Measure]:
    distance = fd_name(results)
    found = [
        Measure("PSNR", " (dB)", "higher", ("reconstruction", "psnr")),
        Measure(f"{distance}, reconstructions", "", "lower", ("reconstruction", "fd")),
    ]
    found += [
        Measure(f"{distance}, {prior} samples", "", "lower", ("generation", prior, "fd"))
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
    axes.set_title(f"{measure.label}{measure.unit} {ARROWS[measure.direction]}", fontsize=9.5)
    light_grid(axes)
