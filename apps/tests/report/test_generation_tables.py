"""Tables 5.1 to 5.5 beside the reports of `probseq generate`."""

import json

import pytest

from probseq_apps.cli import main
from probseq_apps.report.compare import compare
from probseq_apps.report.measured import find_runs, read_run
from probseq_apps.report.paper_report import markdown_text, terminal_text
from probseq_apps.report.papers import load_table
from probseq_apps.settings.models import DIFFUSION_RECIPES

ARMS = ("1-frame", "1-frame-4000", "4-frame-first-order", "4-frame-high-order")


@pytest.fixture
def write_diffusion(write_generation, diffusion_result):
    """Write a run whose arms have these distances, and one more for each further seed."""

    def write(name, numbers, *, seeds=2, fd_name="FD(classifier)", **options):
        results = [
            diffusion_result(arm, seed, fd + seed, fd_name=fd_name)
            for seed in range(seeds)
            for arm, fd in numbers.items()
        ]
        return write_generation(name, "generate-diffusion", results, **options)

    return write


def tokenizer_result(arm, stem, seed, psnr, *, samples=None, fd_name="FID"):
    result = {
        "arm": arm,
        "stem": stem,
        "seed": seed,
        "frames": int(arm.partition("-")[0]),
        "reconstruction": {"psnr": psnr, "fd": 40 - psnr, "fd_name": fd_name},
    }
    if samples is not None:
        drawn = {"fd": samples, "is": 5.0, "is_splits": 10, "num_samples": 500}
        result["generation"] = {"masked": drawn}
    return result


def compared(name, *folders):
    runs, _ = find_runs(folders)
    return compare(load_table(name), runs)


def ours(comparison, label, group=0):
    row = {row.label: row for row in comparison.groups[group].rows}[label]
    return [None if cell.ours is None else cell.ours.mean for cell in row.cells]


def text_of(name, *folders):
    runs, notes = find_runs(folders)
    return terminal_text(compare(load_table(name), runs), notes, 10_000)


def test_arms_stand_by_kind_and_length_and_images_in_both_rows(write_diffusion):
    numbers = dict(zip(ARMS, (13.0, 12.0, 17.0, 12.5), strict=True)) | {"8-frame-high-order": 11.0}
    folder = write_diffusion("a", numbers, recipe="table-5.3-cifar10", fd_name="FID")
    table = compared("5.3", folder)
    assert ours(table, "First-order Markov") == [13.5, 17.5, None, None, None, None]
    assert ours(table, "High-order Markov") == [13.5, 13.0, 11.5, None, None, None]
    steps = compared("5.4", folder)
    assert ours(steps, "CIFAR10") == [13.5, 12.5, 13.0]
    assert ours(steps, "CelebA", 1) == [None, None, None]


def test_blur_has_a_row_of_its_own_and_matched_noise_none(write_diffusion):
    numbers = {"4-frame-high-order": 12.0, "4-frame-blur": 15.0, "4-frame-matched": 1.0}
    table = compared("5.5", write_diffusion("a", numbers, recipe="table-5.5-cifar10"))
    assert ours(table, "Gaussian noise") == [12.5, None]
    assert ours(table, "Gaussian blur") == [15.5, None]


@pytest.mark.parametrize(("fd_name", "mark"), [("FID", "▼"), ("FD(classifier)", "")])
def test_only_fid_is_marked_against_the_thesis(write_diffusion, fd_name, mark):
    numbers = {"4-frame-high-order": 60.0}
    recipe = "table-5.3-cifar10"
    folder = write_diffusion("a", numbers, recipe=recipe, fd_name=fd_name, size=32)
    cell = compared("5.3", folder).groups[0].rows[1].cells[1]
    assert (cell.ours.mean, cell.mark) == (60.5, mark)
    smaller = write_diffusion("b", numbers, recipe=recipe, fd_name=fd_name, size=16)
    assert compared("5.3", smaller).groups[0].rows[1].cells[1].mark == ""
    note = "distances are FID;" if fd_name == "FID" else "distances are FD(classifier), not FID;"
    text = text_of("5.3", folder)
    assert note in text
    # A cell names what it holds, unless that is what the paper's column holds.
    assert ("FD(classifier) 60.5" in text) == (fd_name != "FID")
    assert " 60.5" in text


def test_faces_go_to_their_own_columns(write_diffusion):
    folder = write_diffusion("a", {"4-frame-high-order": 7.0}, recipe="table-5.3-celeba", size=64)
    assert ours(compared("5.3", folder), "High-order Markov") == [None, None, None, None, 7.5, None]
    assert ours(compared("5.4", folder), "CelebA", 1) == [None, None, 7.5]


def test_other_images_stand_in_unmarked_until_there_are_the_right_ones(write_diffusion):
    digits = write_diffusion("d", {ARMS[3]: 60.0}, recipe="digits-diffusion", fd_name="FID")
    table = compared("5.3", digits)
    assert ours(table, "High-order Markov")[1] == 60.5
    assert table.groups[0].rows[1].cells[1].mark == ""
    cifar = write_diffusion("c", {ARMS[2]: 17.0}, recipe="table-5.3-cifar10")
    table = compared("5.3", digits, cifar)
    # The other run has no such number, and the digits fill no gap of it.
    assert ours(table, "High-order Markov")[1] is None
    assert ours(table, "First-order Markov")[1] == 17.5


def test_the_note_tells_images_steps_samples_and_what_the_recipe_has(write_diffusion):
    folder = write_diffusion("d", {ARMS[1]: 60.0, ARMS[3]: 60.0}, recipe="digits-diffusion")
    (note,) = [n for n in text_of("5.4", folder).splitlines() if n.startswith("[1]")]
    ours = DIFFUSION_RECIPES.load("digits-diffusion")
    steps = ours.training.steps
    assert f"digits, 2 seeds, {steps} optimizer steps a model, recipe digits-diffusion" in note
    assert "images of 1x16x16 (thesis: 3x32x32)" in note
    assert "200 samples of each model" in note
    assert "sampling ancestral 4,000, ancestral 1,000 steps a frame or window" in note
    assert "unlike the paper's recipe table-5.4-cifar10 in data digits (cifar10)" in note
    for part in (
        f"unet.base_channels {ours.unet.base_channels} (128)",
        f"training.steps {steps} (500000)",
    ):
        assert part in note
    # Which arms and seeds were run says nothing about the setting.
    assert "arms" not in note
    assert "frames." not in note


def test_a_run_of_the_recipe_is_said_to_be_one(write_diffusion):
    folder = write_diffusion("c", {ARMS[0]: 13.0}, recipe="table-5.3-cifar10", size=32)
    text = text_of("5.3", folder)
    assert "as the paper's recipe table-5.3-cifar10." in text
    assert "(thesis: 3x32x32)" not in text


def test_videos_of_other_noise_are_told(write_diffusion):
    recipe = "table-5.3-cifar10"
    folder = write_diffusion("c", {ARMS[3]: 13.0}, recipe=recipe)
    report = json.loads((folder / "report.json").read_text())
    report["settings"]["frames"]["beta_max"] = 0.1
    (folder / "report.json").write_text(json.dumps(report))
    assert "frames.beta_max 0.1 (0.05)" in text_of("5.3", folder)


def test_scores_of_both_encoders_stand_side_by_side_and_are_never_marked(
    write_generation, hvae_result
):
    results = [
        hvae_result(arm, seed, score + 0.01 * seed)
        for seed in (0, 1)
        for arm, score in (("heat", 3.0), ("learned", 2.0))
    ]
    folder = write_generation("h", "generate-hvae", results, recipe="table-5.1", size=28)
    table = compared("5.1", folder)
    assert ours(table, "IS") == [3.005, 2.005]
    assert [cell.mark for cell in table.groups[0].rows[0].cells] == ["", ""]
    text = text_of("5.1", folder)
    assert "scores are IS(classifier) in 10 splits; 1,000 samples" in text
    assert "sampling ancestral 18 levels" in text
    assert "(thesis: 1x28x28)" not in text
    assert "as little, it copies the image, and the model's samples are noise, not digits." in text
    smaller = write_generation("s", "generate-hvae", results, recipe="table-5.1", size=16)
    assert "images of 1x16x16 (thesis: 1x28x28)" in text_of("5.1", smaller)
    grey = write_generation("g", "generate-hvae", results, recipe="table-5.1", binarize=False)
    assert ours(compared("5.1", grey), "IS") == [None, None]


def test_tokenizers_stand_by_stem_without_their_controls(write_generation):
    results = [
        tokenizer_result("1-frame", "plain", 0, 21.0, samples=50.0),
        tokenizer_result("8-frame", "plain", 0, 22.0),
        tokenizer_result("8-frame-repeat", "plain", 0, 30.0, samples=1.0),
        tokenizer_result("1-frame-patch2", "plain", 0, 31.0, samples=1.0),
        tokenizer_result("1-frame", "layernorm", 0, 16.0),
    ]
    table = compared("5.2", write_generation("t", "generate", results, recipe="cifar10-8-frame"))
    assert ours(table, "Reconstruction (FID)", 0)[:3] == [19.0, 18.0, None]
    assert ours(table, "Latent Masked Generation (FID)", 0)[:3] == [50.0, None, None]
    assert ours(table, "AR Generation (FID)", 0)[:3] == [None, None, None]
    assert ours(table, "Reconstruction (PSNR)", 1)[:3] == [21.0, 22.0, None]
    assert ours(table, "Reconstruction (FID)", 2)[:3] == [24.0, None, None]
    assert ours(table, "Reconstruction (PSNR)", 3)[:3] == [16.0, None, None]


def test_tokenizers_of_another_corruption_are_no_run_of_the_table(write_generation):
    results = [tokenizer_result("8-frame", "plain", 0, 22.0)]
    folder = write_generation("t", "generate", results, recipe="cifar10-8-frame")
    report = json.loads((folder / "report.json").read_text())
    report["settings"]["videos"]["corruption"] = "high-order-noise"
    (folder / "report.json").write_text(json.dumps(report))
    assert compared("5.2", folder).runs == ()


def test_oddities_of_the_thesis_are_told():
    text = markdown_text(compare(load_table("5.3"), []), [], "t.png")
    assert "prints the 1-frame numbers in both rows" in text
    assert "it takes runs of `probseq generate diffusion` on cifar10 or celeba." in text
    assert "± is a standard error over seeds in ours" in text


def test_runs_of_other_experiments_are_skipped_with_the_reason(
    write_run, write_diffusion, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "10000")
    classified = write_run("c", {"sgpa": {"test/nll": [1.0]}})
    generated = write_diffusion("d", {ARMS[3]: 12.0}, recipe="table-5.3-cifar10")
    out = ["--output-dir", str(tmp_path / "out")]
    assert main(["report", "--table", "5.3", *out, str(classified), str(generated)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "c is of the experiment 'classify', and the numbers of table 5.3 are of" in shown
    assert "12.50±0.50" in shown
    assert main(["report", "--table", "B.6", *out, str(generated)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "'generate-diffusion', and the numbers of table B.6 are not of" in shown


def test_unfinished_and_empty_folders_are_refused(tmp_path, capsys):
    (tmp_path / "config.json").write_text("{}")
    assert main(["report", "--table", "5.3", str(tmp_path)]) == 1
    assert "and holds one that is not finished" in capsys.readouterr().err
    (tmp_path / "config.json").unlink()
    assert main(["report", "--table", "5.3", str(tmp_path)]) == 1
    assert "and holds none" in capsys.readouterr().err


def test_a_report_of_another_version_is_left_out(write_diffusion):
    folder = write_diffusion("d", {ARMS[3]: 12.0}, recipe="table-5.3-cifar10")
    report = json.loads((folder / "report.json").read_text())
    del report["results"][0]["generation"]
    (folder / "report.json").write_text(json.dumps(report))
    with pytest.raises(ValueError, match="not a report of this version: KeyError"):
        read_run(folder)
