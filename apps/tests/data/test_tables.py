import numpy as np
import pytest

from probseq_apps.data.names import DataError
from probseq_apps.data.tables import load_table


def written(folder, columns, name="powerplant"):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (folder / "uci").mkdir()
    pq.write_table(pa.table(columns), folder / "uci" / f"{name}.parquet")
    return folder


def test_the_seed_chooses_among_the_published_splits(tmp_path):
    splits = {"test0": [True, False, False], "test1": [False, True, True]}
    folder = written(tmp_path, {"a": [1, 2, 3], "b": [4.0, 5.0, 6.0], "y": [7, 8, 9], **splits})
    table = load_table("powerplant", folder, seed=0)
    assert table.x.tolist() == [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]
    assert (table.y.tolist(), table.columns) == ([7.0, 8.0, 9.0], ("a", "b"))
    assert table.test.tolist() == splits["test0"]
    assert load_table("powerplant", folder, seed=3).test.tolist() == splits["test1"]


def test_missing_files_columns_and_names_are_named(tmp_path):
    with pytest.raises(DataError, match="--data-dir"):
        load_table("skillcraft", None, seed=0)
    with pytest.raises(DataError, match=r"skillcraft\.parquet"):
        load_table("skillcraft", tmp_path, seed=0)
    with pytest.raises(DataError, match="'two-moons'"):
        load_table("two-moon", tmp_path, seed=0)
    folder = written(tmp_path, {"a": [1], "y": [2]})
    with pytest.raises(DataError, match=r"test0\.\."):
        load_table("powerplant", folder, seed=0)


def test_the_published_tables_have_their_sizes(shared_data):
    pytest.importorskip("pyarrow")
    table = load_table("skillcraft", shared_data, seed=0)
    assert table.x.shape == (3338, 19)
    assert table.test.sum() in (333, 334)


def test_two_moons_are_drawn_by_the_seed():
    first, again, other = (load_table("two-moons", None, seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(first.x, again.x)
    assert not np.array_equal(first.x, other.x)
    assert np.array_equal(np.unique(first.y), [0.0, 1.0])
    assert first.test.sum() == 150
    # The moons lie apart: the upper one, class 0, is higher on the left half of its arc.
    assert first.x[first.y == 0, 1].mean() > first.x[first.y == 1, 1].mean()
