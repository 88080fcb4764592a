"""Plots of `probseq generate`: numbers of all variants, errors of frames, and what is drawn."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int64, UInt8
from matplotlib.figure import Figure
from torch import Tensor

from probseq.figures import Bars, bars_plot
from probseq_apps.data.images import GenerationData, to_unit
from probseq_apps.report.curves import Quantity, save_curves
from probseq_apps.report.results import (
    REAL,
    Group,
    Result,
    frame_groups,
    frames_of,
    groups_of,
    value_of,
)
from probseq_apps.report.tables import Measure
from pseudovideo.corruptions import PseudoVideoConfig, pseudo_videos
from pseudovideo.plots import (
    FrameErrors,
    frame_captions,
    frame_errors_plot,
    frame_heads,
    save_gif,
    save_grid,
    save_grids,
    save_process,
    save_rows,
    save_strips,
    save_theorem,
)

# Strips of generated videos, videos of a film, and those of a film of their process.
_STRIPS, _FILM, _ROWS = 3, 16, 4
# Samples of a grid, videos below each other; images whose covariance the theorem is drawn for;
# samples of each model beside others.
_SAMPLES, _VIDEOS, _COVARIANCE, _GRID = 64, 4, 2000, 36
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
_DIFFUSION = (
    Quantity("loss", "Training loss", "Hybrid loss", wide=True),
    Quantity(
        "parts/mse", "Squared error of the noise, training", "Squared error per number", wide=True
    ),
    Quantity("parts/vlb", "Variational bound, training", "Bits per number, one step", wide=True),
)
_HVAE = (
    Quantity("loss", "Bound, training; arms don't compare", "Nats per dimension", wide=True),
    Quantity(
        "parts/steps", "Steps of the decoder; arms don't compare", "Nats per dimension", wide=True
    ),
    Quantity("parts/prior", "Prior, training; arms don't compare", "Nats per dimension", wide=True),
    Quantity(
        "parts/mse", "Error of the sharper frame, training", "Squared error per pixel", wide=True
    ),
)
# Caption of a film of images, unit of its steps, and curves.
_KINDS = {
    "diffusion": ("{}, predicted image", "step", _DIFFUSION),
    "hvae": ("{} HVAE", "level", _HVAE),
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
    real: Result,
    data: GenerationData,
    *,
    measures: Sequence[Measure],
    seed: int,
    videos: PseudoVideoConfig,
    reconstructed: Mapping[str, Mapping[str, Float[Tensor, "n c h w"]]],
    samples: Mapping[str, tuple[str, Tensor, Tensor]],
    tokenizer_logs: Mapping[str, Sequence[Path]],
    prior_logs: Mapping[str, Sequence[Path]],
) -> list[Path]:
    """Draw what a run of `generate run` made."""
    files = [_saved(summary_figure(results, measures, real), plots / "summary.png")]
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
    files += save_curves(tokenizer_logs, plots / "tokenizer-loss.png", _TOKENIZER)
    files += save_curves(tokenizer_logs, plots / "tokenizer-codebook.png", _CODES)
    nats: list[Quantity] = []
    for prior in dict.fromkeys(label.split(", ")[-1] for label in prior_logs):
        # A masked prior predicts the masked tokens alone: its numbers aren't those of others.
        whose, token = (
            f"{prior.capitalize()} prior",
            "masked token" if prior == "masked" else "token",
        )
        nats += [
            Quantity("loss", f"{whose}, training", f"Nats per {token}", prior=prior),
            # Scores rise: less the nats per token.
            Quantity("score", f"{whose}, validation", f"Nats per {token}", -1.0, prior=prior),
        ]
    return files + save_curves(prior_logs, plots / "prior-loss.png", nats)


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


def draw_models(
    plots: Path,
    results: Sequence[Result],
    real: Result,
    data: GenerationData,
    *,
    kind: Literal["diffusion", "hvae"],
    measures: Sequence[Measure],
    seed: int,
    drawn: Mapping[str, Drawn],
    logs: Mapping[str, Sequence[Path]],
    videos: Mapping[str, tuple[PseudoVideoConfig, int]] | None = None,
) -> list[Path]:
    """Draw what a run of `generate diffusion` or `generate hvae` made.

    Args:
        plots: folder of the pictures.
        results: all results.
        real: measures of real images.
        data: the images.
        kind: of the models.
        measures: numbers of the summary.
        seed: whose samples are shown.
        drawn: what the models of this seed drew, by name.
        logs: folders of all seeds by the model's name.
        videos: settings and context length of the models of videos.
    """
    files = [_saved(summary_figure(results, measures, real), plots / "summary.png")]
    errors = {group.name: _frame_errors(group) for group in frame_groups(results)}
    if errors:
        files.append(_saved(frame_errors_plot(errors), plots / "frame-errors.png"))
    noisy = [one for one in (videos or {}).values() if one[0].random]
    if noisy:
        config, context = max(noisy, key=lambda one: one[0].num_frames)
        images = to_unit(data.train[:_COVARIANCE])
        files.append(save_theorem(images, plots / "theorem.png", config, context=context))
    # No more images of the test part than samples.
    shown = {name: to_unit(one.images[:_GRID]) for name, one in drawn.items()}
    shown = {REAL: to_unit(data.test[: max(map(len, shown.values()))]), **shown}
    title = f"{data.name}: samples, seed {seed}"
    files.append(save_grids(shown, plots / "samples.png", title=title))
    for name, (config, _) in (videos or {}).items():
        rows = to_unit(drawn[name].videos)
        file, heads = plots / f"videos-{name}.png", frame_heads(rows.shape[1])
        strips = [*pseudo_videos(to_unit(data.test[:1]), config), *rows[:_STRIPS]]
        labels = ["made of a test image"] + ["generated"] * (len(strips) - 1)
        title = f"{name}, seed {seed}: frames of videos"
        files.append(save_rows(labels, strips, file, heads, title=title))
        captions = frame_captions(name, rows.shape[1])
        files.append(save_gif(rows[:_FILM], file.with_suffix(".gif"), captions=captions))
    caption, unit, losses = _KINDS[kind]
    for name, one in drawn.items():
        file, is_video = plots / f"process-{name}.gif", one.process.shape[2] > 1
        what = name if is_video else caption.format(name)
        frames = one.process[:_ROWS] if is_video else one.process
        files.append(save_process(frames, one.done, file, name=what, unit=unit))
    return files + save_curves(logs, plots / "losses.png", losses)


def summary_figure(results: Sequence[Result], measures: Sequence[Measure], real: Result) -> Figure:
    """Draw numbers of all variants over the seeds beside those of real images, a colour a stem."""
    groups: dict[str, Group] = {}
    for group in groups_of(results):
        bits = group.fact("bits")
        groups[group.name if bits is None else f"{group.name}\n{bits:,.0f} bits"] = group
    stems = {name: group.fact("stem") or name for name, group in groups.items()}
    kinds = list(dict.fromkeys(stems.values()))
    bars: list[Bars] = []
    for measure in measures:
        of_samples = measure.path[0] == "generation"
        level = value_of(real, measure.path[-1:]) if of_samples else None
        values = {name: group.summary(measure.path).values for name, group in groups.items()}
        if len(measure.path) > 2:  # no samples are asked of most tokenizers
            values = {
                name: found for name, found in values.items() if found != (None,) * len(found)
            }
        bars.append(Bars(measure.head, values, measure.unit.strip(), level))
    return bars_plot(
        bars, level=REAL, kinds={name: kinds.index(stem) for name, stem in stems.items()}
    )


def _frame_errors(group: Group) -> FrameErrors:
    frames = frames_of(group)
    model = [group.summary(("model", str(frame))).values for frame in frames]
    exact = [group.summary(("exact", str(frame))).mean for frame in frames]
    arrays = np.array(model, dtype=float).T, np.array(exact, dtype=float)
    return FrameErrors(group.fact("frames"), frames, *arrays)


def _saved(figure: Figure, file: Path) -> Path:
    figure.savefig(file)
    return file
