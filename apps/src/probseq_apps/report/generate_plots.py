"""Plots of `probseq generate`: numbers, errors of frames, curves of training, and what is drawn."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from probseq.figures import TrainingCurves, line_style, training_plot
from probseq_apps.data.images import GenerationData
from probseq_apps.engine.log import read_metrics
from probseq_apps.report.report import PAGES, save_figures
from probseq_apps.report.results import (
    REAL,
    Group,
    Result,
    frame_groups,
    frames_of,
    value_of,
    words,
)
from pseudovideo.corruptions import PseudoVideoConfig, pseudo_videos
from pseudovideo.pixels import to_unit
from pseudovideo.plots import (
    FrameErrors,
    frame_errors_plot,
    frame_heads,
    save_gif,
    save_grid,
    save_grids,
    save_rows,
)

# Strips of generated videos, and videos of a film.
_STRIPS, _FILM = 3, 16
# Samples of a grid; classes of a picture, and samples of each.
_SAMPLES, _CLASSES, _OF_CLASS = 64, 20, 10
# Videos below each other; samples of each model beside others.
_VIDEOS, _GRID = 4, 36


class Quantity(NamedTuple):
    """A panel: a number of the logs."""

    key: str  # where rows hold it
    title: str
    label: str  # of its axis, with the unit
    factor: float = 1.0  # what logged values are multiplied by
    wide: bool = False  # whether it may span powers of ten
    prior: str = ""  # kind of the priors that alone have it; empty for all runs


CURVES = {name: [Quantity(**panel) for panel in panels] for name, panels in PAGES["curves"].items()}


def draw_tokens(
    plots: Path,
    _: Sequence[Result],
    data: GenerationData,
    *,
    seed: int,
    videos: PseudoVideoConfig,
    reconstructed: Mapping[str, Mapping[str, Float[Tensor, "n c h w"]]],
    samples: Mapping[str, tuple[str, Any]],
    tokenizer_logs: Mapping[str, Sequence[Path]],
    prior_logs: Mapping[str, Sequence[Path]],
) -> list[Path]:
    """Draw what a run of `generate run` made.

    Reconstructions are of test images, by stem and variant; samples have a title, images, videos
    and labels, by the prior's name; logs are folders of all seeds by variant and stem,
    and by prior.
    """
    files: list[Path] = []
    if videos.num_frames > 1:
        clips = pseudo_videos(to_unit(data.test[:_VIDEOS]), videos)
        heads = frame_heads(videos.num_frames)
        files.append(save_rows([""] * len(clips), [*clips], plots / "pseudo-videos.png", heads))
    for stem, variants in reconstructed.items():
        truth = to_unit(data.test[: max(map(len, variants.values()))])
        title = f"Test images and their reconstructions, stem {stem}, seed {seed}"
        labels, rows = ["truth", *map(words, variants)], [truth, *variants.values()]
        files.append(save_rows(labels, rows, plots / f"reconstructions-{stem}.png", title=title))
    if samples:
        images = {title: of_prior.images for title, of_prior in samples.values()}
        files.append(_save_beside_real(images, data, plots, seed=seed))
    for name, (title, of_prior) in samples.items():
        files += draw_samples(
            of_prior, plots, f"samples-{name}", title=title, class_names=data.class_names
        )
    files += save_curves(tokenizer_logs, plots / "tokenizer-loss.png", CURVES["tokenizer"])
    files += save_curves(tokenizer_logs, plots / "tokenizer-codebook.png", CURVES["codebook"])
    return files + save_curves(prior_logs, plots / "prior-loss.png", CURVES["prior"])


def draw_samples(
    samples: Any,
    plots: Path,
    name: str,
    *,
    title: str | None = None,
    class_names: Sequence[str] = (),
) -> list[Path]:
    """Draw samples, with a row for each class where there are any, and a film of videos."""
    file = plots / f"{name}.png"
    if samples.labels is None:
        files = [save_grid(to_unit(samples.images[:_SAMPLES]), file, title=title)]
    else:
        files = [_save_classes(samples.images, samples.labels, class_names, file, title=title)]
    if samples.videos.shape[1] > 1:
        files.append(save_gif(to_unit(samples.videos[:_FILM]), file.with_suffix(".gif")))
    return files


def draw_models(
    plots: Path,
    results: Sequence[Result],
    data: GenerationData,
    *,
    kind: Literal["diffusion", "hvae"],
    seed: int,
    samples: Mapping[str, Any],
    logs: Mapping[str, Sequence[Path]],
    videos: Mapping[str, tuple[PseudoVideoConfig, int]] | None = None,
) -> list[Path]:
    """Draw what a run of `generate diffusion` or `generate hvae` made.

    Samples with their videos and labels, and folders of all seeds, are by the model's name;
    `videos` has settings and context length of the models of videos.
    """
    errors = {group.name: _frame_errors(group) for group in frame_groups(results)}
    figures = {"frame-errors": frame_errors_plot(errors)} if errors else {}
    files = save_figures(figures, plots)
    by_title = {words(name): of_model.images for name, of_model in samples.items()}
    files.append(_save_beside_real(by_title, data, plots, seed=seed))
    for name, of_model in samples.items():
        if of_model.labels is not None:
            file, title = plots / f"classes-{name}.png", f"{words(name)}, seed {seed}: by class"
            row = of_model.images, of_model.labels, data.class_names
            files.append(_save_classes(*row, file, title=title))
    for name, (config, _) in (videos or {}).items():
        rows = to_unit(samples[name].videos)
        file, heads = plots / f"videos-{name}.png", frame_heads(rows.shape[1])
        strips = [*pseudo_videos(to_unit(data.test[:1]), config), *rows[:_STRIPS]]
        labels = ["made of a test image"] + ["generated"] * (len(strips) - 1)
        title = f"{words(name)}, seed {seed}: frames of videos"
        files.append(save_rows(labels, strips, file, heads, title=title))
        files.append(save_gif(rows[:_FILM], file.with_suffix(".gif")))
    return files + save_curves(logs, plots / "losses.png", CURVES[kind])


draw_diffusion, draw_hvae = (partial(draw_models, kind=kind) for kind in ("diffusion", "hvae"))


def _frame_errors(group: Group) -> FrameErrors:
    frames = frames_of(group)
    model = [group.summary(("model", str(frame))).values for frame in frames]
    exact = [group.summary(("exact", str(frame))).mean for frame in frames]
    arrays = np.array(model, dtype=float).T, np.array(exact, dtype=float)
    return FrameErrors(group.fact("frames"), frames, *arrays)


def save_curves(
    runs: Mapping[str, Sequence[Path]], file: Path, quantities: Sequence[Quantity]
) -> list[Path]:
    """Write what the logs of all runs hold: a panel a number, a line a run, mean over its seeds.

    Seeds whose logs have other steps, as those that have just begun, have lines of their own. Runs
    are folders of their seeds by `VARIANT`, `VARIANT, STEM` or `VARIANT, STEM, PRIOR`. Quantities
    are drawn where any run has them.
    """
    logs = {label: [read_metrics(folder) for folder in folders] for label, folders in runs.items()}
    styles = {label: line_style(number) for number, label in enumerate(runs)}
    curves = {
        quantity: [
            (x, y, styles[label])
            for label, several in logs.items()
            if label.endswith(quantity.prior)
            for x, y in _curves(several, quantity)
        ]
        for quantity in quantities
    }
    curves = {key: lines for key, lines in curves.items() if any(len(x) for x, *_ in lines)}
    if not curves:
        return []
    numbers = [TrainingCurves(q.title, q.label, lines, q.wide) for q, lines in curves.items()]
    return save_figures({file.stem: training_plot(numbers, styles)}, file.parent)


def _curves(
    several: Sequence[Sequence[Mapping[str, Any]]], quantity: Quantity
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return steps and values where they were logged, a mean over logs of the same steps."""
    curves: list[tuple[np.ndarray, np.ndarray]] = []
    for rows in several:
        points = [(row["step"], value_of(row, quantity.key.split("/"))) for row in rows]
        logged = [(step, value) for step, value in points if value is not None]
        steps, values = np.array(logged, dtype=float).reshape(-1, 2).T
        curves.append((steps, quantity.factor * values))
    steps = curves[0][0]
    if any(not np.array_equal(steps, x) for x, _ in curves):
        return curves
    return [(steps, np.mean([y for _, y in curves], axis=0))]


def _save_beside_real(
    samples: Mapping[str, Tensor], data: GenerationData, plots: Path, *, seed: int
) -> Path:
    """Write samples of each model beside real images, no more of them than samples."""
    grids = {title: to_unit(images[:_GRID]) for title, images in samples.items()}
    grids = {REAL: to_unit(data.test[: max(map(len, grids.values()))]), **grids}
    return save_grids(grids, plots / "samples.png", title=f"{data.name}: samples, seed {seed}")


def _save_classes(
    images: UInt8[Tensor, "n c h w"],
    labels: Int64[Tensor, " n"],
    class_names: Sequence[str],
    file: Path,
    *,
    title: str | None,
) -> Path:
    """Write samples in a row for each class; white where a class has fewer."""
    classes: list[int] = labels.unique()[:_CLASSES].tolist()
    rows = [to_unit(images[labels == label][:_OF_CLASS]) for label in classes]
    longest = max(map(len, rows))
    rows = [torch.cat([row, row.new_ones(longest - len(row), *row.shape[1:])]) for row in rows]
    return save_rows([class_names[label] for label in classes], rows, file, title=title)
