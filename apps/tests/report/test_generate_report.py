import json

import pytest
import torch

from probseq_apps.data.images import GenerationData
from probseq_apps.experiments.drawn import image_facts
from probseq_apps.experiments.generate_settings import GenerateSettings
from probseq_apps.report.generate import tokens_findings, tokens_report
from probseq_apps.report.generate_tables import generation_table, reconstruction_table
from probseq_apps.report.results import REAL


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


def test_a_column_has_the_decimals_of_its_statements(results, real):
    results[0]["reconstruction"]["fd"] = results[3]["reconstruction"]["fd"] = 0.25
    table = reconstruction_table(results, [], real)
    assert cells(table, "1-frame, plain")["FD(classifier) ↓"] == "0.25±0.00"
    found = tokens_findings(results, [])
    assert any("1-frame, plain 0.25±0.00 " in text for text in found)


def test_one_seed_has_no_error_and_numbers_that_a_seed_lacks_no_mean(results, real):
    alone = reconstruction_table([results[0]], [], real)
    assert cells(alone, "1-frame, plain")["PSNR (dB) ↑"] == "20.00"
    results[0]["reconstruction"]["psnr"] = None
    table = reconstruction_table(results, [], real)
    assert cells(table, "1-frame, plain")["PSNR (dB) ↑"] == "—"


def small_data():
    images = torch.zeros(3, 1, 16, 16, dtype=torch.uint8)
    return GenerationData("digits", images, images, images, notes=("enlarged",))


def written(tmp_path, results, floors, real, draw):
    return tokens_report(
        results,
        floors,
        real,
        settings=GenerateSettings(seeds=(0, 1)).to_dict(),
        data=image_facts(small_data()),
        recipe="digits-small",
        plots=lambda _: draw(),
    ).write(tmp_path)


def test_the_report_is_written_with_tables_findings_and_pictures(tmp_path, results, floors, real):
    text = written(tmp_path, results, floors, real, lambda: [tmp_path / "plots" / "samples.png"])
    markdown = (tmp_path / "report.md").read_text(encoding="utf-8")
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    stands = "is not clearly different from 1-frame, patch-k-means 18.00±0.00 dB (equal)."
    assert all(shown in text for shown in ("21.00±1.00", "FD(classifier)"))
    assert all(shown in markdown for shown in ("21.00±1.00", "FD(classifier)", stands, "Bits:"))
    assert "| 1-frame, plain | 2 | 160 |" in markdown
    assert "![samples](plots/samples.png)" in markdown
    assert "- enlarged" in markdown
    assert report["results"] == results
    assert (report["floors"], report["real"]) == (floors, real)
    assert report["notes"]
    assert all(note in markdown for note in report["notes"])


def test_a_report_stands_where_its_pictures_cannot_be_drawn(
    tmp_path, results, floors, real, capsys
):
    def fail():
        raise ValueError("no canvas")

    with pytest.raises(RuntimeError, match=r"without plots.*no canvas"):
        written(tmp_path, results, floors, real, fail)
    assert "21.00±1.00" in (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "21.00±1.00" in capsys.readouterr().out


def test_controls_are_those_of_the_same_stem_and_length_with_no_more_bits(results):
    arms = {"1-frame": 160.0, "8-frame": 640.0, "8-frame-repeat": 640.0, "4-frame-repeat": 320.0}
    arms |= {"1-frame-patch2": 320.0, "1-frame-patch1": 960.0}
    made = [
        result(arm, stem, seed, 20.0 + 10 * (arm == "8-frame") + 0.1 * seed, bits=bits)
        for stem in ("plain", "layernorm")
        for arm, bits in arms.items()
        for seed in range(3)
    ]
    found = [text for text in tokens_findings(made, []) if text.startswith("PSNR")]
    for text, stem in zip(found, ("plain", "layernorm"), strict=True):
        names = [part.split(" than ")[1].partition(" 20.")[0] for part in text.split("clearly")[1:]]
        others = ("1-frame", "8-frame-repeat", "1-frame-patch2")
        assert names == [f"{arm}, {stem}" for arm in others]
        assert text.endswith("(survives).")
    fewer = [one for one in made if one["arm"] != "8-frame-repeat"]
    assert tokens_findings(fewer, [])[0].endswith("(better).")
