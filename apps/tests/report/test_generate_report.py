"""Reports of generation: tables, findings, and which pictures there are."""

import json

import pytest
import torch
from PIL import Image

from probseq_apps.data.images import GenerationData
from probseq_apps.report import generate_plots
from probseq_apps.report.generate import (
    diffusion_findings,
    diffusion_report,
    diffusion_table,
    frame_tables,
    generation_table,
    hvae_findings,
    hvae_report,
    reconstruction_table,
    tokens_findings,
    tokens_report,
    total_steps,
)
from probseq_apps.report.generate_plots import Drawn
from probseq_apps.report.results import REAL, frame_groups, groups_of
from probseq_apps.settings.generate import GenerateSettings
from probseq_apps.settings.models import DiffusionSettings, HvaeSettings, diffusion_arm
from pseudovideo.spec import PseudoVideoConfig

ARMS = ("1-frame", "4-frame-first-order", "4-frame-high-order")
REAL_IMAGES = {"fd": 2.5, "fd_name": "FD(classifier)", "is": 9.0, "num_samples": 40}


def random_bytes(*shape):
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


@pytest.fixture
def data():
    parts = (random_bytes(count, 1, 8, 8) for count in (60, 10, 40))
    return GenerationData("digits", *parts, notes=("digits: a note",))


@pytest.fixture
def variants(diffusion_result):
    found = []
    for seed in (0, 1):
        for place, arm in enumerate(ARMS):
            errors = None if place == 0 else {3: 0.02 + place / 1000, 4: 1e-4}
            exact = None if place == 0 else {3: 0.02, 4: 1e-4}
            fd = 10.0 + place + seed
            found.append(diffusion_result(arm, seed, fd, errors=errors, exact=exact))
    return found


def result(arm, stem, seed, psnr, *, generation=None, **changes):
    found = {
        "arm": arm,
        "stem": stem,
        "seed": seed,
        "frames": int(arm.split("-")[0]),
        "patch": 4,
        "tokens": 16,
        "bits": 160.0,
        "parameters": 12_345,
        "steps": 700,
        "tokenizer_seconds": 3.0,
        "reconstruction": {
            "psnr": psnr,
            "psnr_all_frames": psnr + 1,
            "fd": 100 - psnr,
            "fd_name": "FD(classifier)",
            "num_images": 360,
            "usage": 0.25,
            "perplexity": 11.0,
        },
    } | changes
    return found | ({} if generation is None else {"generation": generation})


def sampled(fd):
    return {"fd": fd, "is": 7.0, "is_std": 0.1, "num_samples": 500, "nats_per_token": 1.5}


@pytest.fixture
def results():
    return [
        result("1-frame", "plain", 0, 20.0, generation={"masked": sampled(31.0)}),
        result("8-frame", "plain", 0, 24.0, generation={"masked": sampled(21.0)}),
        result("1-frame", "layernorm", 0, 15.0),
        result("1-frame", "plain", 1, 22.0, generation={"masked": sampled(33.0)}),
        result("8-frame", "plain", 1, 26.0, generation={"masked": sampled(23.0)}),
        result("1-frame", "layernorm", 1, 15.0),
    ]


@pytest.fixture
def floors():
    return [result("1-frame", "patch-k-means", s, 18.0, steps=None) for s in (0, 1)]


@pytest.fixture
def real():
    return {**sampled(2.5), "nats_per_token": None}


def cells(table, name):
    (row,) = (row for row in table.rows if row[0] == name)
    return dict(zip(table.heads, row, strict=True))


def test_reconstruction_has_all_arms_the_floor_and_real_images(results, floors, real):
    table = reconstruction_table(results, floors, real)
    assert [row[0] for row in table.rows] == [
        "1-frame, plain",
        "8-frame, plain",
        "1-frame, layernorm",
        "1-frame, patch-k-means",
        "real images: test part from training part",
    ]
    row = cells(table, "1-frame, plain")
    # Standard error of (20, 22): 1.
    assert row["PSNR (dB) ↑"] == "21.00±1.00"
    assert row["FD(classifier) ↓"] == "79.00±1.00"
    assert (row["n"], row["bits"], row["tokens"]) == ("2", "160", "16")
    assert (row["steps"], row["parameters"]) == ("700", "12,345")
    assert (row["usage"], row["perplexity"]) == ("25%", "11")
    floor = cells(table, "1-frame, patch-k-means")
    assert (floor["PSNR (dB) ↑"], floor["steps"]) == ("18.00±0.00", "—")
    last = cells(table, "real images: test part from training part")
    assert (last["FD(classifier) ↓"], last["PSNR (dB) ↑"], last["n"]) == ("2.50", "—", "—")


def test_generation_has_each_prior_and_only_arms_that_were_sampled(results, real):
    table = generation_table(results, real)
    assert [row[0] for row in table.rows] == ["1-frame, plain", "8-frame, plain", REAL]
    row = cells(table, "8-frame, plain")
    assert row["masked: FD(classifier) ↓"] == "22.00±1.00"
    assert row["masked: IS(classifier) ↑"] == "7.000±0.000"
    assert row["masked: samples"] == "500"
    assert cells(table, REAL)["masked: FD(classifier) ↓"] == "2.50"
    assert cells(table, REAL)["masked: nats per token ↓"] == "—"
    assert cells(table, REAL)["masked: samples"] == "500"
    assert generation_table([result("1-frame", "plain", 0, 20.0)], real) is None


def test_inception_scores_are_named_for_their_features_and_left_out_without_classes(results, real):
    table = generation_table(results, real)
    assert "masked: IS(classifier) ↑" in table.heads
    for one in results:
        one["reconstruction"]["fd_name"] = "FID"
    assert "masked: IS ↑" in generation_table(results, real).heads
    for one in results:
        if "generation" in one:
            one["generation"]["masked"]["is"] = None
    heads = generation_table(results, {**real, "is": None}).heads
    assert [head for head in heads if "IS" in head] == []
    assert "masked: FID ↓" in heads
    assert "masked: nats per token ↓" in heads


def test_one_seed_has_no_error_and_numbers_that_a_seed_lacks_no_mean(results, real):
    alone = reconstruction_table([results[0]], [], real)
    assert cells(alone, "1-frame, plain")["PSNR (dB) ↑"] == "20.00"
    results[0]["reconstruction"]["psnr"] = None
    table = reconstruction_table(results, [], real)
    assert cells(table, "1-frame, plain")["PSNR (dB) ↑"] == "—"


def test_controls_are_those_of_the_same_stem_and_length_with_no_more_bits(results):
    arms = {"1-frame": 160.0, "8-frame": 640.0, "8-frame-repeat": 640.0, "4-frame-repeat": 320.0}
    arms |= {"1-frame-patch2": 320.0, "1-frame-patch1": 960.0}
    made = [
        result(arm, stem, seed, 20.0 + 10 * (arm == "8-frame") + 0.1 * seed, bits=bits)
        for stem in ("plain", "layernorm")
        for arm, bits in arms.items()
        for seed in range(3)
    ]
    found = [text for text in tokens_findings(made, [], REAL_IMAGES) if text.startswith("PSNR")]
    for text, stem in zip(found, ("plain", "layernorm"), strict=True):
        names = [part.split(" than ")[1].partition(" 20.")[0] for part in text.split("clearly")[1:]]
        others = ("1-frame", "8-frame-repeat", "1-frame-patch2")
        assert names == [f"{arm}, {stem}" for arm in others]
        assert text.endswith("(survives).")
    fewer = [one for one in made if one["arm"] != "8-frame-repeat"]
    assert tokens_findings(fewer, [], REAL_IMAGES)[0].endswith("(better).")


def test_the_table_has_all_arms_over_the_seeds_and_real_images(variants):
    table = diffusion_table(variants, REAL_IMAGES)
    assert [row[0] for row in table.rows] == [*ARMS, REAL]
    image, video = cells(table, "1-frame"), cells(table, "4-frame-high-order")
    # Standard error of (12, 13): one half.
    assert video["FD(classifier) ↓"] == "12.50±0.50"
    assert (video["n"], video["T"], video["C"]) == ("2", "4", "2")
    assert (video["sampling steps"], video["evaluations"]) == ("3,000", "8,000")
    assert (image["sampling steps"], image["C"]) == ("1,000", "—")
    assert (image["bits/dim ↓"], video["bits/dim ↓"]) == ("3.500±0.500", "—")
    real = cells(table, REAL)
    assert (real["FD(classifier) ↓"], real["samples"], real["T"]) == ("2.50", "40", "—")


def test_numbers_that_no_arm_has_take_no_column(variants):
    for result in variants:
        result["bits_per_dim"] = result["generation"]["is"] = None
    heads = diffusion_table(variants, {**REAL_IMAGES, "is": None}).heads
    assert not [head for head in heads if "bits" in head or "IS" in head]


def test_errors_of_frames_stand_in_thousandths_beside_the_exact_ones(variants):
    (table,) = frame_tables(variants)
    assert [row[0] for row in table.rows] == list(ARMS[1:])
    assert table.heads == [
        *("errors of frames, T = 4", "n", "frame 3 ↓", "exact", "image ↓", "exact"),
        *("images", "samples"),
    ]
    expected = ["2", "22.00±0.00", "20.00", "0.1000±0.0000", "0.1000", "100", "4"]
    assert table.rows[1][1:] == expected
    assert frame_tables(variants[:1]) == []


def test_longer_videos_have_a_mean_and_a_table_of_their_own(variants, diffusion_result):
    errors = {5: 0.004, 6: 0.002, 7: 0.003, 8: 1e-4}
    longer = diffusion_result("8-frame-high-order", 0, 9.0, errors=errors)
    first, second = frame_tables([*variants, longer])
    assert first.heads[0] != second.heads[0] == "errors of frames, T = 8"
    row = cells(second, "8-frame-high-order")
    assert (row["mean before the image ↓"], row["frame 5 ↓"]) == ("3.000", "4.000")
    assert row["exact"] == "—"


@pytest.mark.parametrize(
    ("arm", "steps"),
    [
        *(("1-frame", 1000), ("1-frame-4000", 4000)),
        *(("4-frame-first-order", 3000), ("8-frame-blur", 5000)),
    ],
)
def test_denoising_steps_are_those_of_all_stages(diffusion_result, arm, steps):
    (found,) = groups_of([diffusion_result(arm, 0, 1.0)])
    assert total_steps(found) == steps


def test_intermediate_errors_are_means_over_the_frames_before_the_image(diffusion_result):
    errors = {5: 0.003, 6: 0.002, 7: 0.001, 8: 0.9}
    (group,) = frame_groups([diffusion_result("8-frame-high-order", 0, 1.0, errors=errors)])
    assert group.summary(("intermediate",)).mean == pytest.approx(2.0)
    assert group.summary(("last",)).mean == pytest.approx(900.0)
    assert group.summary(("model", "5")).mean == pytest.approx(3.0)
    assert group.summary(("exact", "5")).mean is None


def test_findings_are_of_orders_then_of_one_frame_and_of_blur(diffusion_result):
    numbers = {"1-frame": 13.0, "1-frame-4000": 12.8, "4-frame-first-order": 17.0}
    numbers |= {"4-frame-high-order": 12.0, "4-frame-matched": 12.05, "4-frame-blur": 15.0}
    results = [
        diffusion_result(arm, seed, mean + 0.1 * seed, errors=None if arm[0] == "1" else {3: mean})
        for seed in range(3)
        for arm, mean in numbers.items()
    ]
    found = diffusion_findings(results, REAL_IMAGES)
    heads = [text.partition(" is ")[0].rpartition(" ")[0] for text in found]
    assert heads == [
        "Squared error of the intermediate frames, in thousandths: 4-frame-high-order",
        "FD(classifier) of the last frame: 4-frame-high-order",
        "FD(classifier) of the last frame: 1-frame-4000",
        "FD(classifier) of the last frame: 4-frame-first-order",
        "FD(classifier) of the last frame: 4-frame-high-order",
        "FD(classifier) of the last frame: 4-frame-matched",
        "FD(classifier) of the last frame: 4-frame-blur",
        "FD(classifier) of the last frame: 4-frame-blur",
    ]
    assert found[0].endswith("(survives).")
    assert found[1].endswith("(matched).")
    assert "clearly higher than 4-frame-high-order 12.10±0.06 (worse)." in found[-1]


def test_the_encoders_are_compared_by_score_and_distance(hvae_result):
    results = [
        hvae_result(arm, seed, mean + 0.1 * (seed - 1))
        for seed in range(3)
        for arm, mean in (("heat", 9.3), ("learned", 7.3))
    ]
    assert hvae_findings(results, REAL_IMAGES) == [
        "IS(classifier): heat 9.300±0.058 is clearly higher than learned 7.300±0.058 (better).",
        "FD(classifier): heat 20.00±0.00 is not clearly different from learned 20.00±0.00 (equal).",
    ]
    assert hvae_findings([found for found in results if found["arm"] == "heat"], REAL_IMAGES) == []


def test_no_distance_of_samples_without_classes_is_a_finding(hvae_result):
    """Noise that is near by a few features beats nothing."""
    results = [
        hvae_result(arm, seed, score + 0.1 * seed)
        for seed in range(3)
        for arm, score in (("heat", 1.1), ("learned", 8.0))
    ]
    for place, one in enumerate(results):
        one["generation"]["fd"] = (5.0 if one["arm"] == "heat" else 20.0) + 0.1 * place
    (found,) = hvae_findings(results, REAL_IMAGES)
    assert found.startswith("IS(classifier): heat")
    # Without classes there is no score to tell by.
    assert len(hvae_findings(results, {**REAL_IMAGES, "is": None})) == 2


def folders(tmp_path, names, parts):
    logs = {}
    for name in names:
        folder = tmp_path / f"log-{name}"
        folder.mkdir()
        rows = [
            {"step": step, "loss": 1 / step, "parts": {key: 0.9 / step for key in parts}}
            for step in (100, 500, 900)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        logs[name] = [folder]
    return logs


def drawn_of(frames, snapshots):
    return Drawn(
        random_bytes(50, 1, 8, 8),
        random_bytes(20, frames, 1, 8, 8),
        random_bytes(16, snapshots, frames, 1, 8, 8),
        torch.arange(snapshots),
    )


def write_diffusion(tmp_path, arms, results, data):
    settings = DiffusionSettings(arms=arms, seeds=(0, 1))
    parsed = [diffusion_arm(arm) for arm in arms]
    logs = folders(tmp_path, arms, ("mse", "vlb"))
    return diffusion_report(
        [found for found in results if found["arm"] in arms],
        REAL_IMAGES,
        settings=settings.to_dict(),
        data=data,
        recipe="digits-diffusion",
        videos={
            arm.name: (settings.videos_of(arm), settings.context_of(arm))
            for arm in parsed
            if arm.is_video
        },
        drawn={arm.name: drawn_of(arm.frames, 5) for arm in parsed},
        logs=logs,
    ).write(tmp_path)


def test_a_report_of_diffusion_has_numbers_and_pictures_of_all_arms(tmp_path, variants, data):
    shown = write_diffusion(tmp_path, ARMS, variants, data)
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["experiment"], report["recipe"]) == ("generate-diffusion", "digits-diffusion")
    assert report["results"] == variants
    assert report["data"]["image_size"] == 8
    text = (tmp_path / "report.md").read_text()
    assert "12.50±0.50" in shown
    assert "12.50±0.50" in text
    assert "digits: a note" in text
    drawn = {path.name for path in (tmp_path / "plots").iterdir()}
    assert drawn == {
        *("summary.png", "frame-errors.png", "theorem.png", "samples.png", "losses.png"),
        *(f"process-{arm}.gif" for arm in ARMS),
        *(f"videos-{arm}.{end}" for arm in ARMS[1:] for end in ("png", "gif")),
    }
    for name in drawn:
        assert f"](plots/{name})" in text
        with Image.open(tmp_path / "plots" / name) as image:
            frames = {"p": 5, "v": 4}[name[0]] if name.endswith(".gif") else 1
            assert getattr(image, "n_frames", 1) == frames


@pytest.mark.parametrize("arms", [("1-frame",), ("4-frame-blur",)])
def test_the_theorem_of_noise_is_drawn_for_noise_alone(tmp_path, diffusion_result, data, arms):
    results = [diffusion_result(arms[0], seed, 10.0) for seed in (0, 1)]
    write_diffusion(tmp_path, arms, results, data)
    assert not (tmp_path / "plots" / "theorem.png").exists()
    assert (tmp_path / "plots" / "samples.png").exists()


def test_a_picture_that_fails_leaves_the_report(tmp_path, variants, data, monkeypatch, capsys):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(generate_plots, "save_bars", fail)
    with pytest.raises(RuntimeError, match="without plots, which cannot be drawn: OSError: disk"):
        write_diffusion(tmp_path, ARMS, variants, data)
    assert "12.50±0.50" in (tmp_path / "report.md").read_text()
    assert "12.50±0.50" in capsys.readouterr().out


def test_a_report_of_hvaes_has_films_of_all_levels(tmp_path, hvae_result, data):
    results = [hvae_result(arm, s, 9.0 + s) for s in (0, 1) for arm in ("heat", "learned")]
    arms = ("heat", "learned")
    shown = hvae_report(
        results,
        REAL_IMAGES,
        settings=HvaeSettings(seeds=(0, 1)).to_dict(),
        data=data,
        recipe="digits-hvae",
        drawn={arm: drawn_of(1, 19) for arm in arms},
        logs=folders(tmp_path, arms, ("steps", "prior", "mse")),
    ).write(tmp_path)
    assert "9.500±0.500" in shown
    drawn = {path.name for path in (tmp_path / "plots").iterdir()}
    films = {f"process-{arm}.gif" for arm in arms}
    assert drawn == {"summary.png", "samples.png", "losses.png", *films}
    for name in films:
        with Image.open(tmp_path / "plots" / name) as film:
            assert film.n_frames == 19


@pytest.mark.parametrize("kind", ["blur", "high-order-noise"])
def test_a_report_of_tokenizers_has_strips_reconstructions_and_samples(
    tmp_path, results, floors, real, data, kind
):
    images = random_bytes(10, 1, 8, 8).float() / 127.5 - 1
    tokens_report(
        results,
        floors,
        real,
        settings=GenerateSettings(seeds=(0, 1)).to_dict(),
        data=data,
        recipe="digits-small",
        seed=0,
        videos=PseudoVideoConfig(num_frames=8, kind=kind),
        reconstructed={"plain": {"1-frame": images, "8-frame": images}},
        samples={"samples-masked": ("Masked", *drawn_of(8, 2)[:2])},
        tokenizer_logs=folders(tmp_path, ["1-frame, plain"], ("reconstruction", "usage")),
        prior_logs=folders(tmp_path, ["1-frame, plain, masked"], ()),
    ).write(tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["floors"], report["real"], report["results"]) == (floors, real, results)
    text = (tmp_path / "report.md").read_text()
    assert "| 1-frame, plain | 2 | 160 |" in text
    drawn = {path.name for path in (tmp_path / "plots").iterdir()}
    assert drawn == {
        *("summary.png", "pseudo-videos.png", "reconstructions-plain.png", "samples-masked.png"),
        *("samples-masked-videos.png", "samples-masked.gif"),
        *("tokenizer-loss.png", "tokenizer-codebook.png", "prior-loss.png"),
        *(["theorem.png"] if kind != "blur" else []),
    }
