from probseq_apps.report.compare import compare
from probseq_apps.report.measured import find_runs
from probseq_apps.report.paper_report import footnotes, markdown_text, terminal_text
from probseq_apps.report.papers import load_table, table_names


def text_of(name, *folders, width=200):
    runs, notes = find_runs(folders)
    return terminal_text(compare(load_table(name), runs), notes, width)


def sgpa(write_run, **changes):
    found = {"test/accuracy": [0.70, 0.71, 0.72], "test/nll": [0.697, 0.70, 0.70]}
    return write_run("mine", {"sgpa": found}, **changes)


def test_ours_stand_below_the_paper_s_with_marks_and_dashes(write_run):
    lines = text_of("B.6", sgpa(write_run)).splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("SGPA "))
    assert lines[place].split()[1:3] == ["0.7787±0.0024", "0.6968±0.0032"]
    ours = lines[place + 1].split()
    assert ours == ["ours:", "sgpa", "[1]", "0.7100±0.0058", "▼", "0.6990±0.0010", "—", "—"]
    assert lines[place].index("±") == lines[place + 1].index("±")


def test_the_note_on_a_run_says_where_it_departs_from_the_paper(write_run):
    folder = sgpa(
        write_run,
        started_from="cifar10-small",
        facts={"train": 4500},
        training__epochs=20,
        model__depth=3,
        cgpt__alpha=0.3,
        evaluation__num_samples=5,
    )
    (note,) = [n for n in text_of("B.6", folder, width=10_000).splitlines() if n.startswith("[1]")]
    assert str(folder) in note
    assert "cifar10, 3 seeds, epochs 20, recipe cifar10-small" in note
    assert "4,500 train examples (paper: 45,000)" in note
    assert "test examples" not in note
    for part in ("training.epochs 20 (600)", "depth 3 (5)", "num_samples 5 (10)"):
        assert part in note
    # CGPT's settings say nothing about SGPA.
    assert "alpha" not in note


def test_a_run_of_the_recipe_is_said_to_be_one(write_run):
    folder = sgpa(write_run, seeds=[0, 1, 2])
    assert "; as the paper's recipe sgpa-cifar10." in text_of("B.6", folder, width=10_000)


def test_made_corruptions_and_unknown_sets_are_named(write_run):
    found = {"shift/severity-1/accuracy": [0.5], "ood/svhn/entropy/auroc": [0.5]}
    changes = {
        "evaluation__corruptions": ["fog", "contrast"],
        "evaluation__severities": [1],
        "evaluation__ood": ["svhn"],
    }
    folder = write_run("a", {"sgpa": found}, **changes)
    shift = text_of("B.12", folder, width=10_000)
    assert "not the published files: fog, contrast, at severities 1" in shift
    assert "unknown sets: svhn" in text_of("B.28", folder, width=10_000)


def test_wide_tables_go_on_below_within_the_width(write_run):
    for name in table_names():
        comparison = compare(load_table(name), [])
        assert max(map(len, terminal_text(comparison, [], 100).splitlines())) <= 100


def test_markdown_is_one_table_a_group_with_bold_numbers_of_ours(write_run):
    runs, _ = find_runs([sgpa(write_run)])
    text = markdown_text(compare(load_table("B.6"), runs), ["left out: x"], "table-B.6.png")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows} == {6}
    assert "| ours: sgpa [1] | **0.7100±0.0058** ▼ | **0.6990±0.0010** | — | — |" in rows
    assert "- left out: x" in text
    assert "![Table B.6](table-B.6.png)" in text
    groups = markdown_text(compare(load_table("kep:1"), []), [], "p.png").split("\n| --- |")
    assert len(groups) == 1 + 4


def test_slips_and_missing_runs_are_explained():
    notes = footnotes(compare(load_table("B.10"), []), [])
    assert any(note.startswith("†") for note in notes)
    assert any("it takes runs on zinc" in note for note in notes)
    plain = footnotes(compare(load_table("B.7"), []), [])
    assert not any(note.startswith("†") for note in plain)
    assert any("cifar10 with augmentation" in note for note in plain)


def test_ranks_among_fewer_methods_show_the_paper_s_among_the_same(write_run):
    found = {"ood/svhn/entropy/auroc": [0.5, 0.7]}
    other = {"ood/svhn/entropy/auroc": [0.8, 0.8]}
    text = text_of("3.2", write_run("a", {"kernel": found, "sgpa": other}), width=10_000)
    assert "6.1667 (1.0000)" in text
    assert "Tasks: cifar10 without augmentation against SVHN: 2 methods." in text
