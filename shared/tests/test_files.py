import hashlib
import os

import pytest

from probseq.files import sha256, write_atomic


def test_a_file_is_written_and_replaced(tmp_path):
    file = tmp_path / "file.txt"
    for content in ("σ² = 1", b"\x00\xff"):
        write_atomic(file, content)
        written = content.encode() if isinstance(content, str) else content
        assert file.read_bytes() == written
        assert sha256(file) == hashlib.sha256(written).hexdigest()
    assert os.listdir(file.parent) == ["file.txt"]


def test_what_is_there_stays_where_the_new_file_cannot_be_put_in_place(tmp_path, monkeypatch):
    file = tmp_path / "file.txt"
    write_atomic(file, "old")

    def full(descriptor):
        raise OSError("no space")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_atomic(file, "new")
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == ["file.txt"]
