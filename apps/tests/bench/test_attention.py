"""`probseq bench attention`: that it measures what it says; how fast anything is, is no test."""

import json

import pytest
import torch

from probseq_apps.bench import attention as bench
from probseq_apps.bench.attention import SHAPES, Goal, Shape
from probseq_apps.bench.timing import kept_bytes
from probseq_apps.cli import main

EASY, HARD = Goal(1e9, 1e9, 1e9), Goal(1e-9, 1e9, 1e-9)
TINY = {
    "cifar": Shape(4, 16, 2, 16, "rbf", {"SGPA": HARD, "SCGPT": EASY}, inducing=6),
    "imdb": Shape(2, 24, 2, 24, "exponential", {"SGPA": EASY, "KEP-SVGP": HARD}, inducing=4),
    # Sized such that the literal formulas would not fit.
    "long": Shape(1, 512, 2, 24, "rbf", {"SGPA": Goal(1e9, 1e9, "O(T)")}, inducing=4),
    "cgpt-cifar": Shape(2, 8, 2, 16, "rbf", {"CGPT": EASY}),
    "scgpt-long": Shape(2, 32, 2, 16, "rbf", {"SCGPT": Goal(1.0, None, "O(T)")}),
    "kepsvgp-cifar": Shape(2, 16, 2, 24, "rbf", {"KEP-SVGP": EASY}, merge="concatenation"),
}


@pytest.fixture
def tiny(monkeypatch):
    for name, shape in TINY.items():
        monkeypatch.setitem(SHAPES, name, shape)
    monkeypatch.setattr(bench, "_LITERAL_LIMIT", 2**20)


def rows_of(text):
    lines = [line.strip("| ") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split(" | ")] for line in lines[2:]]


def test_the_table_has_every_method_of_every_shape_and_the_goals(tiny, capsys):
    assert main(["bench", "attention", "--repeats", "1"]) == 0
    rows = rows_of(capsys.readouterr().out)
    assert [row[:2] for row in rows] == [
        [name, label]
        for name, shape in TINY.items()
        for label in ("softmax", "kernel", *with_goals(shape), *literal_labels(name, shape))
    ]
    by_name = {(row[0], row[1]): row for row in reversed(rows)}  # the first of a name stays
    assert float(by_name["cifar", "softmax"][3]) == 1.0
    assert "missed" in by_name["cifar", "goal"][3]
    assert "met" in by_name["cifar", "goal"][5]
    assert "missed" in by_name["cifar", "goal"][6]
    assert by_name["long", "goal"][6] == "O(T)"
    assert by_name["scgpt-long", "goal"][5] == ""
    assert "GiB" in by_name["long", "SGPA, formula-literal"][2]


def with_goals(shape):
    return [label for method in shape.goals for label in (method, "goal")]


def literal_labels(name, shape):
    if "SGPA" not in shape.goals:
        return []
    label = "SGPA, formula-literal"
    return [label] if name == "long" else [label, "formula-literal / SGPA"]


def test_the_file_holds_the_numbers_of_the_shapes_asked_for(tiny, tmp_path, capsys):
    path = tmp_path / "bench.json"
    arguments = ["--shape", "imdb", "--repeats", "2", "--json", str(path)]
    assert main(["bench", "attention", *arguments]) == 0
    found = json.loads(path.read_text())
    assert list(found) == ["imdb"]
    assert list(found["imdb"]) == ["softmax", "kernel", "SGPA", "KEP-SVGP", "SGPA, formula-literal"]
    for cost in found["imdb"].values():
        assert cost["forward_ms"] > 0
        assert cost["both_ms"] > 0
        assert cost["runs"] == 2


def test_sgpa_keeps_less_than_half_of_what_the_formulas_do(tiny):
    shape = Shape(8, 32, 2, 32, "rbf", {"SGPA": EASY}, inducing=16)
    costs = bench.measure_shape("small", shape, 1, torch.device("cpu"))
    assert costs["SGPA"].kept_mib < 0.5 * costs["SGPA, formula-literal"].kept_mib


@pytest.mark.parametrize("method", ["SGPA", "SCGPT", "KEP-SVGP"])
def test_without_a_t_by_t_matrix_twice_the_tokens_keep_twice_the_bytes(method):
    kept = []
    for tokens in (256, 512):
        shape = Shape(1, tokens, 2, 24, "rbf", {method: EASY}, inducing=4)
        kept.append(bench.measure_shape("", shape, 1, torch.device("cpu"))[method].kept_mib)
    # What the inducing inputs need doesn't grow at all.
    assert 1.5 < kept[1] / kept[0] <= 2.05


def test_kept_bytes_count_each_storage_once_and_leave_out_what_exists_anyway():
    x = torch.randn(50, requires_grad=True)
    owned = {x.untyped_storage().data_ptr()}
    # exp keeps its result, which the product and its view keep again; x is not counted.
    assert kept_bytes(lambda: (y := x.exp()) * y.view(5, 10).flatten() * x, owned) == 2 * 50 * 4


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--repeats", "0"], "repeats"),
        (["--shape", "cifar", "cifar"], "shape"),
        (["--shape", "mnist"], "mnist"),
        (["--json", "no/such/folder/x.json"], "json"),
    ],
)
def test_wrong_arguments_are_usage_errors_that_name_them(arguments, named, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["bench", "attention", *arguments])
    assert stop.value.code == 2
    assert named in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_a_missing_gpu_is_a_failure_in_one_line(capsys):
    assert main(["bench", "attention", "--device", "cuda"]) == 1
    assert "device" in capsys.readouterr().err
