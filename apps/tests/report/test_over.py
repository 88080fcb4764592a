"""What methods give over a setting that runs differ in."""

import pytest

from probseq_apps.cli import main
from probseq_apps.report.measured import find_runs
from probseq_apps.report.over import collect

NLL = {100: [0.9, 1.1], 20: [2.0, 2.2], 1000: [0.3, 0.5]}


@pytest.fixture
def sizes(write_run):
    """Runs with three sizes of the training set; one has a method that the others lack."""
    for size, values in NLL.items():
        rows = {"sgpa": {"test/nll": values, "test/penalty": [1.0, 1.0]}}
        rows |= {"mle": {"test/nll": values}} if size == 20 else {}
        folder = write_run(str(size), rows, training__batch_size=size)
    return folder.parent


def test_methods_of_all_runs_are_summed_up_in_the_order_of_the_setting(sizes):
    found = collect(find_runs([sizes])[0], "training.batch_size")
    assert list(found) == ["test/nll"]
    assert {value: one.values for value, one in found["test/nll"]["sgpa"].items()} == {
        value: tuple(NLL[value]) for value in (20, 100, 1000)
    }
    assert list(found["test/nll"]) == ["sgpa"]


def test_methods_may_be_in_runs_of_their_own(sizes, write_run):
    for size in (100, 1000):
        write_run(f"m{size}", {"mle": {"test/nll": [1.0, 2.0]}}, training__batch_size=size)
    found = collect(find_runs([sizes])[0], "training.batch_size")["test/nll"]
    assert set(found) == {"mle", "sgpa"}
    assert all(list(curve) == [20, 100, 1000] for curve in found.values())


def test_what_else_differs_is_told(sizes, write_run, tmp_path, capsys):
    write_run("2000", {"sgpa": {"test/nll": [0.1, 0.2]}}, training__batch_size=2000, model__depth=7)
    arguments = ["report", str(sizes), "--over", "training.batch_size"]
    assert main([*arguments, "--output-dir", str(tmp_path / "out")]) == 0
    assert "the runs differ in model.depth too: 7, " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("over", "said"),
    [("model.width", "is None"), ("training.epochs", "has one value in all")],
)
def test_what_is_no_number_or_the_same_in_all_runs_is_refused(sizes, over, said):
    with pytest.raises(ValueError, match=said):
        collect(find_runs([sizes])[0], over)


def test_table_and_picture_are_written(sizes, tmp_path, capsys):
    arguments = ["report", str(sizes), "--over", "training.batch_size"]
    assert main([*arguments, "--output-dir", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "differ in" not in printed
    (row,) = (line for line in printed.splitlines() if line.startswith("| sgpa"))
    assert [float(cell.split("±")[0]) for cell in row.split("|")[2:-1]] == [2.1, 1.0, 0.4]
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".md", ".png"}
