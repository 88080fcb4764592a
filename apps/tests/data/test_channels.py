"""Moving pictures, and CSV files of many channels."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from probseq_apps.data.channels import moving_digits, read_csv_channels
from probseq_apps.data.names import DataError


def test_frames_are_a_real_picture_that_keeps_its_ink() -> None:
    film = moving_digits(60)
    assert film.frame == (16, 16)
    assert film.values.shape == (60, 256)
    assert film.values.min() >= 0.0
    assert film.values.max() <= 1.0
    ink = film.values.sum(1)
    images = load_digits(return_X_y=True)[0] / 16.0
    # Interpolation between pixels moves ink and loses none inside the canvas.
    assert np.allclose(ink, ink[0], rtol=1e-6)
    assert np.isclose(images.sum(1), ink[0]).any()


def test_motion_is_smooth_and_wide() -> None:
    film = moving_digits(200).values.reshape(200, 16, 16)
    rows, columns = np.arange(16)[:, None], np.arange(16)[None, :]
    ink = film.sum((1, 2))
    centre = np.stack([(film * axis).sum((1, 2)) / ink for axis in (rows, columns)], axis=1)
    assert np.abs(np.diff(centre, axis=0)).max() < 1.0
    assert (np.ptp(centre, axis=0) > 3.0).all()


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_all_columns_but_time_are_channels(tmp_path: Path) -> None:
    found = read_csv_channels(write(tmp_path / "a.csv", "u,time,v\n1,0.5,2\n3,1.5,4\n"))
    assert found.channels == ("u", "v")
    assert found.time.tolist() == [0.5, 1.5]
    assert found.values.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert found.frame is None


def test_dates_become_hours_and_rows_are_sorted(tmp_path: Path) -> None:
    text = "when\tu\n2020-01-01T03:00\t3\n2020-01-01T00:00\t1\n2020-01-02\t4\n"
    found = read_csv_channels(write(tmp_path / "a.tsv", text), time_column="when")
    assert found.time.tolist() == [0.0, 3.0, 24.0]
    assert found.values[:, 0].tolist() == [1.0, 3.0, 4.0]
    assert found.notes == ("rows are sorted by time",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time,u\n0,1\n1,\n", "line 3: channel 'u' is empty, and every channel needs a value"),
        ("time,u\n0,warm\n", "line 2: channel 'u': a value must be a number, got 'warm'"),
        ("time,u\n0,nan\n", "a value must be finite"),
        ("time,u\nnoon,1\n", "line 2: a time stamp must be a number or an ISO date"),
        ("time,u\n0,1\n2020-01-01,2\n", "line 3: column 'time' must hold numbers or dates"),
        ("time,u\n0,1,2\n", "line 2: expected 2 columns, got 3"),
        ("hour,u\n0,1\n", "needs one column 'time'"),
        ("time\n0\n", "at least one channel"),
        ("time,u,u\n0,1,2\n", "needs one column 'u' for the channel"),
        ("time,u\n", "a header and no rows"),
        ("", "needs one column 'time'"),
    ],
)
def test_bad_files_are_refused_with_line_and_column(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read_csv_channels(write(tmp_path / "bad.csv", text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.csv does not exist"):
        read_csv_channels(tmp_path / "none.csv")
