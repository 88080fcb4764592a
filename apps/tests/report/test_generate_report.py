"""Reports of generation: tables, findings, and which pictures there are."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from probseq_apps.data.images import GenerationData
from probseq_apps.report.generate import (
    conclusion_of,
    diffusion_measures,
    diffusion_tables,
    generate_report,
    headline_columns,
    token_measures,
    token_tables,
)
from probseq_apps.report.generate_plots import Quantity, save_curves
from probseq_apps.report.results import REAL
from probseq_apps.settings.generate import GenerateSettings
from probseq_apps.settings.models import DiffusionSettings
from pseudovideo.variants import DiffusionVariant

REAL_IMAGES = {"fd": 2.5, "fd_name": "FD(classifier)", "is": 9.0, "num_samples": 40}
VARIANTS = ("1-frame", "4-frame-first-order", "4-frame-high-order")


def tokenizer(variant, stem, seed, psnr, **changes):
    made = {"psnr": psnr, "psnr_all_frames": psnr + 1, "fd": 100 - psnr, "usage": 0.25}
    return {
        **{"variant": variant, "stem": stem, "seed": seed, "frames": int(variant.split("-")[0])},
        **{"tokens": 16, "bits": 160.0, "parameters": 12_345, "steps": 700},
        "reconstruction": {**made, "fd_name": "FD(classifier)", "perplexity": 11.0},
        **changes,
    }


@pytest.fixture
def tokenizers():
    drawn, found = {"is": 7.0, "num_samples": 500, "nats_per_token": 1.5}, []
    for seed in (0, 1):
        for variant, psnr, fd in (("1-frame", 20.0, 31.0), ("8-frame", 24.0, 21.0)):
            samples = {"masked": {"fd": fd + 2 * seed, **drawn}}
            found.append(tokenizer(variant, "plain", seed, psnr + 2 * seed, generation=samples))
        found.append(tokenizer("1-frame", "layernorm", seed, 15.0))
    return found


def test_tokenizers_and_samples_stand_beside_real_images(tokenizers):
    table, drawn = token_tables(tokenizers, REAL_IMAGES)
    # Standard error of (20, 22): 1.
    assert table.rows[0] == [
        *("1-frame, plain", "2", "160", "16", "700", "12,345"),
        *("21.00±1.00", "22.00±1.00", "79.00±1.00", "25%", "11"),
    ]
    names = [row[0] for row in table.rows[1:3]]
    assert names == ["8-frame, plain", "1-frame, layernorm"]
    assert table.rows[-1][1:] == [*["—"] * 7, "2.50", "—", "—"]
    assert [row[0] for row in drawn.rows] == ["1-frame, plain", "8-frame, plain", REAL]
    assert drawn.rows[1][4:] == ["22.00±1.00", "7.000±0.000", "1.500±0.000", "500"]
    assert drawn.rows[-1][4:] == ["2.50", "9.000", "—", "40"]
    # One seed has no error, a number that a seed lacks no mean, one that all lack no column.
    assert token_tables(tokenizers[:1], REAL_IMAGES)[0].rows[0][6] == "20.00"
    tokenizers[0]["reconstruction"]["psnr"] = None
    for one in tokenizers:
        one.get("generation", {}).get("masked", {})["is"] = None
    table, drawn = token_tables(tokenizers, REAL_IMAGES)
    assert table.rows[0][6] == "—"
    assert not [head for head in drawn.heads if "IS" in head]


def test_models_and_their_errors_of_frames_stand_over_the_seeds_beside_real_images(
    diffusion_result,
):
    models = [
        diffusion_result(
            *(variant, seed, 10.0 + place + seed),
            errors={3: 0.02 + place / 1000, 4: 1e-4} if place else None,
            exact={3: 0.02, 4: 1e-4},
        )
        for seed in (0, 1)
        for place, variant in enumerate(VARIANTS)
    ]
    errors = {5: 0.004, 6: 0.002, 7: 0.003, 8: 1e-4}
    longer = diffusion_result("8-frame-high-order", 0, 9.0, errors=errors)
    table, frames, more = diffusion_tables([*models, longer], REAL_IMAGES)
    image, _, video, _, real = table.rows
    # Standard error of (12, 13): one half.
    assert video == [
        *(
            VARIANTS[2],
            "2",
            "12.50±0.50",
            "8.000±0.000",
            "—",
            "4",
            "2",
            "123,456",
            "900",
            "ancestral",
        ),
        *("3,000", "8,000", "200", "60", "30"),
    ]
    assert image[4:7] == ["3.500±0.500", "1", "—"]
    assert real == [REAL, "—", "2.50", "9.000", *["—"] * 8, "40", "—", "—"]
    # In thousandths, beside the exact ones; of several frames the mean before the image is first.
    expected = ["2", "22.00±0.00", "20.00", "0.1000±0.0000", "0.1000", "1.000±0.000"]
    assert frames.rows[1] == [VARIANTS[2], *expected, "100", "4"]
    assert more.rows[0][2:6] == ["3.000", "—", "4.000", "—"]
    assert len(diffusion_tables(models[:1], REAL_IMAGES)) == 1


def test_distances_count_where_the_image_is_learned_and_stand_beside_their_optimum(
    diffusion_result,
):
    """Of Gaussian images real ones are the optimum, and exact errors those of a perfect model."""
    results = [
        diffusion_result(
            variant, seed, mean + 0.1 * seed, errors={4: times * 1e-4}, exact={4: 1e-4}
        )
        for seed in range(3)
        for variant, mean, times in ((VARIANTS[1], 17.0, 2.9), (VARIANTS[2], 12.0, 1.2))
    ]

    def compared():
        columns = headline_columns(results, diffusion_measures(results), REAL_IMAGES)
        return [*next(iter(columns.values()))]

    names = ["4 frames, first-order noise", "4 frames, high-order noise", REAL]
    assert compared() == names
    results[0]["frame_errors"]["model"] = [9e-4]
    assert compared() == names[1:]
    for one in results:
        one["generation"]["fd_name"] = "FD(pixels)"
    table, frames = diffusion_tables(results, {**REAL_IMAGES, "fd": 2.5})
    assert table.rows[1][table.heads.index("above the optimum ↓")] == "9.60±0.06"
    assert frames.rows[1][frames.heads.index("image / least error ↓")] == "1.200±0.000"


def test_what_came_out_is_of_ranked_samples_or_of_reconstructions_at_equal_bits(
    diffusion_result, tokenizers
):
    results = [
        diffusion_result(variant, 0, fd)
        for variant, fd in zip(VARIANTS, (10.0, 12.0, 3.0), strict=True)
    ]
    results[2]["generation"]["is"] = 1.0  # no samples to be compared
    columns = headline_columns(results, diffusion_measures(results), REAL_IMAGES)
    measure = next(iter(columns))
    assert [*columns[measure]] == ["image alone", "4 frames, first-order noise", REAL]
    text = conclusion_of(results, columns)
    assert (
        "image alone (10.000) is not told apart from 4 frames, first-order noise (12.000)" in text
    )
    # Rows of more bits than others are not compared with them.
    more = [tokenizer("8-frame", "layernorm", seed, 30.0, bits=640.0) for seed in (0, 1)]
    made = [*tokenizers, *more]
    text = conclusion_of(made, headline_columns(made, token_measures(made), REAL_IMAGES))
    assert text.startswith("PSNR: 8 frames (160 bits) (25.000) leads image alone (160 bits)")


def test_samples_that_are_no_images_yet_are_told_with_what_to_do(diffusion_result, tokenizers):
    result = diffusion_result("1-frame", 0, 10.0)
    grey = torch.zeros(50, 1, 8, 8, dtype=torch.uint8)

    def report(results, real, settings, kind="generate-diffusion"):
        data = GenerationData("mine", grey, grey, grey)
        return generate_report(
            *(kind, results, real),
            settings=settings.to_dict(),
            data=data,
            recipe="x",
            folder=Path("runs/my run"),
        )

    real = {**REAL_IMAGES, "is": None, "realism": 0.91}
    settings = DiffusionSettings(variants=("1-frame",))
    settings = replace(settings, training=replace(settings.training, steps=900))
    advice = "probseq generate diffusion --run-dir 'runs/my run' --resume --steps 3600"
    for realism, found in ((0.22, "samples are not like the data yet ({})"), (0.69, "{}")):
        result["generation"] |= {"is": None, "realism": realism}
        made = report([result], real, settings)
        (text,) = made.conclusions
        found = found.format(f"looks real {realism}, real images 0.91")
        assert text == f"image alone: {found}. To train longer, about 3 minutes more:\n{advice}"
        assert f"{realism:.3f}" in made.headline.markdown()
    # Of priors each has its own flag.
    for one in tokenizers[:2]:
        one["generation"]["masked"] |= {"is": 1.0, "training_seconds": 600.0}
    made = report(tokenizers, REAL_IMAGES, GenerateSettings(), "generate")
    (text, *_) = made.conclusions
    assert "masked prior" in text
    assert "--masked.steps 800000" in text


def write_log(folder, *values):
    folder.mkdir()
    rows = [json.dumps({"step": 7 * k, "loss": value}) for k, value in enumerate(values, 1)]
    # A crash may have cut the last line.
    (folder / "metrics.jsonl").write_text("\n".join([*rows, '{"step": 99']))
    return folder


def test_a_report_of_models_has_numbers_and_pictures(tmp_path, diffusion_result):
    name, found = "4-frame-blur", [diffusion_result("4-frame-blur", 0, 10.0)]
    settings, variant = (
        DiffusionSettings(variants=(name,), seeds=(0,)),
        DiffusionVariant.parse(name),
    )
    grey = torch.zeros(50, 1, 8, 8, dtype=torch.uint8)
    moving = grey[:20, None].expand(-1, 4, -1, -1, -1)
    report = generate_report(
        *("generate-diffusion", found, REAL_IMAGES),
        **{"settings": settings.to_dict(), "recipe": "own", "folder": tmp_path},
        data=GenerationData("digits", grey, grey[:10], grey[:40], notes=("!",)),
        videos={name: (variant.videos(settings.frames), variant.context(settings.frames))},
        samples={name: SimpleNamespace(images=grey, videos=moving, labels=None)},
        logs={name: [write_log(tmp_path / name, 1.0, 0.5)]},
    )
    report.write(tmp_path)
    numbers = json.loads((tmp_path / "report.json").read_text())
    assert (numbers["experiment"], numbers["results"]) == ("generate-diffusion", found)
    # The theorem is about noise.
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {
        *("samples.png", "losses.png"),
        *(f"videos-{name}.{end}" for end in ("png", "gif")),
    }


def test_curves_are_means_of_what_was_logged(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(
        "matplotlib.figure.Figure.savefig", lambda own, *_, **__: figures.append(own)
    )
    values = ((0.5, 0.25, 0.02), (1.5, 0.75, 0.04), (0.4, 0.3), (0.4,), (2.0, -1.0))
    logs = [write_log(tmp_path / str(place), *own) for place, own in enumerate(values)]
    # One of the second has just begun.
    runs = {"1-frame, plain": logs[:2], "1-frame, layernorm": logs[2:4]}
    runs["8-frame, plain, masked"] = logs[4:]
    quantities = [Quantity("loss", "", ""), Quantity("loss", "", "", -1.0, prior="masked")]
    file = tmp_path / "x.png"
    assert save_curves(runs, file, quantities) == [file]
    loss, masked = (axes.get_lines() for axes in figures[0].axes)
    shown = [line.get_ydata().tolist() for line in loss]
    assert shown == [[1.0, 0.5, 0.03], [0.4, 0.3], [0.4], [2.0, -1.0]]
    assert loss[0].get_xdata().tolist() == [7, 14, 21]
    colours = [line.get_color() for line in loss]
    assert colours[1] == colours[2]
    assert len(set(colours)) == 3
    assert [line.get_ydata().tolist() for line in masked] == [[-2.0, 1.0]]
    assert save_curves({"1-frame": [tmp_path / "none"]}, file, quantities) == []


def test_the_quality_of_samples_stands_where_it_was_measured(diffusion_result):
    results = [diffusion_result(VARIANTS[2], seed, 10.0) for seed in (0, 1)]
    for seed, one in enumerate(results):
        one["generation"] |= {"kid": 0.1 + 0.2 * seed}
    real = {**REAL_IMAGES, "kid": 0.05}
    (table,) = diffusion_tables(results, real)
    cells = [dict(zip(table.heads, row, strict=True)) for row in (table.rows[0], table.rows[-1])]
    assert [each["KID ↓"] for each in cells] == ["0.2000±0.1000", "0.0500"]
