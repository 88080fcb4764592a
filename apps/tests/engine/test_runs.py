import json

import pytest

from probseq_apps.engine.files import (
    ConfigMismatchError,
    RunExistsError,
    prepare_run_dir,
    read_finished,
    write_finished,
)
from probseq_apps.engine.log import MetricsLog, read_metrics

CONFIG = {"method": "mle", "train": {"epochs": 3, "betas": (0.9, 0.999)}}


def test_a_new_run_gets_its_folder_and_configuration(tmp_path):
    path = tmp_path / "a" / "b"
    prepare_run_dir(path, CONFIG)
    assert json.loads((path / "config.json").read_text()) == json.loads(json.dumps(CONFIG))
    assert [entry.name for entry in path.iterdir()] == ["config.json"]


def test_a_folder_with_a_run_is_refused_and_left_as_it_is(tmp_path):
    prepare_run_dir(tmp_path, CONFIG)
    (tmp_path / "report.json").write_text("{}")
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(RunExistsError, match="already holds a run"):
        prepare_run_dir(tmp_path, {"method": "sgpa"})
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


@pytest.mark.parametrize("asked", [{}, {"resume": True}, {"overwrite": True}])
def test_a_folder_with_other_files_is_refused_whatever_is_asked(tmp_path, asked):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunExistsError, match=r"belong to no run \(thesis.tex\)"):
        prepare_run_dir(tmp_path, CONFIG, **asked)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_folder_without_configuration_is_no_run_to_overwrite(tmp_path):
    (tmp_path / "plots").mkdir()
    with pytest.raises(RunExistsError, match=r"holds no config\.json"):
        prepare_run_dir(tmp_path, CONFIG, overwrite=True)
    assert (tmp_path / "plots").exists()


def test_overwriting_deletes_the_run_and_nothing_else(tmp_path):
    prepare_run_dir(tmp_path, CONFIG)
    (tmp_path / "checkpoints" / "step-000001").mkdir(parents=True)
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    (tmp_path / "notes.txt").write_text("keep me")
    write_finished(tmp_path, {"steps": 1})
    prepare_run_dir(tmp_path, {"method": "sgpa"}, overwrite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "notes.txt"]
    assert json.loads((tmp_path / "config.json").read_text()) == {"method": "sgpa"}


def test_a_linked_folder_is_unlinked_when_overwriting_and_not_emptied(tmp_path):
    other, path = tmp_path / "other", tmp_path / "run"
    other.mkdir()
    (other / "precious").write_text("")
    prepare_run_dir(path, CONFIG)
    (path / "checkpoints").symlink_to(other)
    prepare_run_dir(path, CONFIG, overwrite=True)
    assert (other / "precious").exists()
    assert not (path / "checkpoints").exists()


def test_resuming_with_the_same_configuration_changes_nothing(tmp_path):
    prepare_run_dir(tmp_path, CONFIG)
    before = (tmp_path / "config.json").stat().st_mtime_ns
    prepare_run_dir(tmp_path, CONFIG, resume=True)
    assert (tmp_path / "config.json").stat().st_mtime_ns == before


def test_resuming_where_there_is_no_run_starts_one(tmp_path):
    prepare_run_dir(tmp_path / "new", CONFIG, resume=True)
    assert (tmp_path / "new" / "config.json").exists()


def test_a_mismatch_lists_each_key_with_both_values_and_no_other(tmp_path):
    prepare_run_dir(tmp_path, CONFIG)
    changed = {"method": "mle", "train": {"epochs": 5, "betas": [0.9, 0.999], "seed": 1}}
    with pytest.raises(ConfigMismatchError) as caught:
        prepare_run_dir(tmp_path, changed, resume=True)
    text = str(caught.value)
    assert "train.epochs: 3 in the run, 5 now" in text
    assert "train.seed: '(absent)' in the run, 1 now" in text
    assert "method" not in text
    assert "betas" not in text


def test_a_run_without_configuration_cannot_be_resumed(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(ConfigMismatchError, match=r"without config\.json"):
        prepare_run_dir(tmp_path, CONFIG, resume=True)


def test_resume_and_overwrite_exclude_each_other(tmp_path):
    with pytest.raises(ValueError, match="exclude each other"):
        prepare_run_dir(tmp_path, CONFIG, resume=True, overwrite=True)


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="file must be a folder"):
        prepare_run_dir(tmp_path / "file", CONFIG, overwrite=True)


def test_the_finished_marker_comes_back(tmp_path):
    assert read_finished(tmp_path) is None
    write_finished(tmp_path, {"steps": 4, "best_score": None})
    assert read_finished(tmp_path) == {"steps": 4, "best_score": None}


def test_rows_are_on_disk_as_soon_as_they_are_written(tmp_path):
    log = MetricsLog(tmp_path, step=0)
    log.write({"step": 1, "loss": 0.5, "parts": {"kl": 0.1}})
    assert read_metrics(tmp_path) == [{"step": 1, "loss": 0.5, "parts": {"kl": 0.1}}]
    log.close()


def test_going_on_drops_rows_after_the_step_and_a_torn_last_line(tmp_path):
    text = "".join(json.dumps({"step": step}) + "\n" for step in (10, 20, 30))
    (tmp_path / "metrics.jsonl").write_text(text + '{"step": 4')
    log = MetricsLog(tmp_path, step=20)
    log.write({"step": 25})
    log.close()
    assert [row["step"] for row in read_metrics(tmp_path)] == [10, 20, 25]
