import json
import pickle

import numpy as np
import pytest
import torch

from probseq_apps.data.names import reading
from probseq_apps.engine.checkpoints import Checkpoint, save_checkpoint
from probseq_apps.engine.files import (
    ConfigMismatchError,
    DamagedFileError,
    ForeignFileError,
    RunExistsError,
    check_manifest,
    load_arrays,
    prepare_run_dir,
    read_finished,
    read_json,
    save_arrays,
    write_json,
    write_manifest,
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
        ("thesis.tex", {}, RunExistsError, r"belong to no run \(thesis.tex\)"),
        ("thesis.tex", {"resume": True}, RunExistsError, r"belong to no run \(thesis.tex\)"),
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
    for name in ("metrics.jsonl", "notes.txt", "results", "other"):
        (path / name).write_text("{}\n")
    write_json(path / "finished.json", {"steps": 1})
    prepare_run_dir(path, {"method": "sgpa"}, overwrite=True, patterns=["res*"])
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


def flips(file):
    """The file with one bit of each of its bytes changed, one after the other."""
    content = file.read_bytes()
    for place in range(len(content)):
        yield content[:place] + bytes([content[place] ^ 1 << place % 7]) + content[place + 1 :]
    file.write_bytes(content)


def refused(file, read, content):
    """Whether a file is refused with a message that names it."""
    file.write_bytes(content)
    try:
        read(file)
    except ValueError as error:
        return str(file) in str(error)
    return False


def test_every_flipped_byte_of_a_json_file_is_refused_by_the_file_s_name(tmp_path):
    file = tmp_path / "results" / "mle-seed0.json"
    values = {"accuracy": 0.5, "names": ["a", "b"], "none": None}
    write_json(file, values)
    assert all(refused(file, read_json, content) for content in flips(file))
    assert read_json(file) == values


def test_every_flipped_byte_of_arrays_is_refused_or_changes_no_number(tmp_path):
    file = tmp_path / "samples" / "prior.npz"
    saved = {"images": torch.arange(6, dtype=torch.uint8), "a/b": torch.tensor([0.5])}
    save_arrays(file, saved)
    # Times and other facts of a zip archive that nobody reads.
    harmless = [content for content in flips(file) if not refused(file, load_arrays, content)]
    assert len(harmless) < len(file.read_bytes()) / 2
    for content in harmless:
        file.write_bytes(content)
        found = load_arrays(file)
        assert found.keys() == saved.keys()
        assert all(torch.equal(found[name], saved[name]) for name in saved)


def test_files_that_hold_no_arrays_of_ours_are_refused_by_name(tmp_path):
    file = tmp_path / "samples.npz"
    for content in (b"", b"PK", b"not arrays", pickle.dumps({"images": print})):
        file.write_bytes(content)
        with pytest.raises(DamagedFileError, match=r"samples\.npz is damaged"):
            load_arrays(file)
    pickled = np.array([print], dtype=object)
    for images, said in ((np.zeros(3), "has no sha256"), (pickled, "is damaged")):
        np.savez(file, images=images)
        with pytest.raises(DamagedFileError, match=rf"samples\.npz {said}"):
            load_arrays(file)


@pytest.mark.parametrize("text", ["{", "[]", "3", "[" * 100_000, '{"format": 99, "sha256": ""}'])
def test_json_that_is_no_object_or_of_another_version_is_refused_by_name(tmp_path, text):
    (tmp_path / "finished.json").write_text(text)
    with pytest.raises(ValueError, match=r"finished\.json (is dam|has form)"):
        read_finished(tmp_path)


def test_a_manifest_does_not_list_what_its_own_killed_writer_left(tmp_path):
    (tmp_path / "model.safetensors").write_text("weights")
    (tmp_path / ".tmp-manifest.json").write_text("half")
    write_manifest(tmp_path)
    assert check_manifest(tmp_path)["files"].keys() == {"model.safetensors"}


def test_a_full_disk_names_the_file_and_what_to_do(tmp_path):
    """Files may not be longer than 100 bytes for a while, as if the disk was full."""
    resource = pytest.importorskip("resource")
    long, log, said = torch.zeros(1000), MetricsLog(tmp_path, step=0), []
    end = Checkpoint(1, {"long": long}, None, {})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        for write in (
            lambda: write_json(tmp_path / "results.json", {"long": "x" * 1000}),
            lambda: save_arrays(tmp_path / "samples.npz", {"long": long}),
            lambda: save_checkpoint(tmp_path / "checkpoints", end, {}),
            lambda: log.write({"step": 1, "long": "x" * 1000}),
        ):
            with pytest.raises(OSError, match="cannot be written") as caught:
                write()
            said.append(str(caught.value))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        log.close()
    files = ("results.json", "samples.npz", "checkpoints/step-000001", "metrics.jsonl")
    for name, line in zip(files, said, strict=True):
        assert line.startswith(f"{tmp_path / name} cannot be written: ")
        assert line.endswith("make room or name another folder, and go on with --resume")
    assert not list(tmp_path.rglob(".tmp-*"))


def test_a_models_own_settings_are_not_called_damaged(tmp_path):
    """They are of an intact folder, which nobody should delete."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"format": 1, "class": "VQVAE", "sha256": {"config.json": "0"}}))
    with pytest.raises(ForeignFileError, match="is of a model that save_pretrained wrote"):
        read_json(path)


def test_a_machine_without_memory_is_no_damaged_file(tmp_path, monkeypatch):
    def load(*_, **__):
        raise MemoryError("of the machine")

    save_arrays(tmp_path / "a.npz", {"x": torch.ones(3)})
    monkeypatch.setattr(np, "load", load)
    with pytest.raises(MemoryError, match="of the machine"):
        load_arrays(tmp_path / "a.npz")
    with pytest.raises(MemoryError, match="of the machine"), reading("a.csv", "a table"):
        load()
