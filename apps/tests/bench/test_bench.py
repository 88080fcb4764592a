"""`probseq bench`: that it measures what it says; how fast anything is, is no test."""

import pytest
import torch

from probseq_apps.bench import Timing, attention, interleaved
from probseq_apps.bench.attention import SHAPES, Shape, saved_bytes
from probseq_apps.cli import main

CPU = torch.device("cpu")


def test_a_row_is_the_time_of_a_case_a_rate_or_a_ratio():
    def slow():
        return 6.0

    def fast():
        return 2.0

    def found(*given, **more):
        return Timing("x", *given, **more).result({slow: 6.0, fast: 2.0})["value"]

    assert found(slow, "ms", amount=3) == pytest.approx(2000)
    assert found(fast, "/s", amount=8) == pytest.approx(4)  # eight things in two seconds
    assert found(slow, over=fast) == 3.0
    assert found(7) == 7


def test_cases_take_turns_and_the_first_turn_is_not_counted():
    calls = []

    def case(name, values):
        return lambda: (calls.append(name), values.pop(0))[1]

    a, b = case("a", [100.0, 1.0, 2.0, 6.0]), case("b", [0.0, 5.0, 4.0])
    assert interleaved({a: 3, b: 2}) == {a: 2.0, b: 4.5}
    assert calls == [*("a", "b") * 3, "a"]


def test_attention_has_every_method_of_a_shape_and_ratios_to_softmax(monkeypatch, capsys):
    monkeypatch.setitem(SHAPES, "cifar", Shape(4, 16, 2, 16, "rbf", ("SGPA", "SCGPT"), inducing=6))
    assert main(["bench", "attention", "--repeats", "1", "--shape", "cifar"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    rows = [line[1:] for line in lines if line[:1] == ["cifar"]]
    assert [row[0] for row in rows] == ["softmax", "kernel", "SGPA", "SCGPT"]
    assert rows[0][2] == rows[0][4] == "1.00"


@pytest.mark.parametrize("method", ["SGPA", "SCGPT", "KEP-SVGP"])
def test_without_a_t_by_t_matrix_twice_the_tokens_keep_twice_the_bytes(method, monkeypatch):
    kept = []
    for tokens in (256, 512):
        shape = Shape(1, tokens, 2, 24, "rbf", (method,), inducing=4)
        monkeypatch.setitem(SHAPES, "long", shape)
        kept.append(attention.measure_shape("long", 1, CPU)[method]["kept_mib"])
    # What the inducing inputs need doesn't grow at all.
    assert 1.5 < kept[1] / kept[0] <= 2.05


def test_saved_bytes_count_each_storage_once_and_leave_out_what_exists_anyway():
    # exp keeps its result, which the product and its view keep again; x is not counted.
    class Layer(torch.nn.Module):
        def forward(self, x):
            return (y := x.exp()) * y.view(5, 10).flatten() * x

    assert saved_bytes(Layer(), torch.randn(50)) == 2 * 50 * 4
