import json

import pytest
import torch

from damage import full_disk
from probseq.files import DamagedFileError
from probseq_apps.engine.checkpoints import Checkpoint, save_checkpoint
from probseq_apps.engine.files import (
    ConfigMismatchError,
    RunExistsError,
    load_groups,
    prepare_run_dir,
    read_json,
    save_arrays,
    save_groups,
    write_json,
)
from probseq_apps.engine.log import MetricsLog, read_metrics

CONFIG = {"method": "mle", "train": {"epochs": 3, "betas": (0.9, 0.999)}}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_new_run_gets_its_folder_and_configuration_and_resuming_changes_nothing(tmp_path):
    path = tmp_path / "a" / "b"
    prepare_run_dir(path, CONFIG, resume=True)
    assert read_json(path / "config.json") == json.loads(json.dumps(CONFIG))
    assert names(path) == ["config.json"]
    before = (path / "config.json").stat().st_mtime_ns
    prepare_run_dir(path, CONFIG, resume=True)
    assert (path / "config.json").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("entry", "asked", "error", "match"),
    [
        ("thesis.tex", {"overwrite": True}, RunExistsError, r"belong to no run \(thesis.tex\)"),
        ("metrics.jsonl", {}, RunExistsError, "already holds a run"),
        ("metrics.jsonl", {"resume": True}, ConfigMismatchError, r"without config\.json"),
        ("metrics.jsonl", {"overwrite": True}, RunExistsError, r"holds no config\.json"),
        (None, {"overwrite": True}, NotADirectoryError, "run must be a folder"),
    ],
)
def test_a_folder_with_something_else_is_refused_and_left_as_it_is(
    tmp_path, entry, asked, error, match
):
    path = tmp_path / "run"
    file = path / entry if entry else path
    file.parent.mkdir(exist_ok=True)
    file.write_text("years of work")
    with pytest.raises(error, match=match):
        prepare_run_dir(path, CONFIG, **asked)
    assert file.read_text() == "years of work"
    assert len(list(tmp_path.rglob("*"))) == 1 + bool(entry)


def test_overwriting_deletes_the_run_and_nothing_else(tmp_path):
    path, other = tmp_path / "run", tmp_path / "other"
    other.mkdir()
    (other / "precious").write_text("")
    prepare_run_dir(path, CONFIG)
    (path / "checkpoints" / "step-000001").mkdir(parents=True)
    (path / "plots").symlink_to(other)
    (path / "mle").symlink_to(other)
    for name in ("metrics.jsonl", "notes.txt", "results", "other"):
        (path / name).write_text("{}\n")
    write_json(path / "finished.json", {"steps": 1})
    prepare_run_dir(path, {"method": "sgpa"}, overwrite=True, patterns=["res*", "mle/*"])
    assert names(path) == ["config.json", "notes.txt", "other"]
    assert read_json(path / "config.json") == {"method": "sgpa"}
    assert names(other) == ["precious"]


def test_a_mismatch_lists_each_key_with_both_values_and_no_other(tmp_path):
    prepare_run_dir(tmp_path, CONFIG)
    changed = {"method": "mle", "train": {"epochs": 5, "betas": [0.9, 0.999], "seed": 1}}
    with pytest.raises(ConfigMismatchError) as caught:
        prepare_run_dir(tmp_path, changed, resume=True)
    listed = "train.epochs: 3 in the run, 5 now; train.seed: '(absent)' in the run, 1 now; resume"
    assert listed in str(caught.value)
    assert "configuration: train.epochs" in str(caught.value)


def test_rows_are_on_disk_at_once_and_going_on_drops_those_after_the_step(tmp_path):
    text = "".join(json.dumps({"step": step}) + "\n" for step in (10, 20, 30))
    (tmp_path / "metrics.jsonl").write_text(text + '{"step": 4')
    log = MetricsLog(tmp_path, step=20)
    log.write({"step": 25, "parts": {"kl": 0.1}})
    assert read_metrics(tmp_path) == [
        {"step": 10},
        {"step": 20},
        {"step": 25, "parts": {"kl": 0.1}},
    ]
    log.close()


@pytest.mark.parametrize("line", ["x", '{"loss": 1}', "[3]", '{"step": "x"}'])
def test_a_damaged_line_of_the_log_is_named(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1}}\n{line}\n')
    with pytest.raises(DamagedFileError, match=r"metrics\.jsonl is damaged in line 2"):
        read_metrics(tmp_path)


def test_arrays_come_back_in_groups(tmp_path):
    groups = {"a/b": {"x": torch.arange(3)}, "c": {"x": torch.tensor([0.5]), "y": torch.zeros(0)}}
    save_groups(tmp_path / "new" / "a.npz", groups)
    found = load_groups(tmp_path / "new" / "a.npz")
    assert str(found) == str(groups)


def test_a_full_disk_names_the_file(tmp_path):
    long, log, said = torch.zeros(1000), MetricsLog(tmp_path, step=0), []
    end = Checkpoint(1, {"long": long}, None, {})
    for write in (
        lambda: write_json(tmp_path / "results.json", {"long": "x" * 1000}),
        lambda: save_arrays(tmp_path / "samples.npz", {"long": long}),
        lambda: save_checkpoint(tmp_path / "checkpoints", end),
        lambda: log.write({"step": 1, "long": "x" * 1000}),
    ):
        with pytest.raises(OSError, match="File too large") as caught, full_disk(100):
            write()
        said.append(caught.value.filename)
    with full_disk(100):
        log.close()
    files = ("results.json", "samples.npz", "checkpoints/step-000001.safetensors", "metrics.jsonl")
    assert said == [str(tmp_path / name) for name in files]
    assert not list(tmp_path.rglob(".tmp-*"))
