import csv
import math
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from probseq_apps.data.names import DataError
from probseq_apps.data.series import Columns, load_series, read_csv_series


def written(folder, *lines, name="own.csv"):
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def read(path, time="t", target="y", series=None):
    return read_csv_series(path, Columns(time, tuple(target.split(",")), series))


def test_the_default_series_is_what_the_shipped_file_says():
    series = load_series("sp500")
    path = Path(matplotlib.get_data_path()) / "sample_data" / "Stocks.csv"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    values = [float(row["^GSPC"]) for row in csv.DictReader(lines) if row["^GSPC"]]
    assert len(series) == len(values) > 300
    assert series.values == pytest.approx(np.log(values))
    assert series.time[0] == 1990.0
    assert series.time[6] == pytest.approx(1990.0 + 181 / 365)  # July 1, 1990
    assert (np.diff(series.time) > 0).all()


def test_a_missing_sample_file_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("matplotlib.get_data_path", lambda: str(tmp_path))
    with pytest.raises(DataError, match=r"Stocks\.csv"):
        load_series("sp500")


def test_numbers_and_gaps_of_a_csv_file(tmp_path):
    path = written(tmp_path, "y,other,t", "1.5,a,0", ",b,1", "NaN,c,2", "-2,d,4e0")
    series = read(path)
    assert series.time.tolist() == [0.0, 4.0]
    assert series.values.tolist() == [1.5, -2.0]
    assert "2 rows without a value" in series.notes[0]
    assert (series.time_label, series.target_label) == ("t", "y")


def test_dates_become_days_since_the_first_and_rows_are_sorted(tmp_path):
    path = written(tmp_path, "t,y", "2020-03-01,3", "2020-02-28T12:00,1", "2020-03-02T00:00Z,4")
    series = read(path)
    assert series.time.tolist() == [0.0, 1.5, 2.5]  # 2020 has a February 29
    assert series.values.tolist() == [1.0, 3.0, 4.0]
    assert "sorted" in series.notes[-1]


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        (["t,z", "0,1"], "'y'"),
        (["t,y", "0,1", "1,two"], "line 3.*'two'"),
        (["t,y", "0,1", "soon,2"], "line 3.*'soon'"),
        (["t,y", "0,1", "inf,2"], "line 3.*finite"),
        (["t,y", "0,1", "2020-01-01,2"], "line 3.*both"),
        (["t,y", "0,1,2"], "line 2.*columns"),
        (["t,y", "0,"], "no values"),
        (["t;y", "0;1"], "one column 't;y'.*semicolons"),
        (["t,y", "0,1e200", "1,2"], r"column 'y'.*1e\+200.*overflow"),
        (["t,y", "0,1e154", "1,1e154", "2,0"], r"column 'y'.*1e\+154.*overflow"),
        (["t,y", "0,1", "1e200,2"], r"column 't'.*overflow"),
        (["t,y", "0,0", "1,1e-200"], r"column 'y'.*1e-200.*vanishes"),
    ],
)
def test_what_a_csv_file_must_not_hold_is_named(lines, named, tmp_path):
    with pytest.raises(DataError, match=named):
        read(written(tmp_path, *lines))


def test_large_numbers_and_constants_may_be_read(tmp_path):
    assert read(written(tmp_path, "t,y", "0,1e150", "1,-1e150")).values.tolist() == [1e150, -1e150]
    assert read(written(tmp_path, "t,y", "0,3", "1,3")).values.tolist() == [3.0, 3.0]


def test_a_semicolon_in_a_name_is_one_where_the_name_is_asked_for(tmp_path):
    path = written(tmp_path, "t;s", "0", "1")
    assert read(path, time="t;s", target="t;s").values.tolist() == [0.0, 1.0]


def test_several_targets_stand_side_by_side_where_all_have_a_value(tmp_path):
    series = read(written(tmp_path, "t,y,z", "1,2,3", "0,1,", "2,4,5"), target="y,z")
    assert series.time.tolist() == [1.0, 2.0]
    assert series.values.tolist() == [[2.0, 4.0], [3.0, 5.0]]
    assert series.target_label == "y, z"
    assert len(series) == 2


def test_series_in_rows_stand_side_by_side_at_stamps_that_all_have(tmp_path):
    rows = ["t,who,y", "1,a,2", "0,b,7", "0,a,1", "1,b,3", "2,a,9"]
    series = read(written(tmp_path, *rows), series="who")
    assert series.time.tolist() == [0.0, 1.0]
    assert series.values.tolist() == [[1.0, 2.0], [7.0, 3.0]]
    assert series.target_label == "a, b"
    assert "1 stamps that not all series have" in series.notes[0]
    with pytest.raises(DataError, match="'a' has the stamp 0 twice"):
        read(written(tmp_path, *rows, "0,a,5"), series="who")
    with pytest.raises(DataError, match="no stamp that all"):
        read(written(tmp_path, "t,who,y", "0,a,1", "1,b,1"), series="who")


def test_a_missing_file_folder_or_name_is_named(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        read(tmp_path / "none.csv")
    with pytest.raises(DataError, match="--data-dir"):
        load_series("solar")
    with pytest.raises(DataError, match=r"solar_irradiance\.csv"):
        load_series("solar", tmp_path)
    with pytest.raises(DataError, match="did you mean 'solar'"):
        load_series("solarr", tmp_path)


def test_the_standard_series_have_the_sizes_of_their_protocols(shared_data):
    solar = load_series("solar", shared_data)
    assert len(solar) == 391
    assert solar.time[[0, 1, -1]] == pytest.approx([0.0, 0.1, 39.0])
    covid = load_series("covid", shared_data)
    assert len(covid) == 365
    assert (covid.values >= 0.0).all()
    assert "below zero" in covid.notes[1]
    audio = load_series("audio", shared_data)
    assert len(audio) == 11_250
    assert audio.time[4] == 1.0


def test_the_toy_series_is_two_sines_with_a_little_noise():
    toy = load_series("toy")
    truth = [math.sin(4.0 * t) + 0.5 * math.sin(11.0 * t) for t in toy.time]
    assert np.std(toy.values - truth) == pytest.approx(0.1, rel=0.15)
