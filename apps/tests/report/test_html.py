"""Pages of a run: `report.html` needs nothing beside it, and says what `report.md` says."""

import json
import re
import shutil
import subprocess

import pytest
from PIL import Image

from probseq.summary import summarise
from probseq_apps.cli import main
from probseq_apps.engine import log
from probseq_apps.report.headline import headline_table
from probseq_apps.report.report import Report
from probseq_apps.report.tables import Measure, summary_table

MODELS = "--image-size 8 --steps 4 --batch-size 8 --num-samples 20 --classifier-steps 4"
MODELS += " --unet.base-channels 8 --unet.channel-multipliers 1 2 --unet.num-groups 4"
TOKENS = "--frames 1 2 --stem plain --steps 4 --autoregressive.steps 4 --masked.steps 4"
TOKENS += " --num-samples 20 --num-images 20 --classifier-steps 4"
COMMANDS = {
    "classify": "classify --data digits --method logreg mle sgpa --seeds 0 1 --epochs 2"
    " --warm-start.sgpa 1 --train-size 200 --dim 8 --heads 2 --depth 1",
    "regress": "regress --data csv:FILE --target oxygens --method mle sgpa --seeds 0 1 --epochs 1"
    " --dim 8 --depth 1 --heads 2",
    "online": "online --num-tasks 3 --num-inducing 6 --seeds 0 1 --method ohsvgp grid exact",
    "online vae": "online vae --num-tasks 2 --num-frames 24 --num-inducing 6 --seeds 0 --epochs 2",
    "generate run": f"generate run {TOKENS}",
    "generate diffusion": f"generate diffusion {MODELS} --sampling-steps 3",
    "generate hvae": f"generate hvae {MODELS} --num-levels 4",
}


def texts(page, tag):
    """Texts of all elements of a kind, which have none of their own kind inside."""
    found = re.findall(rf"<{tag}\b[^>]*>(.*?)</{tag}>", page, re.DOTALL)
    return [re.sub("<[^>]*>", "", text) for text in found]


def table(title, *names):
    rows = {"a<b": [summarise([1.0, 2.0])] * 2, "c": [summarise([5.0, 6.0])] * 2}
    measures = [Measure(names[0], "higher"), Measure(names[1], "lower")]
    return summary_table(title, measures, rows, {"a<b": 2, "c": 2})


def report(**changed):
    def draw(folder):
        Image.new("L", (2, 2)).save(folder / "curve.png")
        return [folder / "curve.png"]

    parts = {
        **{"experiment": "toy", "recipe": "own", "settings": {"seeds": [0]}, "numbers": {}},
        **{"data": {"name": "digits", "notes": ["a fact"]}, "title": "a & b", "legend": "means"},
        **{"opening": "What was `done`.", "figures": dict, "pictures": draw},
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
    measures = [Measure(f"a long metric {number}") for number in range(20)]
    wide = summary_table("test", measures, {"a": [summarise([1.0, 2.0])] * 20}, {"a": 2})
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
    return report(**first, story=["curve"], **changed)


def test_what_came_out_comes_first_and_all_else_is_in_sections_that_are_closed(folder):
    text = led().write(folder)
    assert "a leads by" in text
    assert "accuracy ↑" in text
    assert "a<b" not in text  # no other table
    page = (folder / "report.html").read_text()
    places = [
        page.index(what) for what in ("a leads by", '<img alt="curve"', "<table", "<details>")
    ]
    assert places == sorted(places)
    assert re.findall("<summary>(.*?)</summary>", page) == [
        *("Details", "More", "Glossary", "Settings", "Versions"),
    ]
    assert page.count("<details>") == page.count("</details>") == 5


def test_details_show_the_tables_of_the_rows_on_the_terminal(folder, monkeypatch):
    monkeypatch.setattr(log, "details", True)
    text = led().write(folder)
    assert text.count("a<b") == 2


def overflow(folder):
    """Pixels by which the page, its sections open, and its first table run over two widths."""
    script = "const d=f.contentDocument;d.querySelectorAll('details').forEach(e=>e.open=true);"
    script += "return [d.documentElement.scrollWidth-f.clientWidth,"
    script += "...[...d.querySelectorAll('.lead')].map(e=>e.scrollWidth-e.clientWidth)]"
    script = f"[...document.querySelectorAll('iframe')].map(f=>{{{script}}})"
    # A frame has any width, a window of the browser has not.
    frames = [
        f'<iframe src="report.html" style="border:0;width:{width}px;height:900px"></iframe>'
        for width in (400, 1200)
    ]
    text = f'<body onload="document.body.title={script}" style="width:1300px">{"".join(frames)}'
    (folder / "frame.html").write_text(text)
    command = "chromium --headless --no-sandbox --disable-gpu --allow-file-access-from-files"
    done = subprocess.run(
        [*command.split(), "--dump-dom", (folder / "frame.html").as_uri()],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    found = re.search(r'title="([-,0-9]+)"', done.stdout)
    assert found is not None
    return [int(number) for number in found[1].split(",")]


in_a_browser = pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no Chromium")


@pytest.mark.slow
@in_a_browser
def test_nothing_of_the_page_runs_over_its_width(folder):
    led().write(folder)
    assert max(overflow(folder)) <= 0


@pytest.mark.slow
@in_a_browser
@pytest.mark.parametrize("command", COMMANDS)
def test_a_report_fits_a_phone_and_its_screen_a_terminal(command, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    folder, file = tmp_path / "run", tmp_path / "a.safetensors"
    words = COMMANDS[command].replace("FILE", str(file)).split()
    if command == "regress":
        rows = [("C" * n + "OC" * oxygens, oxygens) for n in range(2, 8) for oxygens in range(5)]
        file.write_text("\n".join(["smiles,oxygens", *(f"{s},{n}" for s, n in rows)]))
    assert main([*words, "--run-dir", str(folder), "--threads", "1", "--quiet"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert len(told) <= 40
    assert max(map(len, told[:-1])) <= 100
    assert told[-1].endswith(str(folder / "report.html"))
    assert len(overflow(folder)) == 4
    assert max(overflow(folder)) <= 0
    assert (folder / "report.html").stat().st_size <= 3e6
