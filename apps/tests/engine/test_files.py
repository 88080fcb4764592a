import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

from probseq_apps.engine.files import (
    ConfigMismatchError,
    DamagedFileError,
    FormatError,
    RunExistsError,
    load_arrays,
    prepare_run_dir,
    read_finished,
    read_json,
    save_arrays,
    write_json,
)
from probseq_apps.engine.log import MetricsLog, read_metrics

CONFIG = {"method": "mle", "train": {"epochs": 3, "betas": (0.9, 0.999)}}


def test_a_new_run_gets_its_folder_and_configuration(tmp_path):
    path = tmp_path / "a" / "b"
    prepare_run_dir(path, CONFIG)
    assert read_json(path / "config.json") == json.loads(json.dumps(CONFIG))
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
    write_json(tmp_path / "finished.json", {"steps": 1})
    prepare_run_dir(tmp_path, {"method": "sgpa"}, overwrite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "notes.txt"]
    assert read_json(tmp_path / "config.json") == {"method": "sgpa"}


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


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="file must be a folder"):
        prepare_run_dir(tmp_path / "file", CONFIG, overwrite=True)


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
    except (DamagedFileError, FormatError) as error:
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


@pytest.mark.parametrize("content", [b"", b"PK", b"not arrays", pickle.dumps({"images": print})])
def test_files_that_hold_no_arrays_are_refused_by_name(tmp_path, content):
    file = tmp_path / "samples.npz"
    file.write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"samples\.npz is damaged"):
        load_arrays(file)


def test_arrays_of_others_and_pickled_objects_are_refused(tmp_path):
    file = tmp_path / "samples.npz"
    pickled = np.array([print], dtype=object)
    for images, said in ((np.zeros(3), "has no sha256"), (pickled, "is damaged")):
        np.savez(file, images=images)
        with pytest.raises(DamagedFileError, match=rf"samples\.npz {said}"):
            load_arrays(file)


@pytest.mark.parametrize("text", ["{", "[]", "3", "[" * 100_000])
def test_json_that_is_no_object_is_refused_by_name(tmp_path, text):
    file = tmp_path / "finished.json"
    file.write_text(text)
    with pytest.raises(DamagedFileError, match=r"finished\.json is damaged"):
        read_finished(tmp_path)


def test_another_version_s_file_says_so(tmp_path):
    file = tmp_path / "config.json"
    file.write_text('{"format": 99, "sha256": ""}')
    with pytest.raises(FormatError, match=r"config\.json has format 99, .* reads format 1"):
        read_json(file)


def test_a_full_disk_names_the_file_and_what_to_do(tmp_path):
    """Files may not be longer than 100 bytes here, as if the disk was full."""
    script = """
import resource, sys
from pathlib import Path
import torch
from probseq_apps.engine.checkpoints import Checkpoint, save_checkpoint
from probseq_apps.engine.files import save_arrays, write_json
from probseq_apps.engine.log import MetricsLog
folder = Path(sys.argv[1])
log = MetricsLog(folder, step=0)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
long = torch.zeros(1000)
for write in (
    lambda: write_json(folder / "results.json", {"long": "x" * 1000}),
    lambda: save_arrays(folder / "samples.npz", {"long": long}),
    lambda: save_checkpoint(folder / "checkpoints", Checkpoint(1, {"long": long}, None, {}), {}),
    lambda: log.write({"step": 1, "long": "x" * 1000}),
):
    try:
        write()
    except OSError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True
    )
    names = ("results.json", "samples.npz", "checkpoints/step-000001", "metrics.jsonl")
    for name, line in zip(names, done.stdout.splitlines(), strict=True):
        assert line.startswith(f"{tmp_path / name} cannot be written: ")
        assert line.endswith("make room or name another folder, and go on with --resume")
    assert not list(tmp_path.rglob("*.tmp-*"))
    assert not list(tmp_path.rglob(".tmp-*"))
