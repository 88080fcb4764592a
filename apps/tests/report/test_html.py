"""`report.html`: one file that needs nothing beside it, and says what `report.md` says."""

import json
from html.parser import HTMLParser

import pytest

from probseq.summary import summarise
from probseq_apps.cli import main
from probseq_apps.report.findings import decides
from probseq_apps.report.html import write_html
from probseq_apps.report.report import Report
from probseq_apps.report.tables import Measure, SideBySide, summary_table

PNG = b"\x89PNG\r\n\x1a\n picture"
VOID = {"meta", "img"}


class Page(HTMLParser):
    """Elements, with their text; every tag that is opened must be closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.found = [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        element = {"tag": tag, "text": "", **dict(attrs)}
        self.found.append(element)
        if tag not in VOID:
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
        "numbers": {"experiment": "toy", "notes": ["x"]},
        "title": "digits: a & b",
        "opening": "What was `done`.",
        "facts": ["a fact"],
        "tables": [table("test", "accuracy", "NLL"), table("other", "AUROC", "FPR95")],
        "legend": "what it is",
        "findings": ["NLL: a is clearly better than b (better).", "AUROC: a is b (undecided)."],
        "plots": draw,
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
    text = (folder / "report.html").read_text()
    page = Page(text)
    assert "http" not in text
    assert not page.all("link")
    assert not any("src" in script for script in page.all("script"))
    assert all(image["src"].startswith("data:image/png;base64,iVBOR") for image in page.all("img"))
    assert [image["alt"] for image in page.all("img")] == ["curve"]
    [title] = page.all("h1")
    assert title["text"] == "digits: a & b"
    [code] = page.all("code")
    assert code["text"] == "done"
    assert "settings.model.dim" in text
    assert "probseq-apps" in text
    # Findings come before the first table.
    tags = [element["tag"] for element in page.found]
    assert tags.index("section") < tags.index("table")


def test_tables_sort_by_their_numbers(folder):
    report().write(folder)
    tables = [one for one in Page((folder / "report.html").read_text()).all("table")]
    sorted_ones = [one for one in tables if one.get("class") == "sorts"]
    assert len(sorted_ones) == 3
    assert "a<b" in sorted_ones[0]["text"]


def test_tables_side_by_side_are_turned_so_that_methods_are_rows(folder):
    side = SideBySide((table("test", "accuracy", "NLL"), table("other", "AUROC", "FPR95")))
    report(tables=[side]).write(folder)
    page = Page((folder / "report.html").read_text())
    heads = [one["text"] for one in page.all("th")]
    assert heads[:6] == ["test", "accuracy ↑", "NLL ↓", "other", "AUROC ↑", "FPR95 ↓"]


def test_the_terminal_shows_one_table_and_what_is_decided(folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    wide = summary_table(
        "test",
        [Measure(f"a long metric {number}") for number in range(20)],
        {"a": [summarise([1.0, 2.0])] * 20},
        {"a": 2},
    )
    findings = [f"finding {number} is {'long ' * 40}(better)." for number in range(7)]
    undecided = "AUROC: a is not told from b (undecided)."
    told = report(tables=[wide, wide], findings=[undecided, *findings]).write(folder)
    lines = told.splitlines()
    assert max(map(len, lines[:-1])) <= 100  # the last names the folder
    assert sum(line.startswith("- finding") for line in lines) == 5
    assert "undecided" not in told
    assert sum(line.startswith("─") for line in lines) == 1
    rule = next(line for line in lines if line.startswith("─"))
    assert len(rule) == max(len(line) for line in lines[: lines.index(rule) + 2])
    assert lines[-1].endswith(str(folder / "report.html"))
    assert not decides(undecided)


def test_a_run_s_page_is_made_anew_on_request(folder, capsys):
    report().write(folder)
    first = (folder / "report.html").read_text()
    (folder / "report.html").unlink()
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "report.html")
    assert (folder / "report.html").read_text() == first


def test_a_folder_without_a_report_is_refused(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 1
    assert "must hold a finished run" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"report\.md"):
        write_html(tmp_path)
