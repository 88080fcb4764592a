"""Curves of `probseq generate`: training, codebooks, and the comparison at a glance; as PNG."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from probseq_apps.report.arm_results import REAL, Measure, Result, value_of
from probseq_apps.report.generate_results import (
    FLOOR,
    Group,
    fd_name,
    groups_of,
    priors_of,
)
from probseq_apps.report.labels import ARROWS
from probseq_apps.report.online_look import (
    COLOURS,
    GUIDE,
    light_grid,
    line_style,
    panels,
)
from probseq_apps.report.training_curves import Line, Quantity, curve_of, draw_lines
from probseq_apps.training.runs import read_metrics

_ACROSS = 3
# Width and height of a panel of the summary, and the letters of its title that fit a line.
_PANEL, _TITLE_LETTERS = (2.5, 0.34), 32


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

    Args:
        runs: folders of `fit` by label, which is `ARM`, `ARM, STEM` or `ARM, STEM, PRIOR`; several
            of one label, such as seeds, look alike.
        folder: where to write; made if it is not there.
        name: what was trained, `tokenizer` or `prior`; begins the files' names.

    Returns:
        The files; none where no run has logged anything.
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
        file: the file; its folder is made.
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
    file.parent.mkdir(parents=True, exist_ok=True)
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


def _measures(results: Sequence[Result]) -> list[Measure]:
    distance = fd_name(results)
    found = [
        Measure("PSNR", " (dB)", "higher", ("reconstruction", "psnr")),
        Measure(f"{distance}\nreconstructions", "", "lower", ("reconstruction", "fd")),
    ]
    found += [
        Measure(f"{distance}\n{prior} samples", "", "lower", ("generation", prior, "fd"))
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
    title = f"{measure.label}{measure.unit} {ARROWS[measure.direction]}"
    lines = [textwrap.fill(line, _TITLE_LETTERS) for line in title.splitlines()]
    axes.set_title("\n".join(lines), fontsize=9.5)
    light_grid(axes)
