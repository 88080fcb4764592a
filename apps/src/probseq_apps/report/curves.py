"""Curves of training from the logs of runs, as PNG."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from probseq.figures import GUIDE, light_grid, line_style, panels
from probseq_apps.engine.log import read_metrics
from probseq_apps.report.figures import legend_below, log_axis

_ACROSS = 3
# Smaller ratios of the largest to the smallest loss need no logarithm, whose ticks are few then.
_WIDE = 10.0
# Rows of a log up to which each has a marker.
_FEW_POINTS = 30


class Quantity(NamedTuple):
    """A panel: a number of the logs."""

    key: str  # where rows hold it
    title: str
    label: str  # of its axis, with the unit
    factor: float = 1.0  # what logged values are multiplied by
    wide: bool = False  # whether it may span powers of ten


class Line(NamedTuple):
    """A curve of a panel."""

    x: np.ndarray
    y: np.ndarray
    style: Mapping[str, Any]  # colour, dashes and marker


def save_losses(
    runs: Mapping[str, Sequence[Path]], file: Path, labels: Mapping[str, Quantity]
) -> list[Path]:
    """Write what the logs of all runs hold: a panel a number, a line an arm, mean over its seeds.

    Seeds whose logs have other steps, as those that have just begun, have lines of their own.
    """
    logs = {arm: [read_metrics(folder) for folder in folders] for arm, folders in runs.items()}
    curves: dict[Quantity, list[Line]] = {}
    for quantity in labels.values():
        lines = [
            Line(x, y, line_style(place))
            for place, several in enumerate(logs.values())
            for x, y in _averaged([curve_of(rows, quantity) for rows in several])
        ]
        if any(len(line.x) for line in lines):
            curves[quantity] = lines
    if not curves:
        return []
    handles = [
        Line2D((), (), label=arm, markersize=4, linewidth=1.4, **line_style(place))
        for place, arm in enumerate(logs)
    ]
    draw_lines(curves, handles, file)
    return [file]


def _averaged(
    curves: Sequence[tuple[np.ndarray, np.ndarray]],
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The mean of curves over the same steps; else the curves themselves."""
    steps = curves[0][0]
    if any(not np.array_equal(steps, x) for x, _ in curves):
        return list(curves)
    return [(steps, np.mean([y for _, y in curves], axis=0))]


class _Run(NamedTuple):
    """What a label `ARM, STEM, PRIOR` says; empty where it is shorter."""

    arm: str
    stem: str
    prior: str

    @classmethod
    def of(cls, label: str) -> "_Run":
        """The parts of a label."""
        arm, stem, prior = [*label.split(", ", 2), "", ""][:3]
        return cls(arm, stem, prior)


_TOKENIZER = (
    Quantity("loss", "Training loss", "Loss", wide=True),
    Quantity(
        "parts/reconstruction", "Squared error, training", "Squared error per pixel", wide=True
    ),
    Quantity("parts/psnr", "PSNR of the image, training", "PSNR (dB)"),
    Quantity("score", "PSNR of the image, validation", "PSNR (dB)"),
)
_CODES = (
    Quantity("parts/usage", "Codebook usage of a batch", "Usage (%)", factor=100.0),
    Quantity("parts/perplexity", "Perplexity of a batch", "Perplexity (codes)"),
)
# A masked prior predicts the masked tokens alone: its numbers aren't those of other priors.
_NATS = {"masked": "Nats per masked token"}
_STEM_LINES = ("-", "--", ":")
# Steps and values of each run, seed by seed.
_Curves = Mapping[_Run, Sequence[tuple[np.ndarray, np.ndarray]]]


def save_training_curves(
    runs: Mapping[str, Path | Sequence[Path]],
    folder: Path,
    *,
    name: str = "tokenizer",
) -> list[Path]:
    """Write `NAME-loss.png` and, where codebooks were trained, `NAME-codebook.png`.

    A colour an arm, a line style a stem; each kind of prior has panels of its own.
    """
    logs = {
        _Run.of(label): [read_metrics(path) for path in ([one] if isinstance(one, Path) else one)]
        for label, one in runs.items()
    }
    written: list[Path] = []
    for kind in ("loss", "codebook"):
        curves: dict[Quantity, _Curves] = {}
        for prior in dict.fromkeys(run.prior for run in logs):
            own = {run: found for run, found in logs.items() if run.prior == prior}
            for quantity in _quantities(name, kind, prior):
                found = {
                    run: [curve_of(rows, quantity) for rows in several]
                    for run, several in own.items()
                }
                if any(len(x) for several in found.values() for x, _ in several):
                    curves[quantity] = found
        if curves:
            folder.mkdir(parents=True, exist_ok=True)
            written.append(folder / f"{name}-{kind}.png")
            _draw_curves(curves, list(logs), written[-1])
    return written


def curve_of(
    rows: Sequence[Mapping[str, Any]], quantity: Quantity
) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values of a number, where it was logged."""
    points: list[tuple[float, float]] = []
    for row in rows:
        found: Any = row
        for part in quantity.key.split("/"):
            found = found.get(part) if isinstance(found, Mapping) else None
        if found is not None:
            points.append((row["step"], found))
    array = np.array(points, dtype=float).reshape(-1, 2)
    return array[:, 0], quantity.factor * array[:, 1]


def draw_lines(
    curves: Mapping[Quantity, Sequence[Line]], handles: Sequence[Line2D], file: Path
) -> None:
    """Write a panel for each number, and one legend."""
    across = 2 if len(curves) == 4 else _ACROSS
    figure, found = panels(len(curves), across, (3.5, 2.7), shared=False)
    for axes, (quantity, lines) in zip(found, curves.items(), strict=True):
        for x, y, style in lines:
            (drawn,) = axes.plot(x, y, markersize=3, linewidth=1.4, **style)
            if len(x) > _FEW_POINTS:
                drawn.set_marker("")
        _finish(axes, quantity, [line.y for line in lines])
    legend_below(figure, handles)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)


def _finish(axes: Axes, quantity: Quantity, curves: Sequence[np.ndarray]) -> None:
    """Title, axes and ticks of a panel."""
    values = np.concatenate(curves)
    if quantity.wide and 0.0 < _WIDE * values.min() < values.max():
        log_axis(axes, values)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
    axes.set_title(quantity.title, fontsize=10)
    axes.set_xlabel("Optimizer steps", fontsize=9)
    axes.set_ylabel(quantity.label, fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    light_grid(axes)


def _quantities(name: str, kind: str, prior: str) -> Sequence[Quantity]:
    """What is drawn of the runs of one kind of prior; of tokenizers `prior` is empty."""
    if kind == "codebook":
        return _CODES
    if name != "prior":
        return _TOKENIZER
    whose = f"{prior.capitalize()} prior" if prior else "Prior"
    label = _NATS.get(prior, "Nats per token")
    return (
        Quantity("loss", f"{whose}, training", label),
        # Scores rise: less the nats per token.
        Quantity("score", f"{whose}, validation", label, factor=-1.0),
    )


def _draw_curves(curves: Mapping[Quantity, _Curves], runs: Sequence[_Run], file: Path) -> None:
    arms = list(dict.fromkeys(run.arm for run in runs))
    stems = list(dict.fromkeys(run.stem for run in runs))
    lines = {
        quantity: [
            Line(x, y, _curve_style(arms.index(run.arm), stems.index(run.stem)))
            for run, several in by_run.items()
            for x, y in several
        ]
        for quantity, by_run in curves.items()
    }
    draw_lines(lines, _curve_handles(arms, stems), file)


def _curve_style(arm: int, stem: int) -> dict[str, Any]:
    """Colour and marker of an arm, dashes of a stem."""
    return line_style(arm) | {"linestyle": _STEM_LINES[stem % len(_STEM_LINES)]}


def _curve_handles(arms: Sequence[str], stems: Sequence[str]) -> list[Line2D]:
    """Each arm in its colour, then each stem in its line style."""
    handles = [
        Line2D((), (), label=arm, markersize=4, linewidth=1.4, **_curve_style(place, 0))
        for place, arm in enumerate(arms)
    ]
    handles += [
        Line2D(
            (),
            (),
            label=f"stem {stem}",
            color=GUIDE,
            linewidth=1.4,
            linestyle=_STEM_LINES[place % len(_STEM_LINES)],
        )
        for place, stem in enumerate(stems)
        if stem
    ]
    return handles
