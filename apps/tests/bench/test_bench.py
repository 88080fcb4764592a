"""`probseq bench`: that it measures what it says; how fast anything is, is no test."""

import json
import math

import pytest
import torch

from probseq.metrics.image import frechet_distance
from probseq_apps.bench import Row, attention, generate, interleaved, measure, online
from probseq_apps.bench.attention import SHAPES, Shape, saved_bytes
from probseq_apps.cli import main
from pseudovideo.corruptions import PseudoVideoConfig, pseudo_videos
from pseudovideo.priors import AutoregressiveConfig, AutoregressivePrior, MaskedConfig

CPU = torch.device("cpu")
# Few inducing variables for streams of this length, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:.*inducing variables cannot hold the stream")


def test_a_row_is_the_time_of_a_case_a_rate_or_a_ratio_and_has_a_goal():
    def slow():
        return 6.0

    def fast():
        return 2.0

    def found(*given, **more):
        return Row("x", *given, **more).result({slow: 6.0, fast: 2.0})

    assert found(slow, "ms", amount=3)["value"] == pytest.approx(2000)
    # Eight things in two seconds.
    assert found(fast, "/s", amount=8)["value"] == pytest.approx(4)
    ratio = {"label": "x", "value": 3.0, "unit": "x", "goal": 3.5, "least": False, "met": True}
    assert found(slow, goal=3.5, over=fast) == ratio
    assert found(slow, goal=3.5, over=fast, least=True)["met"] is False
    assert found(slow, over=fast)["met"] is None
    assert found(7)["value"] == 7


def test_cases_take_turns_and_the_first_turn_is_not_counted():
    calls = []

    def case(name, values):
        return lambda: (calls.append(name), values.pop(0))[1]

    a, b = case("a", [100.0, 1.0, 2.0, 6.0]), case("b", [0.0, 5.0, 4.0])
    assert interleaved({a: 3, b: 2}) == {a: 2.0, b: 4.5}
    assert calls == [*("a", "b") * 3, "a"]


def test_the_table_is_printed_and_the_numbers_are_written(monkeypatch, tmp_path, capsys):
    rows = [Row("a ratio", 123.4, goal=100.0, least=True), Row("kept", 2048.0, "bytes")]
    asked, path, found = [], tmp_path / "bench.json", [row.result({}) for row in rows]
    monkeypatch.setattr(online, "measure", lambda *given: (asked.append(given), found)[1])
    threads = torch.get_num_threads()
    assert main(["bench", "online", "--quick", "--repeats", "2", "--json", str(path)]) == 0
    quick = {
        "predicted": 1_000,
        "counts": 100,
        "inputs": 500,
        "batched": 10_000,
        "answered": 40,
        "batches": 8,
        "series": 40,
    }
    assert asked == [(online.Sizes(500, singles=40, few=2, more=6, late=10_000, **quick), 2)]
    assert torch.get_num_threads() == threads
    printed = capsys.readouterr().out
    assert "123x  ≥ 100x  met" in printed
    assert "2,048 bytes" in printed
    assert json.loads(path.read_text()) == found


def test_attention_has_every_method_of_a_shape_the_goals_and_the_formulas(monkeypatch, capsys):
    easy, hard = (1e9, 1e9, 1e9), (1e-9, 1e9, 1e-9)
    tiny = Shape(4, 16, 2, 16, "rbf", {"SGPA": hard, "SCGPT": (1e9, None, "O(T)")}, inducing=6)
    # Sized such that the literal formulas would not fit.
    large = Shape(1, 512, 2, 24, "exponential", {"SGPA": easy, "KEP-SVGP": easy}, inducing=4)
    for name, shape in (("cifar", tiny), ("long", large)):
        monkeypatch.setitem(SHAPES, name, shape)
    monkeypatch.setattr(attention, "_LITERAL_LIMIT", 2**20)
    assert main(["bench", "attention", "--repeats", "1", "--shape", "cifar", "long"]) == 0
    lines = [line.strip("| ") for line in capsys.readouterr().out.splitlines() if line[:1] == "|"]
    rows = [[cell.strip() for cell in line.split(" | ")] for line in lines[2:]]
    literal = "SGPA, formula-literal"
    first = ["softmax", "kernel", "SGPA", "goal", "SCGPT", "goal", literal]
    assert [row[1] for row in rows if row[0] == "cifar"] == [*first, "formula-literal / SGPA"]
    second = ["softmax", "kernel", "SGPA", "goal", "KEP-SVGP", "goal", literal]
    assert [row[1] for row in rows if row[0] == "long"] == second
    judged, none = [row for row in rows if row[1] == "goal"][:2]
    assert [cell.split()[-1] for cell in judged[3:7] if cell] == ["missed", "met", "missed"]
    assert none[5:7] == ["", "O(T)"]
    assert "GiB" in rows[-1][2]


@pytest.mark.parametrize("method", ["SGPA", "SCGPT", "KEP-SVGP"])
def test_without_a_t_by_t_matrix_twice_the_tokens_keep_twice_the_bytes(method, monkeypatch):
    kept = []
    for tokens in (256, 512):
        shape = Shape(1, tokens, 2, 24, "rbf", {method: (1e9, None, None)}, inducing=4)
        monkeypatch.setitem(SHAPES, "long", shape)
        kept.append(attention.measure_shape("long", 1, CPU)[method]["kept_mib"])
    # What the inducing inputs need doesn't grow at all.
    assert 1.5 < kept[1] / kept[0] <= 2.05


def test_saved_bytes_count_each_storage_once_and_leave_out_what_exists_anyway():
    # exp keeps its result, which the product and its view keep again; x is not counted.
    def layer(x):
        return (y := x.exp()) * y.view(5, 10).flatten() * x

    assert saved_bytes(layer, torch.nn.Module(), torch.randn(50)) == 2 * 50 * 4


@pytest.mark.slow
def test_rows_of_online_updates_are_measured_and_ratios_are_of_the_rows_above(monkeypatch):
    for name, value in {"SOLAR": 40, "AUDIO": 1000, "FEATURES": 20}.items():
        monkeypatch.setattr(online, name, value)
    monkeypatch.setattr(online, "_resident_bytes", iter([1000, 1001]).__next__)
    few = {
        "predicted": 30,
        "counts": 20,
        "inputs": 12,
        "batched": 2000,
        "answered": 9,
        "batches": 4,
    }
    sizes = online.Sizes(100, singles=8, few=1, more=2, early=60, late=120, **few)
    rows = online.measure(sizes, 1)
    values = [row["value"] for row in rows]
    assert all(map(math.isfinite, values))
    assert values[14] == pytest.approx(values[13] / values[12])
    # The time of 1,000 steps: that of the short run, and of the steps that it lacks.
    step, osgpr, ratio = values[20:23]
    assert ratio == pytest.approx(osgpr / values[0])
    assert osgpr > 0.9 * step or step < 0
    # What a model remembers doesn't grow; the process has, by a byte.
    assert values[10] == values[11]
    assert values[23] == values[24]
    assert all(row["met"] for row in (rows[11], *rows[24:26]))
    assert values[25] == 1
    # Predictions, and counts.
    assert values[28] == pytest.approx(values[27] / values[26])
    assert values[35] == pytest.approx(1e3 * values[34] / values[33])
    assert min(values[31:33]) > 0
    # Every basis of live streams after two batches and four, its state and its update.
    assert sum("4 batches: state" in row["label"] for row in rows) == 8
    # Percentiles of answers, and all of them in the bins of a histogram.
    for start in (len(values) - 20, len(values) - 10):
        assert values[start] <= values[start + 1] <= values[start + 2]
        assert sum(values[start + 3 : start + 10]) == 9
        ends = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, math.inf)
        middle = next(end for end in ends if values[start] < end)
        below = sum(values[start + 3 : start + 4 + ends.index(middle)])
        assert below >= 5  # of nine, the median and those before it


def test_a_model_that_is_timed_on_new_points_stays_as_it_is():
    grown = online.grown_model(60)
    before = {name: tensor.clone() for name, tensor in grown.state_dict().items()}
    assert online.next_points(grown, 4)() > 0
    after = grown.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def small(grid, **changes):
    """A small autoregressive prior with weights of every size."""
    torch.manual_seed(0)
    sizes = {"codebook_size": 7, "dim": 12, "depth": 2, "num_heads": 2} | changes
    model = AutoregressivePrior(AutoregressiveConfig(grid=grid, **sizes)).double()
    with torch.no_grad():
        for parameter in (model.head.weight, *model.positions.parameters(), model.norm.bias):
            parameter.normal_()
    return model


SIZES = generate.Sizes(2, ((2, 12),), 8, 1, 8, 6, 5, base_channels=32, clips=2, steps=2)


@pytest.mark.slow
def test_all_of_generation_is_measured_in_groups(monkeypatch):
    config = {"codebook_size": 1024, "dim": 8, "depth": 1, "num_heads": 1}
    grids = {64: (1, 2, 2), 256: (4, 8, 8), 12: (3, 2, 2)}
    monkeypatch.setattr(generate, "autoregressive", lambda n: small(grids[n], **config).float())
    tiny = {"grid": (1, 2, 2), **config}
    monkeypatch.setattr(generate, "MaskedConfig", lambda **_: MaskedConfig(**tiny))
    monkeypatch.setattr(generate, "LIMIT", 4)
    rows = [row for group in generate.groups(SIZES, CPU) for row in measure(group, 1)]
    values = [row["value"] for row in rows]
    assert all(math.isfinite(value) and value > 0 for value in values)
    assert [len(rows), sum(row["goal"] is not None for row in rows)] == [
        7 + 6 + 3 + 4 + 6 + 28 + 3,
        4,
    ]
    # Rates: the shorter time is the higher.
    assert values[2] == pytest.approx(values[0] / values[1])
    # One process and two.
    assert values[-1] == pytest.approx(values[-2] / values[-3])
    # Stages of 4 and four times 5 frames; or of the latent ones, and each context once.
    frames = [row["value"] for row in rows if row["unit"] == "frames"]
    assert frames == [24 * 1000, 8 * 1000 + 16]


def test_the_slow_sampler_is_scaled_from_shorter_grids(monkeypatch):
    monkeypatch.setattr(generate, "timed", lambda work: lambda: (work(), 1.0)[1])
    monkeypatch.setattr(generate, "autoregressive", lambda _: small((2, 2, 3)).float())
    monkeypatch.setattr(generate, "LIMIT", 3)
    seen, forward = [], AutoregressivePrior.forward
    monkeypatch.setattr(
        AutoregressivePrior,
        "forward",
        lambda self, tokens: (seen.append(tokens.shape[-1]), forward(self, tokens))[1],
    )
    _, plain, _ = generate.samplers(5, 12)
    assert plain.value() == pytest.approx(12.0)
    assert seen == [2, 4, 8, 10]


@pytest.mark.slow
@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize(("frames", "length"), [(1, 1), (3, 4), (5, 8)])
def test_a_unet_is_given_so_many_frames_in_the_precision_that_the_row_says(
    frames, length, lean, monkeypatch
):
    seen, original = [], torch.nn.Conv2d.forward

    def look(self, x):
        output = original(self, x)
        if x.shape[1] in (3, 4) and x.shape[-1] == 16:  # the first of a UNet
            seen.append((len(x), x.shape[1], torch.is_inference_mode_enabled(), output.dtype))
        return output

    monkeypatch.setattr(torch.nn.Conv2d, "forward", look)
    model, clips = generate.unet_model(length, SIZES), generate.noise(2, length, 3, 16, 16)
    assert generate.forward(model, clips, lean)() > 0
    before = [parameter.clone() for parameter in model.parameters()]
    assert generate.step(model, clips, lean)() > 0
    # Videos have a channel that tells given frames.
    channels, dtype = 3 if frames == 1 else 4, torch.bfloat16 if lean else torch.float32
    assert seen == [(2 * frames, channels, inference, dtype) for inference in (True, False)]
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_what_is_compared_gives_the_same():
    data = generate.noise(2, 3, 16, 16).double()
    expected = pseudo_videos(data, PseudoVideoConfig(kind="blur", num_frames=8))
    found = generate.convolved(data, 8, 0.05)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    first, second = generate.moments(12)
    by_root = generate.distance_by_sqrtm(first, second)
    assert float(frechet_distance(first, second)) == pytest.approx(by_root, rel=1e-8)
    assert by_root > 0


def test_a_gpu_has_unets_of_the_thesis_and_must_be_there(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(generate, "groups", lambda *given: (asked.append(given), [])[1])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert main(["bench", "generate", "--device", "cuda"]) == 0
    assert asked == [(generate.PAPER, torch.device("cuda"))]
    assert "on the GPU, wall time" in capsys.readouterr().out
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for command in ("generate", "attention"):
        assert main(["bench", command, "--device", "cuda"]) == 1
        assert "device must be cpu on a machine without CUDA" in capsys.readouterr().err


def test_the_prediction_in_numpy_is_ours():
    gp = online.grown_model(60)
    t = torch.linspace(0.0, online.LENGTH, 40, dtype=torch.float64)
    mean, variance = online.numpy_predictor(gp, t)()
    law = gp.predict(t)
    torch.testing.assert_close(torch.from_numpy(mean), law.mean, rtol=0, atol=1e-9)
    torch.testing.assert_close(torch.from_numpy(variance), law.variance, rtol=0, atol=1e-9)
