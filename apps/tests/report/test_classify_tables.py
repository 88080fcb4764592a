from probseq_apps.report.classify import (
    details,
    mean_over_severities,
    metric_tables,
    ood_tables,
    shift_tables,
)
from probseq_apps.report.summary import summarise
from probseq_apps.report.tables import Measure, summary_table


def terminal_table(found, counts, width=120):
    return "\n\n".join(table.text(width) for table in metric_tables(found, counts))


def markdown_table(found, counts):
    return "\n\n".join(table.markdown() for table in metric_tables(found, counts))


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
    assert "| method-3 | 2 | " in tables[0]


METRICS = ("accuracy", "nll", "ece", "mce")


def shifted(values, kind="shift"):
    """Values by group and severity, the same for every metric."""
    return {
        f"{kind}/{group}-{severity}/{metric}": summarise(list(found))
        for (group, severity), found in values.items()
        for metric in METRICS
    }


def test_a_table_marks_the_best_of_each_column_alone():
    good, bad = summarise([0.90, 0.91, 0.92]), summarise([0.10, 0.11, 0.12])
    measures = [Measure("up", "higher"), Measure("down", "lower")]
    table = summary_table("g", measures, {"a": (good, good), "b": (bad, bad)}, {"a": 3, "b": 3})
    lines = table.text(100).splitlines()
    assert lines[0].split() == ["g", "n", "up", "↑", "down", "↓"]
    assert lines[2].split() == ["a", "3", "0.9100±0.0058", "*", "0.9100±0.0058"]
    assert lines[3].split() == ["b", "3", "0.1100±0.0058", "0.1100±0.0058", "*"]
    rows = table.markdown().splitlines()
    assert rows[2] == "| a | 3 | **0.9100±0.0058** * | 0.9100±0.0058 |"


def test_shift_has_a_table_by_severity_and_one_by_group_for_each_metric():
    values = {("severity", 1): [0.4], ("severity", 5): [0.2], ("noise", 1): [0.5]}
    values |= {("noise", 5): [0.3], ("blur", 1): [0.3], ("blur", 5): [0.1]}
    grids = shift_tables({"sgpa": shifted(values)}, {"sgpa": 1})
    assert len(grids) == 2 * len(METRICS)
    severity, group = grids[:2]
    assert severity.heads == ["corrupted: accuracy", "n", "severity 1 ↑", "severity 5 ↑"]
    assert severity.rows == [["sgpa", "1", "0.4000", "0.2000"]]
    assert group.heads[2:] == ["noise ↑", "blur ↑", "all ↑"]
    assert group.rows[0][2:] == ["0.4000", "0.2000", "0.3000"]


def test_a_single_group_has_no_table_of_its_own():
    values = {("severity", 1): [0.4], ("digital", 1): [0.4]}
    tables = shift_tables({"a": shifted(values)}, {"a": 1})
    assert [table.heads[2][:-2] for table in tables] == ["severity 1"] * 4
    assert shift_tables({"a": {"test/nll": summarise([1.0])}}, {"a": 1}) == []


def test_published_and_made_corruptions_are_not_mixed():
    found = shifted({("severity", 1): [0.4]}) | shifted({("severity", 1): [0.8]}, kind="cifar-c")
    assert mean_over_severities(found, "cifar-c", "severity", "nll").mean == 0.8
    assert len(shift_tables({"a": found}, {"a": 1})) == 8


def detected(values):
    return {
        f"ood/{outside}/{detector}/{metric}": summarise(list(found))
        for (outside, detector), found in values.items()
        for metric in ("auroc", "aupr-in", "aupr-out", "fpr95")
    }


def test_each_set_and_detector_has_its_table_and_the_sets_their_mean():
    sets = {("svhn", "entropy"): [0.6, 0.8], ("folder:/a/b", "entropy"): [0.4, 0.4]}
    grids = ood_tables({"sgpa": detected(sets)}, {"sgpa": 2})
    assert [grid.heads[0] for grid in grids] == [
        "against svhn, entropy",
        "against folder:/a/b, entropy",
        "mean over 2 sets, entropy",
    ]
    assert grids[0].heads[2:] == ["AUROC ↑", "AUPR-in ↑", "AUPR-out ↑", "FPR95 ↓"]
    # The seeds' means are 0.5 and 0.6.
    assert grids[2].rows[0][2] == "0.5500±0.0500"


def test_ranks_are_over_the_sets_for_each_detector():
    first = {("svhn", "entropy"): [0.9], ("dtd", "entropy"): [0.9]}
    second = {("svhn", "entropy"): [0.8], ("dtd", "entropy"): [0.9]}
    third = {("svhn", "entropy"): [0.1], ("dtd", "entropy"): [0.95]}
    methods = {"a": detected(first), "b": detected(second), "c": detected(third)}
    ranks = ood_tables(methods, dict.fromkeys(methods, 1))[-1]
    assert ranks.heads[0] == "average rank over 2 sets"
    assert ranks.heads[2:] == ["entropy AUROC ↓", "entropy AUPR-out ↓"]
    # 1, 2, 3 and 2.5, 2.5, 1.
    assert [row[2] for row in ranks.rows] == ["1.7500", "2.2500", "2.0000"]


def test_one_set_has_neither_means_nor_ranks():
    found = detected({("svhn", "entropy"): [0.9], ("svhn", "energy"): [0.9]})
    assert len(ood_tables({"a": found, "b": found}, {"a": 1, "b": 1})) == 2
    assert ood_tables({"a": {"test/nll": summarise([1.0])}}, {"a": 1}) == []


OWN = {
    "test/nll": [0.5],
    "out-of-domain/nll": [0.6],
    **{f"shift/severity-1/{name}": [0.1] for name in ("accuracy", "nll", "ece", "mce")},
    **{f"ood/svhn/energy/{name}": [0.9] for name in ("auroc", "aupr-in", "aupr-out", "fpr95")},
}
SUMMARIES = {"sgpa": {name: summarise(values) for name, values in OWN.items()}}


def test_details_have_every_table_under_shift_and_of_detection():
    text = details(SUMMARIES, {"sgpa": 1})
    assert "## Distribution shift" in text
    assert "| corrupted: NLL | n | severity 1 ↓ |" in text
    assert "| against svhn, energy | n | AUROC ↑ | AUPR-in ↑ | AUPR-out ↑ | FPR95 ↓ |" in text
    assert text.count("\n| sgpa | 1 |") == 5


def test_without_shift_and_other_data_there_is_nothing_to_tell():
    assert details({"sgpa": {"test/nll": summarise([0.5])}}, {"sgpa": 1}) == ""
