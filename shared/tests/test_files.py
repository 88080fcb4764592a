import hashlib
import json
import os
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from damage import flipped_bits, full_disk
from probseq import files
from probseq.files import (
    DamagedFileError,
    ForeignFileError,
    Format,
    InUseError,
    OtherFormatError,
    hash_tensors,
    pack_arrays,
    read_arrays,
    read_json,
    read_tensors,
    replace_files,
    sole_use,
    unpack_arrays,
    write_arrays,
    write_atomic,
    write_json,
    write_tensors,
)

FORM = Format("set of numbers", 3)
TENSORS = {
    "a/b": torch.arange(6).reshape(2, 3),
    "half": torch.tensor([0.5], dtype=torch.bfloat16),
    "none": torch.zeros(0, 2),
    "scalar": torch.tensor(2.0, dtype=torch.float64),
}
HEAD = {"ä": [1, None], "seal of another": f"sha256:{64 * '1'}"}


def write_a_folder(path):
    with replace_files(path, "last.txt") as aside:
        (aside / "last.txt").write_text("words")
        (aside / "sub").mkdir()
        write_tensors(aside / "sub" / "x.safetensors", FORM, {}, TENSORS)


def read_a_folder(path):
    return {file.relative_to(path): file.read_bytes() for file in path.rglob("*") if file.is_file()}


STORES = {
    "json": (lambda p: write_json(p, FORM, HEAD), lambda p: read_json(p, FORM)),
    "arrays": (
        lambda p: write_arrays(p, FORM, {"x/y": np.arange(4.0), "b": np.array([True])}),
        lambda p: {name: array.tolist() for name, array in read_arrays(p, FORM).items()},
    ),
    "tensors": (
        lambda p: write_tensors(p, FORM, HEAD, TENSORS),
        lambda p: sorted(read_tensors(p, FORM)[1].items()),
    ),
    "mapped": (
        lambda p: write_tensors(p, FORM, HEAD, TENSORS),
        lambda p: sorted(read_tensors(p, FORM, mapped=True)[1].items()),
    ),
}
stores = pytest.mark.parametrize(("write", "read"), STORES.values(), ids=STORES)


@stores
def test_every_flipped_bit_is_refused_by_the_name_of_the_file(tmp_path, write, read):
    path = tmp_path / "stored"
    write(path)
    before = str(read(path))
    for _ in flipped_bits(path, 400):
        with pytest.raises(DamagedFileError, match=str(path)):
            read(path)
    content = path.read_bytes()
    for cut in (b"", content[:-1], content[: len(content) // 2], content + b" "):
        path.write_bytes(cut)
        with pytest.raises(DamagedFileError, match=str(path)):
            read(path)
    path.write_bytes(content)
    assert str(read(path)) == before
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"{path} must be a set of numbers of format 3"):
        read(path)


@stores
def test_a_full_disk_is_named_with_what_is_written_and_leaves_nothing(tmp_path, write, read):
    with pytest.raises(OSError, match=r"File too large.*stored") as caught, full_disk(30):
        write(tmp_path / "stored")
    assert caught.value.filename == str(tmp_path / "stored")
    assert list(tmp_path.iterdir()) == []


@stores
def test_what_is_written_twice_is_the_same_and_another_number_or_kind_is_told(
    tmp_path, write, read, monkeypatch
):
    path, same = tmp_path / "stored", tmp_path / "same"
    write(path)
    write(same)
    assert path.read_bytes() == same.read_bytes()
    for form, error, message in (
        (Format("set of numbers", 4), OtherFormatError, "a set of numbers of format 3, and this"),
        (Format("text", 3), ForeignFileError, "must be a text of format 3, and is a set of"),
    ):
        monkeypatch.setattr(sys.modules[__name__], "FORM", form)
        with pytest.raises(error, match=message) as caught:
            read(path)
        assert str(path) in str(caught.value)


def test_tensors_and_values_come_back_and_others_read_the_same_files(tmp_path):
    file = tmp_path / "x.safetensors"
    write_tensors(file, FORM, HEAD, TENSORS)
    for mapped in (False, True):
        head, tensors = read_tensors(file, FORM, mapped=mapped)
        assert head == read_json(file, FORM) == HEAD
        for found in (tensors, load_file(file)):
            assert found.keys() == TENSORS.keys()
            assert all(torch.equal(found[name], TENSORS[name]) for name in TENSORS)
            assert all(found[name].dtype == TENSORS[name].dtype for name in TENSORS)
    head, tensors = read_tensors(file, FORM)
    arrays = pack_arrays(FORM, HEAD, {"x/y": np.arange(4.0)})
    assert unpack_arrays(arrays, FORM, "state")[1]["x/y"].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert hash_tensors(tensors) == hash_tensors(dict(reversed(TENSORS.items())))
    assert hash_tensors(tensors) != hash_tensors(tensors | {"scalar": torch.tensor(2.0)})
    x = torch.rand(3, 4)  # whose values, order, shape and type count, and not its strides
    variants = (x, x.flip(0), x.T, x.view(4, 3), x.double(), x.view(torch.int32))
    assert len({hash_tensors({"x": each}) for each in variants}) == 6
    assert hash_tensors({"x": x.T.contiguous().T}) == hash_tensors({"x": x})
    write_arrays(tmp_path / "x.npz", FORM, {"x/y": np.arange(4.0)})
    assert np.load(tmp_path / "x.npz")["x/y"].tolist() == [0.0, 1.0, 2.0, 3.0]
    with pytest.raises(ValueError, match="must not be named format"):
        write_json(tmp_path / "x.json", FORM, {"format": 1})


def test_files_of_others_and_of_older_versions_are_refused_by_name(tmp_path):
    file = tmp_path / "x"
    texts = ["[]", "3", "{", "[" * 100_000, "not a file of ours", "PK", json.dumps({"a": 1})]
    for text in texts:
        file.write_text(text)
        for read in (read_json, read_arrays, read_tensors):
            with pytest.raises((DamagedFileError, ForeignFileError), match=f"{file}.*set of num"):
                read(file, FORM)
    file.write_text(json.dumps({"format": 1, "sha256": 64 * "0"}))
    with pytest.raises(OtherFormatError, match=r"of format 1, and this .* reads format 3"):
        read_json(file, FORM)
    save_file(TENSORS, file, metadata={"schema": "online-7"})
    with pytest.raises(OtherFormatError, match="of format online-7, and"):
        read_tensors(file, FORM)
    save_file(TENSORS, file)
    with pytest.raises(DamagedFileError, match="is damaged, or is not a set of numbers"):
        read_tensors(file, FORM)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a", "b")
    with pytest.raises(DamagedFileError, match="is damaged, or is not a set of numbers"):
        read_arrays(file, FORM)


def test_a_file_is_written_and_replaced(tmp_path):
    file = tmp_path / "file.txt"
    for content in ("σ² = 1", b"\x00\xff"):
        write_atomic(file, content)
        written = content.encode() if isinstance(content, str) else content
        assert file.read_bytes() == written
        assert files.sha256(file) == hashlib.sha256(written).hexdigest()
    assert os.listdir(file.parent) == ["file.txt"]


def test_what_is_there_stays_where_the_new_file_cannot_be_put_in_place(tmp_path, monkeypatch):
    file, folder = tmp_path / "file.txt", tmp_path / "folder"
    write_atomic(file, "old")
    write_a_folder(folder)
    before = read_a_folder(folder)

    def full(descriptor):
        raise OSError("no space")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_atomic(file, "new")
    for path in (folder, tmp_path / "new"):
        with pytest.raises(OSError, match="no space"):
            write_a_folder(path)
    assert file.read_text() == "old"
    assert read_a_folder(folder) == before
    assert sorted(os.listdir(tmp_path)) == ["file.txt", "folder"]
    assert sorted(os.listdir(folder)) == ["last.txt", "sub"]


def test_files_of_a_folder_that_is_there_are_replaced_in_order_and_others_stay(
    tmp_path, monkeypatch
):
    (tmp_path / "notes.txt").write_text("mine")
    names, replace = [], os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: [names.append(b.name), replace(a, b)])
    write_a_folder(tmp_path)
    assert names[-2:] == ["x.safetensors", "last.txt"]
    assert (tmp_path / "notes.txt").read_text() == "mine"
    with pytest.raises(ValueError, match=r"must be a directory, got the file .*notes\.txt"):
        write_a_folder(tmp_path / "notes.txt")


def test_a_full_disk_leaves_no_folder(tmp_path):
    with pytest.raises(OSError, match=r"File too large.*stored"), full_disk(30):
        write_a_folder(tmp_path / "stored")
    assert list(tmp_path.iterdir()) == []


WRITE_AND_WAIT = """
import sys, time
from pathlib import Path
from probseq.files import replace_files
with replace_files(Path(sys.argv[1])) as aside:
    (aside / "text.txt").write_text("half")
    print("ready", flush=True)
    time.sleep(60)
"""


def test_leftovers_of_the_dead_go_with_the_next_writer_and_those_of_the_living_stay(tmp_path):
    command = [sys.executable, "-c", WRITE_AND_WAIT, tmp_path]
    writers = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for writer in writers:
            writer.stdout.readline()
        writers[0].kill()
        writers[0].wait()
        other = tmp_path / ".tmp-0badc0de-1-ff-of-another-machine"
        other.write_text("")
        write_a_folder(tmp_path)
        names = [path.name.split("-") for path in tmp_path.glob(".tmp-*")]
        assert {name[2] for name in names} == {str(writers[1].pid), "1"}
        assert (tmp_path / "last.txt").read_text() == "words"
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
            writer.stdout.close()


def test_a_lock_keeps_others_out_and_its_file_stays(tmp_path):
    file = tmp_path / "state"
    for path, lock in ((tmp_path, ".lock"), (file, ".state.lock")):
        for _ in range(2):
            with sole_use(path):
                with pytest.raises(InUseError, match=f"works in {path}"), sole_use(path):
                    pass
                inode = (tmp_path / lock).stat().st_ino
        assert (tmp_path / lock).stat().st_ino == inode


def test_heads_are_read_without_torch(tmp_path):
    write_tensors(tmp_path / "x", FORM, HEAD, TENSORS)
    code = (
        "import sys; from pathlib import Path; from probseq.files import Format, read_json\n"
        f"read_json(Path({str(tmp_path / 'x')!r}), Format('set of numbers', 3))\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
