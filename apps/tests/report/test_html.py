"""Pages of a run: `report.html` needs nothing beside it, and says what `report.md` says."""

import json
from html.parser import HTMLParser

import pytest

from probseq.summary import summarise
from probseq_apps.cli import main
from probseq_apps.report.report import Report
from probseq_apps.report.tables import Measure, SideBySide, summary_table

PNG = b"\x89PNG\r\n\x1a\n picture"
UNDECIDED = "AUROC: a is not told from b (undecided)."


class Page(HTMLParser):
    """Elements, with their text; every tag that is opened must be closed."""

    def __init__(self, folder):
        super().__init__()
        self.open, self.found = [], []
        self.feed((folder / "report.html").read_text())
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        element = {"tag": tag, "text": "", **dict(attrs)}
        self.found.append(element)
        if tag not in ("meta", "img"):
            self.open.append(element)

    def handle_endtag(self, tag):
        assert self.open.pop()["tag"] == tag

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def all(self, tag):
        return [element for element in self.found if element["tag"] == tag]


def table(title, *names):
    rows = {"a<b": [summarise([1.0, 2.0])] * 2, "c": [summarise([5.0, 6.0])] * 2}
    measures = [Measure(names[0], "higher"), Measure(names[1], "lower")]
    return summary_table(title, measures, rows, {"a<b": 2, "c": 2})


def report(**changed):
    def draw(folder):
        (folder / "curve.png").write_bytes(PNG)
        return [folder / "curve.png"]

    parts = {
        **{"numbers": {"experiment": "toy", "notes": ["x"]}, "title": "digits: a & b"},
        **{"opening": "What was `done`.", "facts": ["a fact"], "legend": "what it is"},
        "tables": [table("test", "accuracy", "NLL"), table("other", "AUROC", "FPR95")],
        "findings": ["NLL: a is clearly better than b (better).", UNDECIDED],
        "plots": draw,
        "details": "## More\n\n| | x |\n| --- | ---: |\n| **one** | **2** * |",
    }
    return Report(**{**parts, **changed})


@pytest.fixture
def folder(tmp_path):
    settings = {"settings": {"seeds": [0, 1], "model": {"dim": 8}}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    return tmp_path


def test_the_page_has_everything_and_needs_nothing(folder, capsys):
    report().write(folder)
    page, text = Page(folder), (folder / "report.html").read_text()
    assert "http" not in text
    assert not page.all("link")
    assert not any("src" in script for script in page.all("script"))
    assert [image["alt"] for image in page.all("img")] == ["curve"]
    assert page.all("img")[0]["src"].startswith("data:image/png;base64,iVBOR")
    assert [one["text"] for tag in ("h1", "code") for one in page.all(tag)] == [
        "digits: a & b",
        "done",
    ]
    assert "settings.model.dim" in text
    assert "probseq-apps" in text
    # Findings come before the first table, and tables sort.
    tags = [element["tag"] for element in page.found]
    assert tags.index("section") < tags.index("table")
    (section,) = page.all("section")
    assert section["text"].endswith(UNDECIDED + "\n")
    tables = [one["text"] for one in page.all("table") if one["class"] == "sorts"]
    assert len(tables) == 3
    assert "a<b" in tables[0]
    # It is made anew on request.
    (folder / "report.html").unlink()
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "report.html")
    assert (folder / "report.html").read_text() == text
    (folder / "report.md").unlink()
    assert main(["report", str(folder)]) == 1
    assert "must hold a finished run" in capsys.readouterr().err


def test_tables_side_by_side_are_turned_so_that_methods_are_rows(folder):
    side = SideBySide((table("test", "accuracy", "NLL"), table("other", "AUROC", "FPR95")))
    report(tables=[side]).write(folder)
    heads = [one["text"] for one in Page(folder).all("th")]
    assert heads[:6] == ["test", "accuracy ↑", "NLL ↓", "other", "AUROC ↑", "FPR95 ↓"]


def test_the_terminal_shows_one_table_and_what_is_decided(folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    measures = [Measure(f"a long metric {number}") for number in range(20)]
    wide = summary_table("test", measures, {"a": [summarise([1.0, 2.0])] * 20}, {"a": 2})
    findings = [f"finding {number} is {'long ' * 40}(better)." for number in range(7)]
    told = report(tables=[wide, wide], findings=[UNDECIDED, *findings]).write(folder)
    lines = told.splitlines()
    assert max(map(len, lines[:-1])) <= 100  # the last names the folder
    assert sum(line.startswith("- finding") for line in lines) == 5
    assert "undecided" not in told
    (rule,) = (line for line in lines if line.startswith("─"))
    assert len(rule) == max(len(line) for line in lines[: lines.index(rule) + 2])
    assert lines[-1].endswith(str(folder / "report.html"))
