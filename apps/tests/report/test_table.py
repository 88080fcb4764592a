from probseq_apps.report.summary import summarise
from probseq_apps.report.table import markdown_table, terminal_table


def summaries(methods):
    return {
        name: {
            "test/accuracy": summarise([0.9 + 0.01 * place, 0.91 + 0.01 * place]),
            "test/nll": summarise([0.3 - 0.1 * place, 0.301 - 0.1 * place]),
            "test/failure-auroc": summarise([None, 0.9]),
            "shift/contrast/5/ece": summarise([0.2, 0.3]),
            "shift/severity-5/accuracy": summarise([0.2, 0.3]),
            "shift/severity-5/nll": summarise([0.2, 0.3]),
            "shift/severity-5/ece": summarise([0.2, 0.3]),
            "ood/svhn/entropy/auroc": summarise([0.7]),
        }
        for place, name in enumerate(methods)
    }


def test_the_table_shows_means_errors_directions_and_marks():
    text = terminal_table(summaries(["mle", "sgpa"]), {"mle": 2, "sgpa": 2})
    lines = {}
    for line in text.splitlines():
        if line.startswith("  "):
            lines.setdefault(line.split("  ")[1], line)
    assert "0.9050±0.0050" in lines["accuracy ↑"]
    assert "*" not in lines["accuracy ↑"]
    assert lines["NLL ↓"].split() == ["NLL", "↓", "0.3005±0.0005", "0.2005±0.0005", "*"]
    assert lines["failure AUROC ↑"].split()[-2:] == ["—", "—"]
    assert "corrupted, severity 5" in text
    assert "contrast" not in text
    assert "AUROC, entropy ↑" in lines


def test_a_folder_as_unknown_data_keeps_its_path():
    found = {"mle": {"ood/folder:/my/images/energy/auroc": summarise([0.7])}}
    assert "test set against folder:/my/images" in terminal_table(found, {"mle": 1})


def test_many_methods_stand_below_each_other_within_the_width():
    names = [f"method-{number}" for number in range(7)]
    text = terminal_table(summaries(names), dict.fromkeys(names, 2), width=60)
    blocks = text.split("\n\n")
    for block in blocks:
        head, rule, *rows = block.splitlines()
        assert [row.split()[0] for row in rows] == names
        assert len(rule) <= 60
        assert len({row.rindex("±") for row in rows if "±" in row}) <= 1 or "accuracy" in head
    assert sum("accuracy" in block.splitlines()[0] for block in blocks) == 2
    # Under shift the mean over the severities stands for all of them.
    assert "corrupted, all severities" in text
    assert "severity 5" not in text


def test_the_columns_of_a_few_methods_are_aligned():
    names = ["mle", "kernel+ensemble", "sgpa"]
    text = terminal_table(summaries(names), dict.fromkeys(names, 2))
    rows = [line for line in text.splitlines() if "±" in line]
    assert len({line.index("±") for line in rows}) == 1
    assert "corrupted, severity 5" in text


def test_the_mean_over_severities_is_taken_for_each_seed():
    found = {
        f"shift/severity-{severity}/{metric}": summarise([value, value + 0.2])
        for severity, value in ((1, 0.1), (3, 0.5))
        for metric in ("accuracy", "nll", "ece")
    }
    names = [f"m{number}" for number in range(6)]
    text = terminal_table(dict.fromkeys(names, found), dict.fromkeys(names, 2))
    # 0.3 and 0.5 for the two seeds.
    assert text.splitlines()[2].split() == ["m0", "2", *["0.4000±0.1000"] * 3]


def test_markdown_has_one_column_a_method_and_the_same_numbers():
    rows = markdown_table(summaries(["mle", "sgpa"]), {"mle": 2, "sgpa": 2}).splitlines()
    assert rows[0] == "|  | mle (n=2) | sgpa (n=2) |"
    assert {row.count("|") for row in rows} == {4}
    assert "| NLL ↓ | 0.3005±0.0005 | **0.2005±0.0005** * |" in rows


def test_markdown_of_many_methods_has_a_table_for_each_section():
    names = [f"method-{number}" for number in range(7)]
    tables = markdown_table(summaries(names), dict.fromkeys(names, 2)).split("\n\n")
    assert [table.split("|")[1].strip() for table in tables] == [
        "test",
        "corrupted, all severities",
        "test set against svhn",
    ]
    assert "| method-3 (n=2) | " in tables[0]
