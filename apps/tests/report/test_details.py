from probseq_apps.report.details import details, on_test_sets
from probseq_apps.report.summary import summarise

METRICS = {
    "test/nll": [0.5],
    "out-of-domain/nll": [0.6],
    **{f"shift/severity-1/{name}": [0.1] for name in ("accuracy", "nll", "ece", "mce")},
    **{f"ood/svhn/energy/{name}": [0.9] for name in ("auroc", "aupr-in", "aupr-out", "fpr95")},
}
SUMMARIES = {"sgpa": {name: summarise(values) for name, values in METRICS.items()}}


def test_test_sets_and_details_share_the_metrics_among_them():
    assert list(on_test_sets(SUMMARIES)["sgpa"]) == ["test/nll", "out-of-domain/nll"]
    text = details(SUMMARIES, {"sgpa": 1})
    assert "## Distribution shift" in text
    assert "| corrupted: NLL | severity 1 ↓ |" in text
    assert "| against svhn, energy | AUROC ↑ | AUPR-in ↑ | AUPR-out ↑ | FPR95 ↓ |" in text
    assert text.count("\n| sgpa (n=1) |") == 5


def test_without_shift_and_other_data_there_is_nothing_to_tell():
    assert details(on_test_sets(SUMMARIES), {"sgpa": 1}) == ""
