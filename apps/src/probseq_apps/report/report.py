"""The report of an experiment: numbers, pages with tables and plots, and text."""

import platform
import re
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

from probseq.files import write_atomic
from probseq.summary import LABELS
from probseq_apps.engine.files import write_json
from probseq_apps.report.html import DETAILS, PAGE, PLOT, write_html
from probseq_apps.report.results import words
from probseq_apps.report.tables import Table

_PACKAGES = (
    *("probseq-apps", "probseq", "sgpa", "cgpt-transformer", "kepsvgp", "ohsvgp", "pseudovideo"),
    *("torch", "numpy", "scikit-learn"),
)

_WIDTH = 100
EXAMPLES = "examples"  # name of the picture below the head
# What pages say beside numbers, by the kind of the experiment.
PAGES: Mapping[str, Mapping[str, Any]] = tomllib.loads(
    files("probseq_apps.report").joinpath("pages.toml").read_text(encoding="utf-8")
)


@dataclass(frozen=True, kw_only=True)
class Report:
    """The report of a run over several seeds.

    It is written as `report.json`, `report.md`, `report.html` and `plots/`, its first table as
    `table.csv` and `table.tex`, and as text for the terminal. What `PAGES` says of the kind of
    experiment stands where a field is None.
    """

    experiment: str  # its kind
    recipe: str  # that the run was started from
    settings: Mapping[str, Any]
    data: Mapping[str, Any]  # name, notes and sizes
    numbers: Mapping[str, Any]  # what was measured
    title: str | None = None  # of the page, behind the name of the data
    opening: str  # first paragraph of the details
    head: Sequence[str] = ()  # the task, what chance gives, and what columns are of, a line each
    facts: Sequence[str] = ()  # what one must know beside the notes on the data, a line each
    alert: str = ""  # what to know before any number: first on the page and in the terminal
    # A row a model by its title, and what came out, which the page begins with: all of the
    # terminal's text; all else is in sections to open.
    headline: Table | None = None
    with_errors: Table | None = None  # the same for files, where it is without standard errors
    conclusions: Sequence[str] = ()
    story: Sequence[str] = ()  # figures that stand beside the headline
    tables: Sequence[Table]
    legend: str | None = None  # what the numbers are
    rows: Sequence[str] = ()  # what the rows of the tables are, a line each
    details: str = ""  # further Markdown, on the page alone
    figures: Callable[[], Mapping[str, Figure]]  # draws them, by the names of their files
    pictures: Callable[[Path], Sequence[Path]] = lambda _: ()  # draws others into a folder

    def write(self, folder: Path) -> str:
        """Write `report.json`, `plots/`, and the pages; return the text for the terminal.

        A `RuntimeError` says that plots cannot be drawn; the report stands without them.
        """
        fields = ("experiment", "recipe", "settings", "data")
        numbers = {**{key: getattr(self, key) for key in fields}, **self.numbers}
        numbers["versions"] = {name: version(name) for name in _PACKAGES}
        numbers["versions"]["python"] = platform.python_version()
        numbers["machine"] = platform.platform()
        write_json(folder / "report.json", numbers)
        page, text = self._page(numbers), self._text()
        # What was measured took long: it is written before plots are drawn, and shown anyway.
        write_atomic(folder / "report.md", _joined(page))
        if table := self.with_errors or self.headline:
            write_atomic(folder / "table.csv", table.csv())
            write_atomic(folder / "table.tex", table.latex())
        try:
            plots = folder / "plots"
            plots.mkdir(exist_ok=True)
            files = [*save_figures(self.figures(), plots), *self.pictures(plots)]
        except (LookupError, ValueError, OSError) as error:
            print(text)
            raise RuntimeError(
                f"{folder} holds the report without plots, which cannot be drawn: "
                f"{type(error).__name__}: {error}"
            ) from error
        pictures = {f.stem: f"![{_caption(f.stem)}](plots/{f.name})" for f in files}
        example = [pictures.pop(EXAMPLES)] if EXAMPLES in pictures else []
        first = [pictures.pop(name) for name in self.story if name in pictures]
        about = self._words.get("about_plots", "")
        # Those of the story stand below what came out.
        page = [*page[:2], *first, page[2], *example, *page[3:]]
        if pictures:
            page += ["## Plots", about, *pictures.values()]
        write_atomic(folder / "report.md", _joined(page))
        write_html(folder)
        story = [f"{_caption(f.stem)}: {f}" for f in files if f.stem in self.story]
        text = "\n".join([text, "", *story])
        return f"{text}\nall numbers, what they are, and plots: {folder / PAGE}"

    def _page(self, numbers: Mapping[str, Any]) -> list[str]:
        """Return the paragraphs of the page, without plots."""
        versions = ", ".join(f"{name} {number}" for name, number in numbers["versions"].items())
        # What is computed exactly has no seeds.
        seeds = ", ".join(map(str, self.settings.get("seeds", ())))
        opening = (
            f"{self.opening} Recipe `{self.recipe}`{seeds and f', seeds {seeds}'}; all settings "
            "are in `config.json`."
        )
        first = self.headline
        after = self._words.get("next", "")
        headline: list[str] = []
        if first is not None:  # a star at the begin would be an entry of a list
            headline = [first.markdown(), re.sub(r"^\*", r"\\*", first.key), after, DETAILS]
        tables = [table.markdown() for table in self.tables]
        return [
            f"# {self.data['name']}: {self.title or self._words['title']}",
            _listed([each for each in (self.alert, *self.conclusions) if each]),
            _listed([each for each in self.head if each]),
            *headline,
            textwrap.fill(opening, 100, break_long_words=False, break_on_hyphens=False),
            _listed([*self.data["notes"], *self.facts]),
            *tables,
            self.legend or self._words["legend"],
            _listed(self.rows),
            f"{versions}; {numbers['machine']}.",
            self.details,
            "## Glossary",
            _listed(_explained("\n".join([*headline, *tables, self.details]))),
        ]

    @property
    def _words(self) -> Mapping[str, Any]:
        return PAGES.get(self.experiment, {})

    def _text(self) -> str:
        """Return the headline, or all tables of a report without one, and what came out."""
        width = min(_WIDTH, shutil.get_terminal_size((_WIDTH, 24)).columns)
        tables = self.tables if self.headline is None else [self.headline]
        first = textwrap.fill(self.alert, width)
        sentences = [
            textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
            for each in self.conclusions
            for line in each.split("\n")
        ]
        return (
            f"\n{_joined([first, *(table.screen(width) for table in tables), *sentences])}".rstrip()
        )


def _caption(stem: str) -> str:
    """Return what a picture shows, in words, from the name of its file."""
    prefixes = [name for name in PAGES["captions"] if f"{stem}-".startswith(f"{name}-")]
    prefix = max(prefixes, key=len, default="")
    variant = stem.removeprefix(prefix).strip("-")
    variant = LABELS[variant][0] if variant in LABELS else words(variant)
    return ": ".join(filter(None, (PAGES["captions"].get(prefix), variant)))


def _explained(text: str) -> list[str]:
    """Return a line for each metric that the tables of a text have."""
    cells = "\n".join(line for line in text.split("\n") if line.startswith("|"))
    return [
        f"**{name}**: {line}"
        for name, line in PAGES["glossary"].items()
        if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", cells)
    ]


def save_figures(figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    """Write figures by their names, as PNG; return the files."""
    for name, figure in figures.items():
        figure.savefig(folder / f"{name}.png", metadata={"Title": PLOT})
    return [folder / f"{name}.png" for name in figures]


def _listed(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _joined(paragraphs: Sequence[str]) -> str:
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph) + "\n"
