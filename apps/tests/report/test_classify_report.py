"""Tables and pictures of classifiers, over the seeds."""

import re

import pytest
import torch

from probseq.metrics import Predictions, evaluate_sets
from probseq.summary import summarise
from probseq_apps.data.names import CORRUPTION_GROUPS
from probseq_apps.report.classify import (
    classify_figures,
    details,
    metric_tables,
    ood_tables,
    shift_tables,
)

METRICS = ("accuracy", "nll", "ece", "mce")


def summaries(values):
    return {name: summarise(list(found)) for name, found in values.items()}


def methods(*names):
    return {
        name: summaries(
            {
                "test/accuracy": [0.9 + 0.01 * place, 0.91 + 0.01 * place],
                "test/nll": [0.3 - 0.1 * place, 0.301 - 0.1 * place],
                "test/failure-auroc": [None, 0.9],
                "shift/contrast/5/ece": [0.2, 0.3],
                "shift/severity-1/nll": [0.1, 0.3],
                "shift/severity-5/nll": [0.5, 0.7],
                "ood/folder:/my/svhn/entropy/auroc": [0.7, 0.7],
            }
        )
        for place, name in enumerate(names)
    }


def shifted(values, kind="shift"):
    """Values by group and severity, the same for every metric."""
    return summaries(
        {f"{kind}/{key}/{metric}": v for key, v in values.items() for metric in METRICS}
    )


def detected(values):
    names = ("auroc", "aupr-in", "aupr-out", "fpr95")
    return summaries({f"ood/{key}/{name}": v for key, v in values.items() for name in names})


def test_few_methods_have_a_column_each_with_means_errors_and_marks():
    (table,) = metric_tables(methods("mle", "sgpa"))
    lines = table.markdown().splitlines()
    assert lines[0] == "|  | mle (n=2) | sgpa (n=2) |"
    assert lines[2:] == [
        "| **test** |  |  |",
        "| accuracy ↑ | 0.9050±0.0050 | 0.9150±0.0050 |",
        "| NLL ↓ | 0.3005±0.0005 | **0.2005±0.0005** * |",
        "| failure AUROC ↑ | — | — |",
        "| **corrupted, severity 1** |  |  |",
        "| NLL ↓ | 0.2000±0.1000 | 0.2000±0.1000 |",
        "| **corrupted, severity 5** |  |  |",
        "| NLL ↓ | 0.6000±0.1000 | 0.6000±0.1000 |",
        "| **test set against folder:/my/svhn** |  |  |",
        "| AUROC, entropy ↑ | 0.7000±0.0000 | 0.7000±0.0000 |",
    ]
    rows = [line for line in table.screen(100).splitlines() if re.match(" .*±", line)]
    assert len({line.index("±") for line in rows}) == 1


def test_many_methods_have_a_table_for_each_section_and_means_over_the_severities():
    test, shift, against = metric_tables(methods(*(f"m{place}" for place in range(6))))
    assert [table.heads[0] for table in (test, shift, against)] == [
        *("test", "corrupted, all severities", "test set against folder:/my/svhn"),
    ]
    # 0.3 and 0.5 for the two seeds.
    assert shift.rows[3] == ["m3", "2", "0.4000±0.1000"]


def test_shift_has_a_table_by_severity_and_one_by_group_for_each_metric():
    values = {"severity-1": [0.4], "severity-5": [0.2], "noise-1": [0.5], "noise-5": [0.3]}
    tables = shift_tables({"sgpa": shifted(values | {"blur-1": [0.3], "blur-5": [0.1]})})
    assert len(tables) == 2 * len(METRICS)
    severity, group = tables[:2]
    assert severity.heads == ["corrupted: accuracy", "n", "severity 1 ↑", "severity 5 ↑"]
    assert severity.rows == [["sgpa", "1", "0.4000", "0.2000"]]
    assert group.heads[2:] == ["noise ↑", "blur ↑", "all ↑"]
    assert group.rows[0][2:] == ["0.4000", "0.2000", "0.3000"]
    # A single group is what all are; published corruptions have tables of their own.
    assert len(shift_tables({"sgpa": shifted(values)})) == len(METRICS)
    both = {"a": shifted({"severity-1": [0.4]}) | shifted({"severity-1": [0.8]}, kind="cifar-c")}
    assert [table.rows[0][2] for table in shift_tables(both)] == ["0.4000"] * 4 + ["0.8000"] * 4


def test_each_set_and_detector_has_its_table_and_the_sets_their_mean_and_ranks():
    found = {"a": ([0.6, 0.8], 0.4), "b": ([0.5, 0.5], 0.4), "c": ([0.1, 0.1], 0.95)}
    *tables, ranks = ood_tables(
        {
            name: detected({"svhn/entropy": svhn, "folder:/a/b/entropy": [folder] * 2})
            for name, (svhn, folder) in found.items()
        }
    )
    assert [table.heads[0] for table in tables] == [
        f"{title}, entropy" for title in ("against svhn", "against folder:/a/b", "mean over 2 sets")
    ]
    assert tables[0].heads[2:] == ["AUROC ↑", "AUPR-in ↑", "AUPR-out ↑", "FPR95 ↓"]
    # The seeds' means are 0.5 and 0.6.
    assert tables[2].rows[0][2].startswith("0.5500±0.0500")
    assert ranks.heads == [
        *("average rank over 2 sets", "n", "entropy AUROC ↓", "entropy AUPR-out ↓"),
    ]
    # 1, 2, 3 and 2.5, 2.5, 1.
    assert [row[1:3] for row in ranks.rows] == [["2", "1.7500"], ["2", "2.2500"], ["2", "2.0000"]]
    one = detected({"svhn/entropy": [0.9], "svhn/energy": [0.9]})
    assert len(ood_tables({"a": one, "b": one})) == 2


def test_details_have_every_table_under_shift_and_of_detection():
    found = shifted({"severity-1": [0.1]}) | detected({"svhn/energy": [0.9]})
    text = details({"sgpa": {"test/nll": summarise([0.5]), **found}})
    assert "| corrupted: NLL | n | severity 1 ↓ |" in text
    assert "| against svhn, energy | n | AUROC ↑ | AUPR-in ↑ | AUPR-out ↑ | FPR95 ↓ |" in text
    assert text.count("\n| sgpa | 1 |") == 5
    assert details({"sgpa": {"test/nll": summarise([0.5])}}) == ""


def predictions(seed, sharpness):
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(60, 4, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    return Predictions(logits.log_softmax(-1), -logits.logsumexp(-1), labels)


@pytest.mark.parametrize(
    ("count", "shift"), [(7, ["shift"]), (9, ["shift-accuracy", "shift-nll", "shift-ece"])]
)
def test_more_methods_than_colours_get_a_figure_for_each_metric_under_shift(count, shift):
    sets = ("test", "shift/fog/1", "shift/fog/5", "ood/folder:/a b")
    rows = {
        f"method-{place}": [
            {name: predictions(10 * seed + i, 1 + 0.2 * place) for i, name in enumerate(sets)}
            for seed in range(2)
        ]
        for place in range(count)
    }
    values = {
        name: [evaluate_sets(entry, CORRUPTION_GROUPS) for entry in row]
        for name, row in rows.items()
    }
    found = {n: {k: summarise([v[k] for v in own]) for k in own[0]} for n, own in values.items()}
    figures = classify_figures(rows, found)
    assert list(figures) == ["reliability", "risk-coverage", "ood-folder-a-b", *shift]
    accuracy = figures[shift[0]].axes[0]
    assert list(accuracy.containers[0].lines[0].get_xdata()) == [0, 1, 5]
    known = [found["method-0"][f"{name}/accuracy"].mean for name in ("test", "shift/severity-5")]
    assert list(accuracy.containers[0].lines[0].get_ydata()[[0, 2]]) == pytest.approx(known)
