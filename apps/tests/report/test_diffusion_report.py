import json

import pytest
import torch
from PIL import Image

from probseq_apps.data.images import GenerationData
from probseq_apps.experiments.compare_models import DiffusionModels
from probseq_apps.experiments.diffusion_settings import DiffusionSettings
from probseq_apps.experiments.generate_files import (
    MODEL_PARTS,
    model_folder,
    model_samples_file,
    process_file,
)
from probseq_apps.experiments.generate_sample import Samples
from probseq_apps.experiments.process import Process
from probseq_apps.folder import RunFolder
from probseq_apps.report import generate_plots
from probseq_apps.report.generate import diffusion_findings
from probseq_apps.report.generate_tables import diffusion_table, frame_tables, total_steps
from probseq_apps.report.results import REAL, frame_groups, groups_of

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
def results(diffusion_result):
    found = []
    for seed in (0, 1):
        for place, arm in enumerate(ARMS):
            errors = None if place == 0 else {3: 0.02 + place / 1000, 4: 1e-4}
            exact = None if place == 0 else {3: 0.02, 4: 1e-4}
            fd = 10.0 + place + seed
            found.append(diffusion_result(arm, seed, fd, errors=errors, exact=exact))
    return found


@pytest.fixture
def folder(tmp_path, results):
    """What a run leaves behind when its arms are finished."""
    for part in MODEL_PARTS:
        (tmp_path / part).mkdir()
    for result in results:
        arm, seed, frames = result["arm"], result["seed"], result["frames"]
        samples = Samples(random_bytes(50, 1, 8, 8), random_bytes(20, frames, 1, 8, 8), 1.0)
        samples.save(model_samples_file(tmp_path, arm, seed))
        process = Process(random_bytes(16, 5, frames, 1, 8, 8), torch.arange(1, 6) * 200)
        process.save(process_file(tmp_path, arm, seed))
        run = model_folder(tmp_path, arm, seed)
        run.mkdir()
        rows = [
            {"step": step, "loss": 1 / step, "parts": {"mse": 0.9 / step, "vlb": 10 / step}}
            for step in (100, 500, 900)
        ]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.fixture
def settings():
    return DiffusionSettings(arms=ARMS, seeds=(0, 1))


def cells(table, name):
    (row,) = (row for row in table.rows if row[0] == name)
    return dict(zip(table.heads, row, strict=True))


def test_the_table_has_all_arms_over_the_seeds_and_real_images(results):
    table = diffusion_table(results, REAL_IMAGES)
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


def test_numbers_that_no_arm_has_take_no_column(results):
    for result in results:
        result["bits_per_dim"] = result["generation"]["is"] = None
    heads = diffusion_table(results, {**REAL_IMAGES, "is": None}).heads
    assert not [head for head in heads if "bits" in head or "IS" in head]


def test_errors_of_frames_stand_in_thousandths_beside_the_exact_ones(results):
    (table,) = frame_tables(results)
    assert [row[0] for row in table.rows] == list(ARMS[1:])
    assert table.heads == [
        *("errors of frames, T = 4", "n", "frame 3 ↓", "exact", "image ↓", "exact"),
        *("images", "samples"),
    ]
    expected = ["2", "22.00±0.00", "20.00", "0.1000±0.0000", "0.1000", "100", "4"]
    assert table.rows[1][1:] == expected
    assert frame_tables(results[:1]) == []


def test_longer_videos_have_a_mean_and_a_table_of_their_own(results, diffusion_result):
    errors = {5: 0.004, 6: 0.002, 7: 0.003, 8: 1e-4}
    longer = diffusion_result("8-frame-high-order", 0, 9.0, errors=errors)
    first, second = frame_tables([*results, longer])
    assert first.heads[0] != second.heads[0] == "errors of frames, T = 8"
    row = cells(second, "8-frame-high-order")
    assert (row["mean before the image ↓"], row["frame 5 ↓"]) == ("3.000", "4.000")
    assert row["exact"] == "—"


def written(folder, settings, results, data):
    at = RunFolder(folder, "digits-diffusion")
    return DiffusionModels(settings).write(results, REAL_IMAGES, data, at)


def test_everything_is_written_and_shown(folder, settings, results, data, capsys):
    shown = written(folder, settings, results, data)
    assert capsys.readouterr().out == ""
    report = json.loads((folder / "report.json").read_text())
    assert report["experiment"] == "generate-diffusion"
    assert report["recipe"] == "digits-diffusion"
    assert report["settings"] == json.loads(json.dumps(settings.to_dict()))
    assert report["results"] == results
    assert report["data"]["image_size"] == 8
    text = (folder / "report.md").read_text()
    assert "12.50±0.50" in shown
    assert "12.50±0.50" in text
    assert "digits: a note" in text
    for note in report["notes"]:
        assert f"- {note}\n" in text
    drawn = {path.name for path in (folder / "plots").iterdir()}
    assert drawn == {
        *("summary.png", "frame-errors.png", "theorem.png", "samples.png", "losses.png"),
        *(f"process-{arm}.gif" for arm in ARMS),
        *(f"videos-{arm}.{end}" for arm in ARMS[1:] for end in ("png", "gif")),
    }
    for name in drawn:
        assert f"](plots/{name})" in text
        with Image.open(folder / "plots" / name) as image:
            frames = {"p": 5, "v": 4}[name[0]] if name.endswith(".gif") else 1
            assert getattr(image, "n_frames", 1) == frames


def test_deleted_files_leave_their_pictures_out(folder, settings, results, data):
    for arm in ARMS:
        model_samples_file(folder, arm, 0).unlink()
        process_file(folder, arm, 0).unlink()
        (model_folder(folder, arm, 0) / "metrics.jsonl").unlink()
        (model_folder(folder, arm, 1) / "metrics.jsonl").unlink()
    written(folder, settings, results, data)
    drawn = {path.name for path in (folder / "plots").iterdir()}
    assert drawn == {"summary.png", "frame-errors.png", "theorem.png", "samples.png"}


def test_images_alone_need_no_videos(folder, results, data):
    settings = DiffusionSettings(arms=ARMS[:1], seeds=(0, 1))
    images = [result for result in results if result["arm"] == "1-frame"]
    shown = written(folder, settings, images, data)
    assert "Errors of single frames" not in shown
    assert not (folder / "plots" / "theorem.png").exists()


def test_a_picture_that_fails_leaves_the_report(
    folder, settings, results, data, monkeypatch, capsys
):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(generate_plots, "save_bars", fail)
    with pytest.raises(RuntimeError, match="without plots, which cannot be drawn: OSError: disk"):
        written(folder, settings, results, data)
    assert "12.50±0.50" in (folder / "report.md").read_text()
    assert "12.50±0.50" in capsys.readouterr().out


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
    found = diffusion_findings(results)
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
