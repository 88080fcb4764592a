"""Run folders beside the papers' tables: which number stands where, marks, notes, commands."""

import json
import os
from itertools import pairwise

import pytest
from PIL import Image

from probseq_apps.cli import main
from probseq_apps.report.compare import compare
from probseq_apps.report.measured import find_runs, read_run
from probseq_apps.report.paper_report import draw, markdown_text, terminal_text
from probseq_apps.report.papers import load_table, table_names

ARMS = ("1-frame", "1-frame-4000", "4-frame-first-order", "4-frame-high-order")
FIRST, HIGH = "First-order Markov", "High-order Markov"


def compared(name, *folders):
    return compare(load_table(name), find_runs(folders)[0])


def cells(table, label, group=0):
    return {row.label: row.cells for row in table.groups[group].rows}[label]


def ours(table, label, group=0):
    """Our means as far as there are any in a row."""
    found = [cell.ours and round(cell.ours.mean, 9) for cell in cells(table, label, group)]
    while found and found[-1] is None:
        found.pop()
    return found


def text_of(name, *folders):
    runs, notes = find_runs(folders)
    return terminal_text(compare(load_table(name), runs), notes, 10_000)


def note_of(name, *folders):
    (note,) = (line for line in text_of(name, *folders).splitlines() if line.startswith("[1]"))
    return note


def test_ours_stand_in_the_paper_s_units_and_are_marked_by_their_good_end(write_run):
    # MSP of KEP's Table 1: accuracy 83.50±0.43, AURC 42.60±1.84 and NLL 11.13±0.40.
    found = {"test/accuracy": [0.90, 0.901, 0.899], "test/aurc": [0.090, 0.091, 0.089]}
    table = compared("kep:1", write_run("a", {"mle": found | {"test/nll": [1.11, 1.12, 1.10]}}))
    assert ours(table, "MSP") == [90, 90, None, None, None, 11.1]
    assert cells(table, "MSP")[0].ours.standard_error == pytest.approx(0.1 / 3**0.5)
    assert [cell.mark for cell in cells(table, "MSP")] == ["▲", "▼", "", "", "", "", ""]


def test_slips_and_what_rounding_explains_are_never_marked(write_run):
    far = {"test/rmse": [9.0, 9.1], "test/nll": [9.0, 9.1]}
    table = compared("B.10", write_run("a", {"kernel": far, "mcd": far}, data="zinc"))
    assert [cell.mark for cell in cells(table, "MLE")] == ["", "▼", ""]
    assert [cell.mark for cell in cells(table, "MCD")] == ["", "▼", "▼"]
    # The paper's single number of an ensemble, 0.8235, beside seeds that are all alike.
    for value, mark in ((0.82354, ""), (0.8236, "▲")):
        folder = write_run(f"{value}", {"kernel+ensemble": {"test/accuracy": [value, value]}})
        assert cells(compared("B.6", folder), "DE")[0].mark == mark


def test_augmentation_and_settings_decide_between_tables_and_rows(write_run):
    found = {"sgpa": {"test/accuracy": [0.7, 0.71]}, "kepsvgp": {"test/accuracy": [0.8, 0.8]}}
    plain = write_run("plain", found, kepsvgp__eta=1.0)
    augmented = write_run("augmented", found, recipe="sgpa-cifar10-aug", kepsvgp__merge="addition")
    for name, folders in (("B.6", [plain]), ("B.7", [augmented]), ("B.8", [])):
        assert [run.folder for run in compared(name, plain, augmented).runs] == folders
    table = compared("kep:9", plain, augmented)
    taken = [[row.label for row in group.rows if row.cells[0].ours] for group in table.groups]
    assert taken == [["eta = 1"], ["eta = 10"]]


def test_of_several_runs_the_paper_s_recipe_goes_first_and_then_the_newest(write_run):
    folders = {}
    for age, name in enumerate(("newer", "older", "recipe")):
        methods = ("sgpa",) if name == "recipe" else ("sgpa", "mle")
        started_from = "sgpa-cifar10" if name == "recipe" else "cifar10-small"
        found = {method: {"test/nll": [0.5]} for method in methods}
        folders[name] = write_run(name, found, started_from=started_from)
        os.utime(folders[name] / "report.json", (1e9 - age, 1e9 - age))
    table = compared("B.6", *folders.values())
    assert cells(table, "SGPA")[1].runs[0].folder == folders["recipe"]
    assert [run.folder.name for run in table.runs] == ["newer", "recipe"]


def test_a_star_is_the_mean_of_all_that_match_for_each_seed(write_run):
    found = {
        "ood/svhn/entropy/auroc": [0.5, 0.6],
        "ood/folder:/data/LSUN/entropy/auroc": [0.7, 0.9],
        "ood/svhn/energy/auroc": [0.1, None],
        "shift/noise-1/ece": [0.2, 0.2],
    }
    published = {"cifar-c/severity-1/ece": [0.3, 0.3]}
    run = read_run(write_run("a", {"sgpa": found, "mle": found | published}))
    # A mean over something undefined is undefined; published corruptions are preferred.
    expected = {
        "sgpa/ood/*/entropy/auroc": ("sgpa/ood/*/entropy/auroc", (0.6, 0.75)),
        "sgpa/ood/*lsun*/entropy/auroc": ("sgpa/ood/*lsun*/entropy/auroc", (0.7, 0.9)),
        "sgpa/ood/*/*/auroc": ("sgpa/ood/*/*/auroc", (pytest.approx(1.3 / 3), None)),
        "sgpa/{shift}/*-1/ece": ("sgpa/shift/*-1/ece", (0.2, 0.2)),
        "mle/{shift}/*-1/ece": ("mle/cifar-c/*-1/ece", (0.3, 0.3)),
        "sgpa/seconds-per-epoch": ("sgpa/seconds-per-epoch", (0.2, 0.2)),
        "kernel/ood/*/entropy/auroc": None,
        "sgpa/test/nll": None,
    }
    assert {metric: run.values(metric) for metric in expected} == expected


def test_an_ensemble_has_no_seconds_and_a_stream_those_of_all_tasks(write_run):
    folder = write_run("a", {"mle": {"test/nll": [0.5]}, "mle+ensemble": {"test/nll": [0.5]}})
    report = json.loads((folder / "report.json").read_text())
    report["methods"]["mle+ensemble"]["train_seconds"] = [120.0, 120.0]
    (folder / "report.json").write_text(json.dumps(report))
    assert read_run(folder).values("mle/seconds-per-epoch")
    assert read_run(folder).values("mle+ensemble/seconds-per-epoch") is None
    matrix = {"nlpd": [[0.0, None], [0.0, 0.0]], "rmse": [[0.1, None], [0.4, 0.2]]}
    first = {"seconds": [1.0, 2.0], "over_tasks": {"nlpd": [0.7, 0.9], "rmse": [0.1, 0.3]}}
    seeds = {
        "0": first | {"matrix": matrix},
        "1": first | {"matrix": matrix, "seconds": [3.0, 4.0]},
    }
    # Seeds are paired by their names, in the order of the settings.
    report["settings"]["seeds"], seeds = [0, 1], dict(reversed(seeds.items()))
    report |= {"experiment": "online", "methods": {"ovc": {"seeds": seeds}}}
    (folder / "report.json").write_text(json.dumps(report))
    found = {name: read_run(folder).values(f"ovc/{name}")[1] for name in ("nlpd", "forgetting")}
    assert found == {"nlpd": (0.9, 0.9), "forgetting": pytest.approx((0.3, 0.3))}
    assert read_run(folder).values("ovc/accumulated-seconds")[1] == (3.0, 7.0)


def test_ranks_are_over_the_tasks_that_were_run(write_run):
    def found(svhn, other):
        sets = {"svhn": svhn, "cifar100": other}
        ends = ("auroc", "aupr-out")
        return {f"ood/{name}/entropy/{end}": v for name, v in sets.items() for end in ends}

    ten = {
        "kernel": found([0.5, 0.7], [0.9, 0.9]),
        "sgpa": found([0.8, 0.8], [0.8, 0.8]),
        "mfvi": found([0.1, 0.1], [0.8, 0.8]),
        # Softmax attention is in Table B.28, and not in Table 3.2.
        "mle": found([0.99, 0.99], [0.99, 0.99]),
    }
    small = "ood/folder:/d/mini-ImageNet/entropy/auroc"
    hundred = {"kernel": {small: [0.4, 0.6]}, "sgpa": {small: [0.6, 0.6]}}
    folders = write_run("a", ten), write_run("b", hundred, recipe="sgpa-cifar100")
    table = compared("3.2", *folders)
    # Against SVHN 2, 1, 3; against CIFAR-100 1, 2.5, 2.5; CIFAR-100 against mini-ImageNet 2, 1.
    ranks = {"MLE": [round(5 / 3, 9), 1.5], "SGPA": [1.5, 1.75], "MFVI": [2.75, 2.75], "DE": []}
    assert {label: ours(table, label) for label in ranks} == ranks
    # Tables B.28 and B.30 rank MLE, SGPA and MFVI 1, 2, 3; 2, 1, 3; and MLE and SGPA 2, 1.
    same = [cells(table, label)[0].same for label in ("MLE", "SGPA", "MFVI")]
    assert same == pytest.approx((5 / 3, 4 / 3, 3.0))
    assert {run.folder for run in table.runs} == {*folders}
    assert "6.1667 (1.6667)" in text_of("3.2", *folders)


def test_ours_stand_below_the_paper_s_and_the_note_tells_how_the_run_departs(write_run):
    found = {"test/accuracy": [0.70, 0.71, 0.72], "shift/severity-1/accuracy": [0.5, 0.5, 0.5]}
    changes = {"training__epochs": 20, "cgpt__alpha": 0.3, "evaluation__corruptions": ["fog"]}
    options = {"started_from": "cifar10-small", "train": 4500, **changes}
    folder = write_run("mine", {"sgpa": found}, **options)
    lines = text_of("B.6", folder).splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("SGPA "))
    assert lines[place + 1].split() == ["ours:", "sgpa", "[1]", "0.7100±0.0058", "▼", *"———"]
    # CGPT's settings say nothing about SGPA.
    assert note_of("B.6", folder) == (
        f"[1] {folder}: cifar10, 3 seeds, recipe cifar10-small; train 4500 (45000); "
        "unlike the paper's recipe sgpa-cifar10 in training.epochs 20 (600)."
    )
    assert "made here, not the published files: fog, severities" in note_of("B.12", folder)
    same = write_run("same", {"sgpa": {"test/nll": [0.5]}})
    assert note_of("B.6", same).endswith("; as the paper's recipe sgpa-cifar10.")
    text = markdown_text(compared("B.6", folder), ["left out: x"], "table-B.6.png")
    assert {line.count("|") for line in text.splitlines() if line.startswith("|")} == {6}
    assert "| ours: sgpa [1] | **0.7100±0.0058** ▼ | — | — | — |" in text
    assert "- left out: x" in text


@pytest.fixture
def write_diffusion(write_generation, diffusion_result):
    """Write a run whose arms have these distances, and one more for the second seed."""

    def make(name, numbers, *, fd_name="FD(classifier)", recipe="table-5.3-cifar10", **options):
        pairs = [(arm, seed, fd + seed) for seed in (0, 1) for arm, fd in numbers.items()]
        results = [diffusion_result(*pair, fd_name=fd_name) for pair in pairs]
        options |= {"recipe": recipe, "seeds": [0, 1]}
        return write_generation(name, "generate-diffusion", results, **options)

    return make


def test_diffusion_models_stand_by_kind_and_length_and_images_in_both_rows(write_diffusion):
    numbers = dict(zip(ARMS, (13.0, 12.0, 17.0, 12.5), strict=True))
    numbers |= {"8-frame-high-order": 11.0, "4-frame-blur": 15.0, "4-frame-matched": 1.0}
    folder = write_diffusion("a", numbers, fd_name="FID")
    assert ours(compared("5.3", folder), FIRST) == [13.5, 17.5]
    assert ours(compared("5.3", folder), HIGH) == [13.5, 13.0, 11.5]
    assert ours(compared("5.4", folder), "CIFAR10") == [13.5, 12.5, 13.0]
    assert ours(compared("5.5", folder), "Gaussian blur") == [15.5]
    faces = write_diffusion("b", {ARMS[3]: 7.0}, recipe="table-5.3-celeba", size=64)
    assert ours(compared("5.3", faces), HIGH) == [*[None] * 4, 7.5]
    assert ours(compared("5.4", faces), "CelebA", 1) == [None, None, 7.5]


@pytest.mark.parametrize(
    ("fd_name", "size", "mark"), [("FID", 32, "▼"), ("FID", 16, ""), ("FD(classifier)", 32, "")]
)
def test_only_fid_of_images_of_the_thesis_size_is_marked(write_diffusion, fd_name, size, mark):
    folder = write_diffusion("a", {ARMS[3]: 60.0}, fd_name=fd_name, size=size)
    cell = cells(compared("5.3", folder), HIGH)[1]
    assert (cell.ours.mean, cell.mark) == (60.5, mark)
    # A cell names what it holds, unless that is what the paper's column holds.
    assert ("FD(classifier) 60.5" in text_of("5.3", folder)) == (fd_name != "FID")


def test_other_images_stand_in_unmarked_until_there_are_the_right_ones(write_diffusion):
    digits = write_diffusion("d", {ARMS[3]: 60.0}, recipe="digits-diffusion", fd_name="FID")
    cell = cells(compared("5.3", digits), HIGH)[1]
    assert (cell.ours.mean, cell.mark) == (60.5, "")
    # The other run has no such number, and the digits fill no gap of it.
    table = compared("5.3", digits, write_diffusion("c", {ARMS[2]: 17.0}))
    assert (ours(table, HIGH), ours(table, FIRST)) == ([], [None, 17.5])
    note = note_of("5.3", digits)
    for part in ("channels 1 (3), image_size 16 (32)", "sampler ancestral, sampling_steps 1000"):
        assert part in note
    # Which arms and seeds were run says nothing about the setting.
    assert "the paper's recipe table-5.3-cifar10 in data digits (cifar10), unet.base" in note
    assert "arms" not in note


def test_scores_of_both_encoders_are_never_marked(write_generation, hvae_result):
    pairs = [(arm, seed, 2.0 + seed) for seed in (0, 1) for arm in ("heat", "learned")]
    made = ("generate-hvae", [hvae_result(*pair) for pair in pairs])
    table = compared("5.1", write_generation("h", *made, recipe="table-5.1", size=28))
    assert [(cell.ours.mean, cell.mark) for cell in table.cells] == [(2.5, "")] * 2
    grey = write_generation("g", *made, recipe="table-5.1", binarize=False)
    assert compared("5.1", grey).runs == ()


def test_tokenizers_stand_by_stem_without_their_controls(write_generation):
    def result(arm, stem, psnr, samples=None):
        made = {"psnr": psnr, "fd": 40 - psnr, "fd_name": "FID"}
        found = {"arm": arm, "stem": stem, "seed": 0, "reconstruction": made}
        return found | ({"generation": {"masked": {"fd": samples}}} if samples else {})

    results = [
        result("1-frame", "plain", 21.0, samples=50.0),
        result("8-frame", "plain", 22.0),
        result("8-frame-repeat", "plain", 30.0, samples=1.0),
        result("1-frame-patch2", "plain", 31.0, samples=1.0),
        result("1-frame", "layernorm", 16.0),
    ]
    table = compared("5.2", write_generation("t", "generate", results, recipe="cifar10-8-frame"))
    assert ours(table, "Reconstruction (FID)") == [19.0, 18.0]
    assert ours(table, "Latent Masked Generation (FID)") == [50.0]
    assert ours(table, "AR Generation (FID)") == []
    assert ours(table, "Reconstruction (PSNR)", 1) == [21.0, 22.0]
    assert ours(table, "Reconstruction (FID)", 2) == [24.0]
    # Of another corruption they are no run of the table.
    other = {"recipe": "cifar10-8-frame", "videos": {"corruption": "noise"}}
    assert compared("5.2", write_generation("o", "generate", results, **other)).runs == ()


@pytest.mark.slow
def test_a_table_is_listed_printed_written_and_drawn(
    write_run, write_diffusion, tmp_path, monkeypatch, capsys
):
    def run(*arguments):
        status = main(["report", *map(str, arguments)])
        return status, " ".join("".join(capsys.readouterr()).split())

    monkeypatch.setenv("COLUMNS", "10000")
    monkeypatch.chdir(tmp_path)
    assert all(name in run("--list")[1] for name in table_names())
    assert "No run folder holds a number of this table" in run("--table", "B.4")[1]
    mine = write_run("mine", {"kepsvgp": {"test/accuracy": [0.85, 0.86]}})
    assert "85.50±0.50" in run("--table", "kep-1")[1]
    markdown = tmp_path / "paper-tables" / "table-kep-1.md"
    assert "**85.50±0.50**" in markdown.read_text()
    with Image.open(markdown.with_suffix(".png")) as image:
        assert min(image.size) > 500
    # Named folders are read instead of `runs`; those of other experiments are left out.
    other = write_diffusion("d", {ARMS[3]: 12.0})
    status, shown = run("--table", "5.3", mine, other, "--output-dir", "out")
    assert (status, "12.50±0.50" in shown) == (0, True)
    assert "mine is of the experiment 'classify', and table 5.3 takes runs of `probseq gen" in shown
    assert (tmp_path / "out" / "table-5.3.png").is_file()
    assert (
        "out must hold a finished run (report.json), and holds none"
        in run(*("--table", "B.6", "out"))[1]
    )
    (tmp_path / "out" / "config.json").write_text("{}")
    status, shown = run("--table", "B.6", "out")
    assert (status, "and holds one that is not finished" in shown) == (1, True)


DAMAGED = {
    "{": "cannot be read as JSON",
    "[]": "not a report of this version",
    '{"experiment": "classify"}': "not a report of this version: KeyError",
    '{"experiment": "other"}': "of the experiment 'other'",
}


@pytest.mark.parametrize(("text", "reason"), DAMAGED.items())
def test_a_damaged_or_foreign_report_is_left_out_with_a_note(write_run, text, reason):
    good, bad = (write_run(name, {"mle": {"test/nll": [1.0]}}) for name in ("good", "bad"))
    (bad / "report.json").write_text(text)
    runs, (note,) = find_runs([good.parent, good])
    assert [run.folder.name for run in runs] == ["good"]
    assert "bad" in note
    assert reason in note


def test_tables_keep_to_their_width_and_texts_to_their_picture():
    for name in table_names():
        assert max(map(len, terminal_text(load_table(name), [], 100).splitlines())) <= 100
    figure = draw(load_table("cgpt:III"), [])
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.texts if text.get_text()]
    assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)
    assert all(above.y0 >= below.y1 for above, below in pairwise(boxes))
