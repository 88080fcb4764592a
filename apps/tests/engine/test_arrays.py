import numpy as np
import pytest

from probseq_apps.engine.files import load_arrays


def test_a_truncated_file_of_arrays_is_named_with_what_to_do(tmp_path):
    path = tmp_path / "predictions.npz"
    np.savez(path, a=np.arange(1000.0))
    np.testing.assert_array_equal(load_arrays(path)["a"], np.arange(1000.0))
    whole = path.read_bytes()
    damaged = (whole[: len(whole) // 2], whole[:-10], b"", b"PK\x03\x04", whole[:400] + whole[500:])
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"predictions\.npz is damaged .*: delete it"):
            load_arrays(path)
    np.savez(path, a=np.array([object()]))
    with pytest.raises(ValueError, match=r"predictions\.npz is damaged"):
        load_arrays(path)
    with pytest.raises(FileNotFoundError):
        load_arrays(tmp_path / "none.npz")
