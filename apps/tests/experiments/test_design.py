"""`probseq generate design`: the ranking of digits, what a folder holds, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from probseq_apps.cli import main
from probseq_apps.data.images import load_generation_data
from probseq_apps.experiments import design
from probseq_apps.settings.design import DesignSettings
from pseudovideo import PseudoVideoConfig
from pseudovideo.beyond.design import Design, image_covariance, rank_designs
from pseudovideo.corruptions import ImageShape
from pseudovideo.pixels import to_unit
from pseudovideo.spec import DesignSpec

COMMAND = "generate design --kinds blur high-order-noise --frames 2 4 --sampling-steps 20"


def command(folder, *others):
    return main([*COMMAND.split(), "--quiet", "--run-dir", str(folder), *others])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("design") / "run"
    assert command(found) == 0
    return found


def test_the_order_and_the_numbers_are_those_of_the_package(folder):
    images = to_unit(load_generation_data("digits", image_size=8).train)
    videos = [PseudoVideoConfig(num_frames=1, kind="repeat")]
    for kind in ("blur", "high-order-noise"):
        videos += [PseudoVideoConfig(num_frames=length, kind=kind) for length in (2, 4)]
    wanted = rank_designs(
        image_covariance(images), ImageShape(1, 8, 8), videos, DesignSpec(sampling_steps=20)
    )
    designs = json.loads((folder / "report.json").read_text("utf-8"))["designs"]
    found = [Design.from_dict(values) for values in designs.values()]
    assert [design.videos for design in found] == [design.videos for design in wanted]
    for own, other in zip(found, wanted, strict=True):
        assert own.distance == pytest.approx(other.distance, rel=1e-6)
        assert own.context == other.context
        for name in ("errors", "image_errors", "bits"):
            torch.testing.assert_close(getattr(own, name), getattr(other, name))
    page = (folder / "report.md").read_text("utf-8")
    named = [row.split("|")[1].strip() for row in page.splitlines() if row.startswith("|")]
    assert [n for n in named if "T=" in n] == 2 * [n for n in designs if "T=" in n]  # two tables
    (best, *_), distances = designs, {name: each["distance"] for name, each in designs.items()}
    nearer = sum(each < distances["image alone"] for each in distances.values())
    assert f"- distance: {best} {distances[best]:.4f} against the image alone" in page
    assert f"; {nearer} of 4 pseudo videos are nearer" in page


def test_the_page_has_the_picture_and_says_what_the_order_depends_on(folder):
    with Image.open(folder / "plots" / "designs.png") as picture:
        assert picture.width > 1000
    page = (folder / "report.md").read_text("utf-8")
    assert "The order depends on κ; short trainings" in page
    assert "κ = 0.001. Recipe `digits-design`; all settings" in page
    assert (folder / "report.html").is_file()


def test_a_resumed_run_measures_only_what_is_missing(folder, monkeypatch):
    before = (folder / "report.json").read_text("utf-8")
    (folder / "results" / "blur, T=4-seed0.json").unlink()  # as after a kill
    done = []
    noted = replace(
        design.WORKFLOW, run=lambda *own: (done.append(own[2].row), design.measure(*own))[1]
    )
    monkeypatch.setattr(design, "WORKFLOW", noted)
    assert main(["generate", "design", "--quiet", "--run-dir", str(folder), "--resume"]) == 0
    assert done == ["blur, T=4"]
    assert (folder / "report.json").read_text("utf-8") == before


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--kinds blurr", "unknown kind 'blurr'; did you mean 'blur'?"),
        ("--kinds blur blur", "without repetitions"),
        ("--frames 1", "at least 2"),
        ("--data cifar1", "'cifar10'"),
        ("--sampling-steps 2000", "at most num_steps=1000"),
    ],
)
def test_settings_that_mean_nothing_are_refused_as_usage(tmp_path, capsys, arguments, told):
    with pytest.raises(SystemExit) as stop:
        main(["generate", "design", *arguments.split(), "--run-dir", str(tmp_path / "run")])
    assert stop.value.code == 2
    assert told in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--image-size 32 --num-train 1079 --frames 8", "at most 812 numbers for kind=blur"),
        ("--kinds colour", "must have colours for config.kind=colour"),
        ("--kinds pyramid --frames 8", "must halve 7 times"),
        ("--context 4", "context must be from 1 to num_frames - 1=3, got 4"),
        ("--num-train 64", "more training images than an image has numbers (64)"),
    ],
)
def test_designs_that_cannot_be_measured_are_refused_before_work(
    tmp_path, capsys, monkeypatch, arguments, told
):
    refused = replace(design.WORKFLOW, run=lambda *_: pytest.fail("work was begun"))
    monkeypatch.setattr(design, "WORKFLOW", refused)
    given = [*arguments.split(), "--run-dir", str(tmp_path / "run")]
    assert main(["generate", "design", *given]) == 1
    error = capsys.readouterr().err
    assert error.startswith("probseq: error: ")
    assert told in error
    assert not Path(tmp_path / "run").exists()


def test_kinds_of_noise_have_no_limit_of_size():
    data = load_generation_data("digits", image_size=16)
    settings = DesignSettings(image_size=16, kinds=("first-order-noise",), frames=(18, 100))
    design.check(settings, design.GaussianImages(data))
