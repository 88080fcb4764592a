"""Folders and words that experiments over tasks share."""

from probseq_apps.experiments.task_runs import counted, read_results, write_results


def test_one_of_a_kind_has_no_plural():
    assert counted(("ohsvgp",), (3,)) == "1 method, 1 seed"
    assert counted(("ohsvgp", "ovc"), (0, 1, 2)) == "2 methods, 3 seeds"


def test_results_are_read_back_by_method_and_seed(tmp_path):
    (tmp_path / "results").mkdir()
    for method in ("ohsvgp", "ovc"):
        for seed in (0, 4):
            write_results(tmp_path, method, seed, {"of": [method, seed]})
    found = read_results(tmp_path, ("ovc", "ohsvgp"), (4, 0))
    assert found == {
        method: {str(seed): {"of": [method, seed]} for seed in (4, 0)}
        for method in ("ovc", "ohsvgp")
    }
