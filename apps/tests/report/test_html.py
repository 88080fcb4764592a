"""Pages of a run: `report.html` needs nothing beside it, and says what `report.md` says."""

import json
import re
from base64 import b64decode
from io import BytesIO

import pytest
from PIL import Image

from probseq import figures
from probseq.summary import summarise
from probseq_apps.report.headline import headline_table
from probseq_apps.report.report import Report
from probseq_apps.report.tables import Measure, summary_table


def texts(page, tag):
    """Texts of all elements of a kind, which have none of their own kind inside."""
    found = re.findall(rf"<{tag}\b[^>]*>(.*?)</{tag}>", page, re.DOTALL)
    return [re.sub("<[^>]*>", "", text) for text in found]


def table(title, *names):
    column = {"a<b": summarise([1.0, 2.0]), "c": summarise([5.0, 6.0])}
    measures = [Measure(names[0], "higher"), Measure(names[1], "lower")]
    return summary_table(title, dict.fromkeys(measures, column))


def report(**changed):
    def draw(folder):
        for name, mode in (("curve", "L"), ("examples", "RGBA")):
            Image.new(mode, (2, 2)).save(folder / f"{name}.png")
        return [folder / "curve.png", folder / "examples.png"]

    figure = figures.new_figure(1.0, 1.0)
    parts = {
        **{"experiment": "toy", "recipe": "own", "settings": {"seeds": [0]}, "numbers": {}},
        **{"data": {"name": "digits", "notes": ["a fact"]}, "title": "a & b", "legend": "means"},
        **{"opening": "What was `done`.", "figures": lambda: {"plot": figure}, "pictures": draw},
        "tables": [table("test", "accuracy", "NLL"), table("other", "AUROC", "FPR95")],
        "details": "## More\n\n| | x |\n| --- | ---: |\n| **one** | **2** * |",
    }
    return Report(**{**parts, **changed})


@pytest.fixture
def folder(tmp_path):
    settings = {"settings": {"seeds": [0, 1], "model": {"dim": 8}}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    return tmp_path


def test_the_page_has_everything_and_needs_nothing(folder):
    report().write(folder)
    page = (folder / "report.html").read_text()
    assert not re.search("http|<link|<script src", page)
    assert re.findall('<img alt="curve" src="data:image/(png|webp);base64,', page)
    (examples,) = re.findall('<img alt="[Ee]xamples" src="data:image/.*;base64,(.*)">', page)
    with Image.open(BytesIO(b64decode(examples))) as picture:
        assert picture.convert("RGBA").getpixel((0, 0))[3] == 0  # of no ground
    assert (texts(page, "h1"), texts(page, "code")) == (
        ["digits: a &amp; b"],
        ["done", "own", "config.json"],
    )
    assert "<strong>one</strong>" in page
    assert "settings.model.dim" in page
    assert "probseq-apps" in page
    assert page.count('<table class="sorts">') == 3
    assert "a&lt;b" in texts(page, "table")[0]


def test_the_terminal_shows_tables_as_far_as_they_fit(folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    column = {"a": summarise([1.0, 2.0])}
    wide = summary_table("test", {Measure(f"a long metric {k}"): column for k in range(20)})
    *lines, last = report(tables=[wide, wide]).write(folder).splitlines()
    assert max(map(len, lines)) <= 100
    assert sum(line.startswith("─") for line in lines) == 2
    assert last.endswith(str(folder / "report.html"))


def led(**changed):
    """A report that begins with what came out, of rows with long names."""
    names = [f"a method with a long name, dropout 0.{k} + temperature" for k in range(7)]
    measures = [Measure(name, "higher") for name in ("accuracy", "NLL", "ECE", "OOD AUROC", "MCE")]
    rows = {name: [summarise([k / 10, k / 9])] * 5 for k, name in enumerate(names)}
    columns = {m: {n: row[k] for n, row in rows.items()} for k, m in enumerate(measures)}
    first = {"headline": headline_table(columns), "conclusions": ["a leads by 0.1 ± 0.01."]}
    first |= {"experiment": "regress", "head": ["Task: a & b."]}
    return report(**first, story=["curve"], **changed)


def test_what_came_out_comes_first_and_all_else_is_in_sections_that_are_closed(folder):
    text = led().write(folder)
    assert "a leads by" in text
    assert "accuracy ↑" in text
    assert "a<b" not in text  # no other table
    page = (folder / "report.html").read_text()
    places = [
        page.index(what)
        for what in (
            *("a leads by", '<img alt="curve"', "Task: a &amp; b.", '<img alt="Examples"'),
            *("<table", "Next", "<details>"),
        )
    ]
    assert re.findall('<figure class="(.*?)"><img alt="(.*?)"', page) == [
        *(("photo", "curve"), ("photo", "Examples"), ("plot", "plot"))
    ]
    assert places == sorted(places)
    assert re.findall("<summary>(.*?)</summary>", page) == [
        *("Details", "More", "Glossary", "Plots", "Settings", "Versions")
    ]
    assert page.count("<details>") == page.count("</details>") == 6
