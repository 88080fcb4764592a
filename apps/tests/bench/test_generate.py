"""`probseq bench generate`: that it measures what it says; how fast anything is, is no test."""

import itertools
import json
import math

import pytest
import torch

from probseq.metrics.image import frechet_distance
from probseq_apps.bench import generate
from probseq_apps.bench.diffusion import PAPER, UNetSizes
from probseq_apps.bench.generate import (
    GRIDS,
    Sizes,
    convolved,
    distance_by_sqrtm,
    features,
    images,
    measure,
    moments,
    sampling,
    tokenizer_step,
)
from probseq_apps.bench.timing import Row, timed, training_step
from probseq_apps.bench.videogpt import VideoGPTSampler
from probseq_apps.settings.bench import BenchGenerateSettings
from pseudovideo.corruptions import PseudoVideoConfig, pseudo_videos
from pseudovideo.priors import AutoregressiveConfig, AutoregressivePrior, MaskedConfig, MaskedPrior
from pseudovideo.tokenizers import TokenizerConfig, build_tokenizer

TINY = Sizes(
    images=2,
    samples=((1, 4), (2, 12)),
    limit=4,
    masked=1,
    steps=2,
    width=8,
    depth=2,
    batch=1,
    dim=8,
    compared=6,
    few=5,
    unets=UNetSizes(image_size=16, base_channels=32, batch=1, drawn=1, steps=2),
)


def prior(grid: tuple[int, int, int] = (2, 2, 3)) -> AutoregressivePrior:
    torch.manual_seed(0)
    config = AutoregressiveConfig(codebook_size=7, grid=grid, dim=12, depth=2, num_heads=2)
    model = AutoregressivePrior(config).double()
    with torch.no_grad():
        model.head.weight.normal_()
        for place in model.positions.parameters():
            place.normal_()
        model.norm.bias.normal_()
    return model


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(GRIDS, 4, (1, 2, 2))
    monkeypatch.setitem(GRIDS, 12, (3, 2, 2))

    def small(tokens):
        return AutoregressivePrior(
            AutoregressiveConfig(codebook_size=1024, grid=GRIDS[tokens], dim=8, depth=1)
        )

    def small_masked(tokens):
        return MaskedPrior(
            MaskedConfig(codebook_size=1024, grid=(1, 2, 2), dim=8, depth=1, num_heads=2)
        )

    monkeypatch.setattr(generate, "autoregressive", small)
    monkeypatch.setattr(generate, "masked", small_masked)


def test_every_goal_has_a_row_and_ratios_are_of_the_rows_above(tiny, monkeypatch):
    monkeypatch.setitem(GRIDS, 64, (1, 2, 2))
    monkeypatch.setitem(GRIDS, 256, (4, 8, 8))
    unets = Row("UNets", 1.0, "ms")
    monkeypatch.setattr(generate, "diffusion_rows", lambda *arguments: [unets, arguments])
    *rows, last, asked = measure(TINY, repeats=1, device=torch.device("cpu"))
    assert (last, asked) == (unets, (TINY.unets, 1, torch.device("cpu")))
    assert all(math.isfinite(row.value) and row.value > 0 for row in rows)
    names = [row.label for row in rows]
    for batch, tokens in TINY.samples:
        place = names.index(f"autoregressive tokens with a cache, {batch}x{tokens}")
        cache, videogpt, against, plain, against_plain = rows[place : place + 5]
        assert against.value == pytest.approx(cache.value / videogpt.value)
        assert against_plain.value == pytest.approx(cache.value / plain.value)
        assert (against.goal, against.least) == (3.0 if batch == 1 else 2.0, True)
    matrices, convolution, ratio = rows[:3]
    assert ratio.value == pytest.approx(matrices.value / convolution.value)
    assert (ratio.goal, ratio.least) == (2.5, True)


def test_the_goal_against_no_cache_is_that_of_64_tokens(monkeypatch):
    found = {"cache": 1.0, "videogpt": 2.5, "plain": 7.0}
    monkeypatch.setattr(generate, "interleaved", lambda cases, repeats: found)
    few = generate.sampling_rows(64, 64, 64, 1)
    many = generate.sampling_rows(1, 256, 64, 1)
    assert [row.met for row in few] == [None, None, True, None, True]
    assert [row.met for row in many] == [None, None, False, None, None]
    assert few[0].value == pytest.approx(4096.0)
    assert few[4].value == pytest.approx(7.0)


@torch.no_grad()
def test_videogpt_s_way_gives_the_prior_s_logits():
    model = prior()
    sampler = VideoGPTSampler(model)
    tokens = torch.randint(7, (3, 2, 2, 3), generator=torch.Generator().manual_seed(1))
    places = list(itertools.product(range(2), range(2), range(3)))
    found = [
        sampler.logits(tokens, places[max(step - 1, 0)], place, step)
        for step, place in enumerate(places)
    ]
    torch.testing.assert_close(torch.stack(found, dim=1), model(tokens), rtol=1e-10, atol=1e-10)


def test_videogpt_s_way_draws_from_the_prior():
    model = prior((1, 1, 2))
    pairs = torch.cartesian_prod(torch.arange(7), torch.arange(7)).view(49, 1, 1, 2)
    with torch.no_grad():
        log_p = model(pairs).log_softmax(-1).gather(-1, pairs.flatten(1)[..., None]).sum((1, 2))
    torch.manual_seed(2)
    drawn = VideoGPTSampler(model).sample_tokens(20_000).flatten(1)
    found = (7 * drawn[:, 0] + drawn[:, 1]).bincount(minlength=49) / 20_000
    expected = log_p.exp()
    error = (expected * (1 - expected) / 20_000).sqrt()
    assert ((found - expected).abs() <= 5 * error + 1e-4).all()


def test_slow_samplers_are_scaled_from_the_tokens_that_they_draw(monkeypatch):
    asked = []
    monkeypatch.setattr(generate, "timed", lambda work: lambda: (work(), 1.0)[1])
    monkeypatch.setattr(
        VideoGPTSampler, "sample_tokens", lambda self, n, steps: asked.append((n, steps))
    )
    assert sampling("videogpt", prior(), 5, limit=3)() == pytest.approx(12 / 3)
    assert asked == [(5, 3)]
    seen = []
    original = AutoregressivePrior.forward
    monkeypatch.setattr(
        AutoregressivePrior,
        "forward",
        lambda self, tokens: (seen.append(tokens.shape), original(self, tokens))[1],
    )
    monkeypatch.setitem(GRIDS, 12, (3, 2, 2))
    model = generate.autoregressive(12)
    assert sampling("plain", model, 2, limit=4)() == pytest.approx(12.0)
    assert seen == [(2, 1, 1, length) for length in (2, 4, 8, 10)]


def test_convolution_makes_the_videos_that_matrices_make():
    data = images(2, 16).double()
    expected = pseudo_videos(data, PseudoVideoConfig(kind="blur", num_frames=8))
    torch.testing.assert_close(convolved(data, 8, 0.05), expected, rtol=1e-10, atol=1e-10)


def test_distances_that_are_compared_are_equal():
    first, second = moments(12)
    by_root = distance_by_sqrtm(first, second)
    assert float(frechet_distance(first, second)) == pytest.approx(by_root, rel=1e-8)
    assert by_root > 0
    assert not torch.equal(features(4, 3, 0), features(4, 3, 1))


def test_a_training_step_trains():
    model = build_tokenizer(
        TokenizerConfig(image_size=8, dim=8, num_heads=2, spatial_depth=1, temporal_depth=1)
    )
    before = [parameter.clone() for parameter in model.parameters()]
    assert tokenizer_step(model, 2)() > 0
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    layer = torch.nn.Linear(2, 1)
    calls = []
    run = training_step(layer, lambda: (calls.append(1), layer(torch.ones(1, 2)).sum())[1])
    run()
    run()
    assert calls == [1, 1]


def test_what_is_timed_runs_once_and_without_gradients():
    seen = []
    assert timed(lambda: seen.append(torch.is_inference_mode_enabled()))() >= 0
    assert seen == [True]


def test_the_table_is_printed_and_the_numbers_are_written(monkeypatch, tmp_path, capsys):
    rows = [Row("a ratio", 3.1, "x", 3.0, least=True), Row("a rate", 2048.0, "/s")]
    asked = []
    monkeypatch.setattr(generate, "measure", lambda *arguments: (asked.append(arguments), rows)[1])
    path, threads = tmp_path / "bench.json", torch.get_num_threads()
    settings = BenchGenerateSettings(repeats=2, quick=True, json=path)
    assert generate.bench_generate(settings) == rows
    assert torch.get_num_threads() == threads
    assert asked == [(generate.SHORT, 2, torch.device("cpu"))]
    printed = capsys.readouterr().out
    assert "3.1x  ≥ 3x  met" in printed
    assert "2,048 /s" in printed
    assert "extrapolated" in printed
    first, second = json.loads(path.read_text())
    assert (first["value"], first["goal"], first["met"]) == (3.1, 3.0, True)
    assert (second["unit"], second["met"]) == ("/s", None)


def test_a_gpu_has_unets_of_the_thesis_and_must_be_there(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(generate, "measure", lambda *arguments: (asked.append(arguments), [])[1])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    generate.bench_generate(BenchGenerateSettings(device="cuda"))
    assert asked == [(generate.FULL._replace(unets=PAPER), 3, torch.device("cuda"))]
    assert "on the GPU, wall time" in capsys.readouterr().out
    generate.bench_generate(BenchGenerateSettings())
    assert asked[1] == (generate.FULL, 3, torch.device("cpu"))
    assert "GPU" not in capsys.readouterr().out
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device must be cpu on a machine without CUDA"):
        generate.bench_generate(BenchGenerateSettings(device="cuda"))


@pytest.mark.parametrize(
    ("arguments", "named"), [({"repeats": 0}, "repeats"), ({"json": "no/such/folder/x"}, "json")]
)
def test_wrong_settings_are_refused_by_name(arguments, named, tmp_path):
    if "json" in arguments:
        arguments = {"json": tmp_path / arguments["json"]}
    with pytest.raises(ValueError, match=named):
        BenchGenerateSettings(**arguments)
