"""Series, channels and tables of points: standard sets, and CSV files of one's own."""

import csv
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from sklearn.datasets import load_digits

from probseq_apps.data.names import DataError
from probseq_apps.data.series import (
    Columns,
    load_series,
    moving_digits,
    read_csv_channels,
    read_csv_series,
    rotated_mnist,
)
from probseq_apps.data.tables import Marks, load_table, read_csv_points


@pytest.fixture
def read(put):
    """Read a series of one's own from its lines."""

    def read_lines(*lines, time="t", target="y", series=None):
        path = put("own.csv", "\n".join(lines) + "\n")
        return read_csv_series(path, Columns(time, tuple(target.split(",")), series))

    return read_lines


def test_the_default_series_is_what_the_shipped_file_says():
    series = load_series("sp500")
    path = Path(matplotlib.get_data_path()) / "sample_data" / "Stocks.csv"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    values = [float(row["^GSPC"]) for row in csv.DictReader(lines) if row["^GSPC"]]
    assert len(series) == len(values) > 300
    assert series.values == pytest.approx(np.log(values))
    assert series.time[0] == 1990.0
    assert series.time[6] == pytest.approx(1990.0 + 181 / 365)  # July 1, 1990


def test_dates_become_days_or_hours_since_the_first_and_rows_are_sorted(read, put):
    series = read("t,y", "2020-03-01,3", "2020-02-28T12:00,1", "2020-03-02T00:00,4")
    assert series.time.tolist() == [0.0, 1.5, 2.5]  # 2020 has a February 29
    assert series.values.tolist() == [1.0, 3.0, 4.0]
    text = "when\tu\n2020-01-01T03:00\t3\n2020-01-01T00:00\t1\n2020-01-02\t4\n"
    channels = read_csv_channels(put("a.tsv", text), "when")
    assert channels.time.tolist() == [0.0, 3.0, 24.0]
    assert channels.values[:, 0].tolist() == [1.0, 3.0, 4.0]
    assert series.notes == channels.notes == ("rows are sorted by time",)


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        (["t,y,y", "0,1,2"], "one column 'y'"),
        (["t;y", "0;1"], "one column 't'.*--separator ';' separates its cells"),
        (["t,y", "0,1", '1,"2,5"'], "--decimal , reads it so"),
        (
            ["t,y", "2024-01-01,1", "2024-01-02T00:00Z,2"],
            "line 3: .*one form, got .* and .*, a date with zone",
        ),
        (["t,y", "0,1", "1,two"], "line 3: a value must be a number, got 'two'"),
        (["t,y", "0,1", "inf,2"], "line 3.*finite"),
        (["t,y", "0,1,2"], "line 2: expected 2 columns, got 3"),
        (["t,y", "0,"], "no values"),
        (["t,y", '0,"1'], "cannot be read as a table"),
        (["t,y", "0,1e200", "1,2"], r"column 'y'.*1e\+200.*overflow"),
        (["t,y", "0,0", "1,1e-200"], r"column 'y'.*1e-200.*vanishes"),
    ],
)
def test_what_a_csv_file_must_not_hold_is_named(lines, named, read):
    with pytest.raises(ValueError, match=r"own\.csv.*" + named):
        read(*lines)


def test_gaps_large_numbers_constants_semicolons_and_several_targets_may_be_read(read):
    series = read("y,other,t", "1.5,a,0", ",b,1", "NaN,c,2", "-2,d,4e0")
    assert (series.time.tolist(), series.values.tolist()) == ([0.0, 4.0], [1.5, -2.0])
    assert "2 rows without a value" in series.notes[0]
    assert read("t,y", "0,1e150", "1,-1e150").values.tolist() == [1e150, -1e150]
    assert read("t,y", "0,3", "1,3").values.tolist() == [3.0, 3.0]
    assert read("t;s", "0", "1", time="t;s", target="t;s").values.tolist() == [0.0, 1.0]
    series = read("t,y,z", "1,2,3", "0,1,", "2,4,5", target="y,z")
    assert series.time.tolist() == [1.0, 2.0]
    assert series.values.tolist() == [[2.0, 4.0], [3.0, 5.0]]
    assert series.target_label == "y, z"


def test_tables_of_other_marks_are_read(tmp_path):
    path = tmp_path / "german.csv"
    path.write_bytes("Tag; Größe\n2024-01; 1,5\n2024-02; 2,25\n".encode("latin-1"))
    marks = Marks(";", ",", "latin-1")
    series = read_csv_series(path, Columns("Tag", ("Größe",), marks=marks))
    assert (series.time.tolist(), series.values.tolist()) == ([0.0, 31.0], [1.5, 2.25])
    with pytest.raises(DataError, match="cannot be read as a table"):
        read_csv_series(path, Columns("Tag", ("Größe",)))


def test_series_in_rows_stand_side_by_side_at_stamps_that_all_have(read):
    rows = ["t,who,y", "1,a,2", "0,b,7", "0,a,1", "1,b,3", "2,a,9"]
    series = read(*rows, series="who")
    assert series.time.tolist() == [0.0, 1.0]
    assert series.values.tolist() == [[1.0, 2.0], [7.0, 3.0]]
    assert series.target_label == "a, b"
    assert "1 stamps that not all series have" in series.notes[0]
    with pytest.raises(DataError, match="'a' has the stamp 0 twice"):
        read(*rows, "0,a,5", series="who")


@pytest.mark.parametrize(
    ("name", "file", "content"),
    [
        ("audio", "audio_subband/audio_subband.npz", b"PK\x03\x04 cut off"),
        ("covid", "covid_deaths_brazil/santa_catarina.csv", b"date,new_deaths\n2019-03-01,3\n"),
        ("covid", "covid_deaths_brazil/santa_catarina.csv", b"date,new_deaths\nxx,4\n"),
        ("solar", "solar_irradiance/solar_irradiance.csv", None),
    ],
)
def test_a_damaged_or_missing_standard_file_is_named(name, file, content, put, tmp_path):
    if content:
        put(file, content)
    with pytest.raises(DataError, match=Path(file).name):
        load_series(name, tmp_path)


def test_a_film_shows_a_real_picture_that_keeps_its_ink_and_moves_smoothly():
    found = moving_digits(200)
    assert found.frame == (16, 16)
    film = found.values.reshape(200, 16, 16)
    assert 0.0 <= film.min() <= film.max() <= 1.0
    # Interpolation between pixels moves ink and loses none inside the canvas.
    ink = film.sum((1, 2))
    assert np.allclose(ink, ink[0], rtol=1e-6)
    assert np.isclose(load_digits(return_X_y=True)[0].sum(1) / 16.0, ink[0]).any()
    rows, columns = np.arange(16)[:, None], np.arange(16)[None, :]
    centre = np.stack([(film * axis).sum((1, 2)) / ink for axis in (rows, columns)], axis=1)
    assert np.abs(np.diff(centre, axis=0)).max() < 1.0
    assert (np.ptp(centre, axis=0) > 3.0).all()


def test_a_digit_of_mnist_turns_around_once(tmp_path):
    images = np.zeros((3, 28, 28), dtype=np.uint8)
    images[1, 14:24, 13:15] = 255  # a stroke from the centre downwards
    images[2] = 7
    parts = {"x_test": images[:1], "y_test": np.array([3]), "y_train": np.array([0, 3, 3])}
    (tmp_path / "mnist").mkdir()
    np.savez(tmp_path / "mnist" / "mnist.npz", x_train=images, **parts)
    found = rotated_mnist(8, tmp_path)
    film = found.values.reshape(8, *found.frame)
    assert np.array_equal(film[0], images[1] / 255.0)
    # A quarter of a turn is exact; by halves of it the stroke points to where it should.
    assert np.allclose(film[2::2], [np.rot90(film[0], k) for k in (1, 2, 3)], atol=1e-12)
    rows, columns = np.indices(found.frame) - 13.5
    angles = np.arctan2((film * columns).sum((1, 2)), (film * rows).sum((1, 2)))
    assert np.allclose(np.diff(np.unwrap(angles)), np.pi / 4, atol=1e-2)


def test_all_columns_but_time_are_channels_and_bad_ones_are_refused(put):
    found = read_csv_channels(put("a.csv", "u,time,v\n1,0.5,2\n3,1.5,4\n"))
    assert found.channels == ("u", "v")
    assert found.time.tolist() == [0.5, 1.5]
    assert found.values.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert found.frame is None
    for text, message in (
        ("time,u\n0,1\n1,\n", "line 3: every channel needs a value"),
        ("time\n0\n", "at least one channel"),
        ("time,u\n", "must hold rows"),
    ):
        with pytest.raises(DataError, match=message):
            read_csv_channels(put("bad.csv", text))


def test_missing_tables_columns_and_names_are_named(put, tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = put("uci/powerplant.parquet", b"")
    parquet.write_table(arrow.table({"a": [1], "y": [2]}), file)
    for name, folder, message in (
        ("skillcraft", None, "--data-dir"),
        ("skillcraft", tmp_path, r"skillcraft\.parquet does not exist.*--download"),
        ("powerplant", tmp_path, r"splits test0\.\., it has \['a', 'y'\]"),
    ):
        with pytest.raises(DataError, match=message):
            load_table(name, folder, seed=0)
    file.write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"powerplant\.parquet cannot be read"):
        load_table("powerplant", tmp_path, seed=0)


def test_points_are_read_from_the_named_columns_and_a_share_is_for_testing(put):
    path = put("own.csv", "a,y,b,z\n" + "".join(f"{i},{2 * i},{i}.5,-{i}\n" for i in range(20)))
    table = read_csv_points(path, ("b", "a"), ("y", "z"), test_share=0.25, seed=0)
    assert table.x[3].tolist() == [3.5, 3.0]
    assert table.y[:, 3].tolist() == [6.0, -3.0]
    assert (table.test.sum(), table.columns) == (5, ("b", "a"))
    one = read_csv_points(path, ("b", "a"), ("y",), test_share=0.25, seed=0)
    assert np.array_equal(one.y, table.y[0])
