"""A table of a paper beside what run folders hold, cell by cell."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from probseq.summary import Summary, average_ranks, differ, direction_of, summarise
from probseq_apps.engine.files import flatten
from probseq_apps.registry import REGISTRY, load
from probseq_apps.report.measured import GENERATIONS, MeasuredRun, distinct
from probseq_apps.report.papers import Cell, PaperTable, load_table
from probseq_apps.settings.methods import METHODS

_RECIPES = {entry.kind: entry.settings for entry in REGISTRY.values() if entry.kind}
# Where a run ran, and what only decides which numbers exist.
NOT_COMPARED = re.compile(
    r"method|seeds|arms|stem|frames|controls|lpips_weights|reading\.image_size|(machine|priors)\..*"
    r"|training\.(device|compile|tensorboard|checkpoint_every)"
    r"|evaluation\.(shift|corruptions|severities|ood|features\.(inception_w|classifier_s).*)"
)


def compare(table: PaperTable, runs: Sequence[MeasuredRun]) -> PaperTable:
    """Fill our number into every cell of a table.

    Of several runs that have a number, one that was started from a recipe of the paper's is taken,
    and of several of these the newest. Where no run is on the first data set of a table of
    generated images, those on images that the table has not stand in.
    """
    runs = [run for run in runs if fits_experiment(table, run)]
    if table.ranks:
        return _compare_ranks(table, runs)
    groups = list(table.groups)
    for place, group in enumerate(groups):
        rows = [
            row._replace(cells=tuple(_filled(cell, table, runs) for cell in row.cells))
            for row in group.rows
        ]
        groups[place] = group._replace(rows=tuple(rows))
    return replace(table, groups=tuple(groups))


def fits_experiment(table: PaperTable, run: MeasuredRun) -> bool:
    """Return whether a run is of a kind of experiment that a table has numbers of."""
    return table.experiment == (run.experiment if run.experiment in GENERATIONS else None)


def differences(run: MeasuredRun, recipe: str, rows: Iterable[str]) -> list[str]:
    """Return the settings that differ, with the recipe's; those of methods in no row left out."""
    reference = json.loads(json.dumps(load(_RECIPES[run.experiment]).load(recipe).to_dict()))
    settings = dict(flatten(run.settings))
    bases = [METHODS.get(re.split("[+:]", row)[0]) for row in rows]
    used = {base.attention for base in bases if base is not None}
    others = {method.attention for method in METHODS.values()} - used
    return [
        f"{path} {setting_text(settings[path])} ({setting_text(value)})"
        for path, value in flatten(reference)
        if settings.get(path, value) != value
        and not NOT_COMPARED.fullmatch(path)
        and path.removeprefix("warm_start.").partition(".")[0] not in others
    ]


def setting_text(value: object) -> str:
    """Return a setting as text; of a long list, how many there are."""
    if not isinstance(value, list):
        return str(value)
    return f"{len(value)} kinds" if len(value) > 5 else ", ".join(map(str, value))


def _filled(cell: Cell, table: PaperTable, runs: Sequence[MeasuredRun]) -> Cell:
    others = table.experiment is not None and all(run.data != table.data[0] for run in runs)
    stand_in = others and cell.data == table.data[0]
    fitting = [
        run
        for run in runs
        if (run.data not in table.data if stand_in else run.data == cell.data)
        and table.augmented in (None, run.augmented)
        and all(run.setting(path) in allowed for path, allowed in cell.where.items())
    ]
    recipes = table.recipes.get(cell.data, ())
    for run in sorted(fitting, key=lambda run: run.recipe not in recipes):
        if match := run.values(cell.metric):
            source, values = match
            ours = summarise([v if v is None else v * cell.scale for v in values])
            filled = cell._replace(ours=ours, runs=(run,), source=source)
            size = table.sizes.get(cell.data, {}).get("image_size")
            # Other images are not compared, nor are other sizes of them.
            same = run.data == cell.data and size in (None, run.facts.get("image_size"))
            return filled._replace(mark=_mark(filled)) if same else filled
    return cell


def _mark(cell: Cell) -> Literal["", "▲", "▼"]:
    """Return ▲ or ▼ where ours is told apart, and not by the paper's rounding alone.

    Scores are those of different classifiers; seconds, and a distance in other features than the
    paper's, have no good end.
    """
    paper, ours, direction = cell.paper, cell.ours, direction_of(cell.source)
    if direction is None or cell.source.endswith("/is") or not paper.target:
        return ""
    if ours is None or ours.mean is None:
        return ""
    distance = ours.mean - paper.spread[0]
    if abs(distance) <= 0.5 * 10.0**-paper.decimals or not differ(paper.spread, ours.spread):
        return ""
    return "▲" if (distance > 0.0) == (direction == "higher") else "▼"


def _compare_ranks(table: PaperTable, runs: Sequence[MeasuredRun]) -> PaperTable:
    """Rank our methods, and the paper's beside them, over the tasks that two or more were run on.

    A cell's metric names tables, and which of their columns are its tasks.
    """
    (group,) = table.groups
    rows = {row.label: list(row.cells) for row in group.rows}
    labels: dict[str, None] = {}
    for place, cell in enumerate(group.rows[0].cells):
        *names, metric = cell.metric.partition("/")[2].split()
        tasks: list[dict[str, Cell]] = []
        for name in names:
            (others,) = compare(load_table(name), runs).groups
            for index, head in enumerate(others.heads):
                cells = {row.label: row.cells[index] for row in others.rows if row.label in rows}
                known = {
                    label: c for label, c in cells.items() if c.ours and c.ours.mean is not None
                }
                if len(known) > 1 and all(c.metric.endswith(f"/{metric}") for c in known.values()):
                    tasks.append(known)
                    labels[f"{name} against {head.rpartition(' AU')[0]}: {len(known)} methods"] = (
                        None
                    )
        ours, theirs = (
            average_ranks(
                [{label: read(c) for label, c in task.items()} for task in tasks], "higher"
            )
            for read in (lambda c: c.ours.mean, lambda c: c.paper.spread[0])
        )
        for label, rank in ours.items():
            used = distinct(run for task in tasks if label in task for run in task[label].runs)
            rows[label][place] = rows[label][place]._replace(
                ours=Summary((rank,), rank, None), runs=used, same=theirs[label]
            )
    filled = tuple(row._replace(cells=tuple(rows[row.label])) for row in group.rows)
    notes = (*table.notes, f"Tasks: {'; '.join(labels)}.") if labels else table.notes
    return replace(table, groups=(group._replace(rows=filled),), notes=notes)
