"""What every experiment writes in the end: numbers, pages with tables and plots, and text."""

import json
import platform
import shutil
import textwrap
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from probseq_apps.engine.files import write_atomic
from probseq_apps.report.html import FINDINGS, PAGE, write_html
from probseq_apps.report.results import decides
from probseq_apps.report.tables import SideBySide, Table

_PACKAGES = (
    *("probseq-apps", "probseq", "sgpa", "cgpt-transformer", "kepsvgp", "ohsvgp", "pseudovideo"),
    *("torch", "numpy", "scikit-learn"),
)

_WIDTH, _SHOWN = 100, 5
# What pages say beside numbers, by the kind of the experiment.
PAGES: Mapping[str, Mapping[str, Any]] = tomllib.loads(
    files("probseq_apps.report").joinpath("pages.toml").read_text(encoding="utf-8")
)
_FIELDS = ("title", "legend", "about_plots")


@dataclass(frozen=True, kw_only=True)
class Report:
    """A report: `report.json`, `report.md`, `report.html`, `plots/`, and text for the terminal."""

    numbers: Mapping[str, Any]  # what `report.json` holds beside versions and machine
    title: str  # of the page
    opening: str  # first paragraph
    facts: Sequence[str]  # what one must know about data and settings, a line each
    tables: Sequence[Table | SideBySide]  # the first is shown in the terminal, as far as it fits
    legend: str  # what the numbers are
    findings: Sequence[str] = ()  # what they say, a sentence each
    rows: Sequence[str] = ()  # what the rows of the tables are, a line each
    details: str = ""  # further Markdown, on the page alone
    plots: Callable[[Path], Sequence[Path]]  # draws into a folder; gives the files
    about_plots: str = ""  # first paragraph below their heading

    def write(self, folder: Path) -> str:
        """Write `report.json`, `plots/`, and the pages; return what the terminal shows.

        Raises:
            RuntimeError: the plots cannot be drawn; the report stands without them.
        """
        numbers = {**self.numbers, **_machine()}
        write_atomic(folder / "report.json", json.dumps(numbers, indent=2, allow_nan=False) + "\n")
        page, text = self._page(numbers), self._text()
        # What was measured took long: it is written before plots are drawn, and shown anyway.
        write_atomic(folder / "report.md", _joined(page))
        try:
            (folder / "plots").mkdir(exist_ok=True)
            files = self.plots(folder / "plots")
        except (LookupError, ValueError, OSError) as error:
            print(text)
            raise RuntimeError(
                f"{folder} holds the report without plots, which cannot be drawn: "
                f"{type(error).__name__}: {error}"
            ) from error
        shown = [f"![{file.stem}](plots/{file.name})" for file in files]
        write_atomic(folder / "report.md", _joined([*page, "## Plots", self.about_plots, *shown]))
        write_html(folder)
        return f"{text}\n\nall numbers, what they are, and plots: {folder / PAGE}"

    def _page(self, numbers: Mapping[str, Any]) -> list[str]:
        """Paragraphs of the page, without plots."""
        versions = ", ".join(f"{name} {number}" for name, number in numbers["versions"].items())
        findings = (FINDINGS, PAGES["findings"]["legend"], _listed(self.findings), "## Numbers")
        return [
            f"# {self.title}",
            textwrap.fill(self.opening, 100, break_long_words=False, break_on_hyphens=False),
            *(findings if self.findings else ()),
            _listed(self.facts),
            *(table.markdown() for table in self.tables),
            self.legend,
            _listed(self.rows),
            f"{versions}; {numbers['machine']}.",
            self.details,
        ]

    def _text(self) -> str:
        """Return one table and the findings that decide something, a line each."""
        width = min(_WIDTH, shutil.get_terminal_size((_WIDTH, 24)).columns)
        found = [one for one in self.findings if decides(one)][:_SHOWN]
        lines = [textwrap.shorten(f"- {one}", width, placeholder=" …") for one in found]
        paragraphs = [self.tables[0].screen(width), "\n".join(lines)]
        return f"\n{_joined(paragraphs)}".rstrip()


def comparison(
    experiment: str,
    *,
    recipe: str,
    settings: Mapping[str, Any],
    data: Mapping[str, Any],
    opening: str,
    numbers: Mapping[str, Any],
    facts: Sequence[str] = (),
    **parts: Any,
) -> Report:
    """Return the report of a run over several seeds.

    `data` has name, notes and sizes of its data, `numbers` are what was measured, `facts` what one
    must know beside the notes on the data, and `parts` further fields of `Report`, by default those
    that `PAGES` has.
    """
    told = {"experiment": experiment, "recipe": recipe, "settings": settings, "data": data}
    seeds = ", ".join(map(str, settings["seeds"]))
    words = {key: value for key, value in PAGES.get(experiment, {}).items() if key in _FIELDS}
    fields: dict[str, Any] = {**words, **parts}
    fields["title"] = f"{data['name']}: {fields['title']}"
    return Report(
        numbers={**told, **numbers},
        opening=f"{opening} Recipe `{recipe}`, seeds {seeds}; all settings are in `config.json`.",
        facts=[*data["notes"], *facts],
        **fields,
    )


def save_figures(figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    """Write figures by their names, as PNG; return the files."""
    for name, figure in figures.items():
        figure.savefig(folder / f"{name}.png")
    return [folder / f"{name}.png" for name in figures]


def _machine() -> dict[str, object]:
    """Versions of the software, and the machine."""
    versions = {name: version(name) for name in _PACKAGES} | {"python": platform.python_version()}
    return {"versions": versions, "machine": platform.platform()}


def _listed(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _joined(paragraphs: Sequence[str]) -> str:
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph) + "\n"
