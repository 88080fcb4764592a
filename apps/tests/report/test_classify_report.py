"""Tables of classifiers, over the seeds."""

from probseq.summary import summarise
from probseq_apps.report.classify import (
    beside_chance,
    details,
    differences,
    headline_columns,
    metric_tables,
    nothing_learned,
    ood_tables,
    shift_tables,
    trust_text,
)
from probseq_apps.report.headline import conclusion, headline_table

METRICS = ("accuracy", "nll", "ece", "mce")
DETECTION = ("auroc", "aupr-in", "aupr-out", "fpr95")


def methods(*names):
    return {
        name: {
            "test/accuracy": summarise([0.9 + 0.01 * place, 0.91 + 0.01 * place]),
            "test/nll": summarise([0.3 - 0.1 * place, 0.301 - 0.1 * place]),
            "test/failure-auroc": summarise([None, 0.9]),
            "shift/contrast/5/ece": summarise([0.2, 0.3]),
            "shift/severity-1/nll": summarise([0.1, 0.3]),
            "shift/severity-5/nll": summarise([0.5, 0.7]),
            "ood/folder:/my/svhn/entropy/auroc": summarise([0.7, 0.7]),
        }
        for place, name in enumerate(names)
    }


def measured(values, metrics=METRICS):
    """The same values of every metric, by what stands before its name."""
    return {f"{key}/{metric}": summarise(v) for key, v in values.items() for metric in metrics}


def test_a_test_set_has_a_table_with_means_errors_and_marks_and_what_attention_adds():
    added = {f"without-attention/{m}": summarise([0.1, 0.3]) for m in METRICS}
    found = {name: {**own, **added} for name, own in methods("mle", "sgpa").items()}
    found["sgpa"]["test/penalty"] = found["mle"]["test/penalty"] = summarise([2.0, 4.0])
    test, without = metric_tables(found)
    assert test.heads[2:] == ["accuracy ↑", "NLL ↓", "failure AUROC ↑", "penalty, nats"]
    assert test.markdown().splitlines()[2:] == [
        "| mle | 2 | 0.9050±0.0050 | 0.3005±0.0005 | — | 3.0000±1.0000 |",
        "| sgpa | 2 | **0.9150±0.0050** * | **0.2005±0.0005** * | — | 3.0000±1.0000 |",
    ]
    assert without.heads == ["test, attention taken out", "n", "accuracy ↑", "NLL ↓"]
    assert without.rows[0][2:] == ["0.2000±0.1000", "0.2000±0.1000"]


def test_shift_has_a_table_by_severity_and_by_group_for_each_metric():
    values = {"shift/severity-1": [0.4], "shift/severity-5": [0.2]}
    values |= {f"shift/{name}/{k}": [k / 10] for name in ("fog", "snow") for k in (1, 5)}
    values |= {"shift/speckle_noise/5": [0.7], "shift/frame_noise/5": [0.9]}
    tables = shift_tables({"sgpa": measured(values)})
    assert len(tables) == len(METRICS)
    heads = ["severity 1 ↑", "severity 5 ↑", "noise ↑", "weather ↑", "all ↑"]
    assert tables[0].heads[2:] == heads
    assert tables[0].rows == [["sgpa", "1", "0.4000", "0.2000", "0.7000", "0.3000", "0.3000"]]
    # Published corruptions have tables of their own.
    both = {"sgpa": measured({"shift/severity-1": [0.4], "cifar-c/severity-1": [0.8]})}
    assert [table.rows[0][2] for table in shift_tables(both)] == ["0.4000"] * 4 + ["0.8000"] * 4


def test_each_set_and_detector_has_its_table_and_the_sets_their_mean():
    found = {"a": ([0.6, 0.8], 0.4), "b": ([0.5, 0.5], 0.4), "c": ([0.1, 0.1], 0.95)}
    sets = {
        name: {"ood/svhn/entropy": svhn, "ood/folder:/a/b/entropy": [own] * 2}
        for name, (svhn, own) in found.items()
    }
    tables = ood_tables({name: measured(own, DETECTION) for name, own in sets.items()})
    assert [table.heads[0] for table in tables[::4]] == [
        f"{title}: AUROC" for title in ("against svhn", "against folder:/a/b", "mean over 2 sets")
    ]
    # The seeds' means are 0.5 and 0.6.
    assert tables[8].rows[0][2].startswith("0.5500±0.0500")
    one = measured({"ood/svhn/entropy": [0.9], "ood/svhn/energy": [0.8]}, DETECTION)
    auroc, *_, fpr = ood_tables({"a": one, "b": one})
    assert auroc.heads[2:] == ["entropy ↑", "energy ↑"]
    assert (auroc.rows[1], fpr.heads[2]) == (["b", "1", "0.9000", "0.8000"], "entropy ↓")


def test_details_have_every_table_under_shift_and_of_detection():
    plain = {"test/nll": summarise([0.5])}
    found = measured({"shift/severity-1": [0.1]}) | measured({"ood/svhn/energy": [0.9]}, DETECTION)
    assert details({"sgpa": plain | found}).count("\n| sgpa | 1 |") == 8
    assert details({"sgpa": plain}) == ""


def compared(**values):
    """What decides of methods by their accuracies; the NLL is one less the accuracy."""
    methods = {
        name.replace("_", " "): {
            "test/accuracy": summarise(accuracies),
            "test/nll": summarise([1 - accuracy for accuracy in accuracies]),
            "shift/severity-1/nll": summarise([0.5] * len(accuracies)),
            "shift/severity-5/nll": summarise([0.7] * len(accuracies)),
        }
        for name, accuracies in values.items()
    }
    return headline_columns(methods)


def test_what_decides_stands_in_a_row_a_method_with_its_difference_from_the_best():
    table = headline_table(compared(SGPA=[0.8, 0.9, 0.7], softmax=[0.9, 0.7, 0.75]))
    heads = ["n", "accuracy ↑", "NLL ↓", "shifted NLL ↓", "Δ accuracy"]
    assert table.heads[1:] == heads
    cells = ["3", "0.800±0.058", "0.200±0.058", "0.600±0.000", "—"]
    assert table.rows[0] == ["SGPA", *cells]
    # Differences .1, -.2, .05: -.0167 ± 4.303 · .1607 / √3.
    assert table.rows[1][-1] == "-0.017 ± 0.399"


def test_rows_stand_with_paired_differences_from_one_and_scores_from_its_chosen():
    def row(accuracies, chosen, energy):
        scores = {"chosen": chosen, "energy": energy}
        values = {"test/accuracy": summarise(accuracies)}
        return values | {f"ood/x/{k}/auroc": summarise(v) for k, v in scores.items()}

    a = row([0.9, 0.8, 0.7], [0.9, 0.8, 0.7], [0.6, 0.5, 0.4])
    b = row([0.9, 0.9, 0.7], [0.8, 0.7, 0.6], [0.7, 0.6, 0.5])
    rows, scores = differences({"b": b, "a": a}, "a")
    assert rows.heads == ["difference from `a`", "accuracy", "unknown AUROC"]
    # 4.303 standard errors of 1/30 by Student's t with two degrees of freedom.
    assert rows.rows == [["b", "+0.033 ± 0.143", "-0.100 ± 0.000"]]
    assert scores.heads[1:] == ["chosen", "energy"]
    assert scores.rows[0] == ["b", "-0.100 ± 0.000", "-0.200 ± 0.000"]
    assert scores.rows[1] == ["a", "+0.000 ± 0.000", "-0.300 ± 0.000"]
    assert differences({"a": a}, "a") == []


def test_what_to_refuse_is_told_of_the_row_of_lowest_validation_loss():
    numbers = {"test/surest-error": 0.1, "surest-refused/unknown": 0.5, "validation/nll": 0.2}
    better = {"test/surest-error": 0.0, "surest-refused/unknown": 0.9, "validation/nll": 0.3}
    rows = {"a": numbers, "b": better}
    methods = {row: {n: summarise([v]) for n, v in own.items()} for row, own in rows.items()}
    expected = "Refuse the tenth of which a is least sure: 10.0% of the rest is wrong, and 50% of "
    assert trust_text(methods) == f"{expected}the unknown are refused."
    assert trust_text({"a": {"test/nll": summarise([0.1])}}) == ""


def test_a_lead_is_told_with_its_interval_and_one_seed_decides_nothing():
    clear = compared(SGPA=[0.80, 0.82, 0.84], softmax=[0.70, 0.72, 0.73], logreg=[0.4, 0.4, 0.4])
    beaten = beside_chance(clear, {"accuracy": 0.5}, 100)  # .6 with two standard deviations
    assert (headline_table(beaten).best, nothing_learned(beaten)) == (
        headline_table(clear).best,
        "",
    )
    missed = beside_chance(clear, {"accuracy": 0.75}, 100)
    assert (0, 2) not in headline_table(missed).best < headline_table(clear).best
    assert nothing_learned(missed) == "Nothing has learned: all rows are at chance by accuracy."
    expected = "accuracy: SGPA (0.820) leads softmax (0.717): +0.103 ± 0.014 (95%, 3 seeds)."
    assert conclusion(clear) == expected
    level = conclusion(compared(a=[0.8, 0.9, 0.7], b=[0.9, 0.7, 0.75]))
    assert "is not told apart from b (0.783): +0.017 ± 0.399" in level
    assert conclusion(compared(a=[0.8], b=[0.1])).endswith("one seed decides nothing.")
    equal = compared(a=[0.8, 0.9], b=[0.8, 0.9])
    assert "is not told apart from b (0.850): +0.000 ± 0.000" in conclusion(equal)
    assert "b (" not in conclusion(clear | compared(b=[0.9] * 3, c=[0.1] * 3), ["b"])
    assert conclusion(compared(a=[0.8, 0.9])) == ""
