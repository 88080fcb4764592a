import json
import subprocess
import sys
from itertools import pairwise

import pytest
from PIL import Image

from probseq_apps.cli import main
from probseq_apps.report.compare import compare
from probseq_apps.report.paper_report import draw
from probseq_apps.report.papers import load_table, table_names

TELL_TORCH = """
import sys
from itertools import pairwise
from probseq_apps.cli import main
try:
    status = main(sys.argv[1:])
except SystemExit as stop:
    status = stop.code
print(status, "torch" in sys.modules, file=sys.stderr)
"""


def run(arguments, folder):
    return subprocess.run(
        [sys.executable, "-c", TELL_TORCH, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--table", "B.66"], "did you mean 'B.6'?"),
        (["--tabel", "B.6"], "--table"),
        ([], "--list"),
        (["--list", "--table", "B.6"], "--list"),
    ],
)
def test_wrong_usage_exits_2_before_torch_is_imported(arguments, named, tmp_path):
    finished = run(["report", *arguments], tmp_path)
    assert finished.stderr.split()[-2:] == ["2", "False"]
    assert named in finished.stderr
    assert not list(tmp_path.iterdir())


def test_the_list_names_every_table_without_torch(tmp_path):
    finished = run(["report", "--list"], tmp_path)
    assert finished.stderr.split() == ["0", "False"]
    assert [line.split()[0] for line in finished.stdout.splitlines()] == list(table_names())


def test_a_table_is_printed_written_and_drawn_from_the_runs_folder(
    write_run, tmp_path, monkeypatch, capsys
):
    write_run("mine", {"kepsvgp": {"test/accuracy": [0.85, 0.86]}})
    monkeypatch.chdir(tmp_path)
    assert main(["report", "--table", "kep-1"]) == 0
    printed = capsys.readouterr().out
    assert "85.50±0.50" in printed
    markdown = tmp_path / "paper-tables" / "table-kep-1.md"
    assert "**85.50±0.50**" in markdown.read_text()
    with Image.open(markdown.with_suffix(".png")) as image:
        assert min(image.size) > 500


def test_named_folders_are_read_instead_and_must_hold_a_run(
    write_run, tmp_path, monkeypatch, capsys
):
    write_run("mine", {"sgpa": {"test/nll": [1.0]}})
    other = write_run("other", {"sgpa": {"test/nll": [2.0]}}, parent=tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    arguments = ["report", "--table", "B.6", "--output-dir", "out"]
    assert main([*arguments, str(other)]) == 0
    assert "2.0000" in capsys.readouterr().out
    assert (tmp_path / "out" / "table-B.6.png").is_file()
    assert main([*arguments, "not-there"]) == 1
    assert "not-there must hold a finished run" in capsys.readouterr().err


def test_without_any_run_the_paper_s_numbers_stand_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["report", "--table", "B.4"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "0.8875±0.0004" in printed
    assert "No run folder holds a number of this table: it takes runs on imdb." in printed


LAYOUTS = (
    "3.2",
    "B.1",
    "B.22",
    "B.30",
    "cgpt:I",
    "cgpt:III",
    "cgpt:IV",
    "kep:1",
    "kep:4",
    "kep:9",
    "4.1",
    "5.1",
    "5.2",
    "5.4",
)


@pytest.mark.parametrize("name", LAYOUTS)
def test_no_text_of_a_drawn_table_leaves_the_picture_or_covers_another(name):
    figure = draw(compare(load_table(name), []), [])
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.texts if text.get_text()]
    inside = figure.bbox
    for box in boxes:
        assert inside.x0 <= box.x0
        assert box.x1 <= inside.x1
        assert inside.y0 <= box.y0
        assert box.y1 <= inside.y1
    lines = {}
    for box in boxes:
        lines.setdefault(round((box.y0 + box.y1) / 2 / 10), []).append((box.x0, box.x1))
    for spans in lines.values():
        spans.sort()
        for (_, end), (start, _) in pairwise(spans):
            assert end <= start


@pytest.fixture(scope="module")
def real_run(tmp_path_factory):
    """A real experiment; its report is renamed to a data set that the papers have."""
    folder = tmp_path_factory.mktemp("real") / "run"
    tiny = ["--depth", "1", "--dim", "8", "--heads", "2", "--hidden-dim", "8", "--epochs", "1"]
    methods = ["--method", "mle", "kernel", "kernel+ts", "kernel+ensemble", "--seeds", "0", "1"]
    shift = ["--corruptions", "contrast", "--severities", "1", "--ood", "rotations"]
    assert main(["classify", *methods, *tiny, *shift, "--run-dir", str(folder)]) == 0
    file = folder / "report.json"
    report = json.loads(file.read_text())
    report["settings"]["data"] = "cifar10"
    file.write_text(json.dumps(report))
    return folder


@pytest.mark.parametrize(
    ("table", "method", "metric", "place", "scale", "decimals"),
    [
        ("B.6", "kernel+ts", "test/mce", 3, 1, 4),
        ("B.6", "kernel+ensemble", "test/nll", 1, 1, 4),
        ("B.12", "mle", "shift/severity-1/accuracy", 0, 1, 4),
        ("cgpt:II", "kernel", "shift/digital-1/accuracy", 3, 100, 3),
        ("cgpt:III", "kernel", "ood/rotations/kl-matching/aupr-out", 1, 100, 2),
        ("kep:1", "mle", "test/failure-auroc", 2, 100, 2),
        ("kep:2", "mle", "shift/severity-1/aurc", 1, 1000, 2),
    ],
)
def test_a_report_of_the_program_itself_is_understood(
    real_run, tmp_path, capsys, monkeypatch, table, method, metric, place, scale, decimals
):
    monkeypatch.setenv("COLUMNS", "200")  # the row is looked for in one piece
    out = ["--output-dir", str(tmp_path)]
    assert main(["report", "--table", table, *out, str(real_run)]) == 0
    found = json.loads((real_run / "report.json").read_text())["methods"][method]["metrics"][metric]
    row = next(
        line for line in capsys.readouterr().out.splitlines() if f"ours: {method} [1]" in line
    )
    cells = [word for word in row.partition("[1]")[2].split() if word not in "▲▼"]
    expected = f"{scale * found['mean']:.{decimals}f}"
    if found["standard_error"] is not None:
        expected += f"±{scale * found['standard_error']:.{decimals}f}"
    assert cells[place] == expected


def test_seconds_per_epoch_are_of_the_training_time(real_run, tmp_path, capsys):
    out = ["--output-dir", str(tmp_path)]
    assert main(["report", "--table", "kep:4", *out, str(real_run)]) == 0
    seconds = json.loads((real_run / "report.json").read_text())["methods"]["mle"]["train_seconds"]
    assert f"{sum(seconds) / 2:.2f}±" in capsys.readouterr().out
