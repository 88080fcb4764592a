"""The report of `probseq generate design`."""

from collections.abc import Mapping
from typing import Any

from probseq_apps.data.images import GenerationData
from probseq_apps.report.report import Report
from probseq_apps.report.tables import DASH, Table
from pseudovideo.beyond.design import Design
from pseudovideo.plots import design_plot

_HEADS = [
    "design",
    "context C",
    "distance ↓",
    "error of the image, ‰",
    "largest share",
    "forgotten",
]


def design_report(
    results: Mapping[str, Mapping[str, Any]],
    *,
    settings: Mapping[str, Any],
    data: GenerationData,
    recipe: str,
) -> Report:
    """Return the report of designs."""
    designs = {name: Design.from_dict(values) for name, values in results.items()}
    ranked = dict(sorted(designs.items(), key=lambda item: item[1].distance))
    (best, first), *_ = ranked.items()
    alone = designs["image alone"].distance
    nearer = sum(design.distance < alone for design in designs.values())
    table = Table([*_HEADS, "passed on"], [_cells(*item) for item in ranked.items()])
    count, size = len(data.train), data.image_size
    shape = f"{data.channels}x{size}x{size}"
    return Report(
        experiment="generate-design",
        recipe=recipe,
        settings=settings,
        data={"name": data.name, "train": count, "image_size": size, "notes": list(data.notes)},
        lead=Table(_HEADS[:4], [cells[:4] for cells in table.rows]),
        outcome=[
            f"distance: {best} {first.distance:.4f} against the image alone {alone:.4f}; "
            f"{nearer} of {len(designs) - 1} pseudo videos are nearer than the image alone.",
            "This is exact for Gaussian images; short trainings on digits had nearly the same "
            "order of kinds, but drew images alone best.",
        ],
        opening=f"{count:,} images of {shape}; κ = {settings['design']['ridge']:g}.",
        numbers={"designs": {name: results[name] for name in ranked}},
        tables=[table],
        story=("designs",),
        figures=lambda: {"designs": design_plot(ranked)},
    )


def _cells(name: str, design: Design) -> list[str]:
    video = design.context > 0
    return [
        name,
        str(design.context) if video else DASH,
        f"{design.distance:.4f}",
        f"{1000 * design.errors[-1]:.3f}",
        f"{design.largest_share:.0%}",
        f"{design.forgotten:z.2f}" if video else DASH,
        f"{design.amplification:.2f}" if video else DASH,
    ]
