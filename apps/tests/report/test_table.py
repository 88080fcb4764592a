from probseq_apps.report.summary import summarise
from probseq_apps.report.table import markdown_table, terminal_table


def summaries(methods):
    return {
        name: {
            "test/accuracy": summarise([0.9 + 0.01 * place, 0.91 + 0.01 * place]),
            "test/nll": summarise([0.3 - 0.1 * place, 0.301 - 0.1 * place]),
            "test/failure-auroc": summarise([None, 0.9]),
            "shift/contrast/5/ece": summarise([0.2, 0.3]),
            "shift/severity-5/ece": summarise([0.2, 0.3]),
            "ood/svhn/entropy/auroc": summarise([0.7]),
        }
        for place, name in enumerate(methods)
    }


def test_the_table_shows_means_errors_directions_and_marks():
    text = terminal_table(summaries(["mle", "sgpa"]), {"mle": 2, "sgpa": 2})
    lines = {line.split("  ")[1]: line for line in text.splitlines() if line.startswith("  ")}
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


def test_columns_are_aligned_and_long_lists_of_methods_wrap():
    names = [f"method-{number}" for number in range(7)]
    text = terminal_table(summaries(names), dict.fromkeys(names, 2))
    blocks = text.split("\n\n")
    assert len(blocks) == 2
    assert all(name in text for name in names)
    rows = [line for line in blocks[0].splitlines() if "±" in line]
    assert len({line.index("±") for line in rows}) == 1


def test_markdown_has_one_column_a_method_and_the_same_numbers():
    rows = markdown_table(summaries(["mle", "sgpa"]), {"mle": 2, "sgpa": 2}).splitlines()
    assert rows[0] == "|  | mle (n=2) | sgpa (n=2) |"
    assert {row.count("|") for row in rows} == {4}
    assert "| NLL ↓ | 0.3005±0.0005 | **0.2005±0.0005** * |" in rows
