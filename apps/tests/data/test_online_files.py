import gzip
import hashlib
import io
from datetime import date, timedelta
from urllib.error import URLError

import numpy as np
import pytest
from scipy.io import savemat

from probseq_apps.data import fetch
from probseq_apps.data.fetch import download_online
from probseq_apps.data.names import DataError
from probseq_apps.data.series import load_series
from probseq_apps.data.tables import load_table


@pytest.fixture
def published(monkeypatch):
    """Files by the end of their address; nothing is asked of the network."""
    files, asked = {}, []

    def answer(address, timeout):
        asked.append(address)
        for end, content in files.items():
            if address.endswith(end):
                return io.BytesIO(content)
        raise URLError("not there")

    monkeypatch.setattr(fetch, "urlopen", answer)
    files["asked"] = asked
    yield files
    assert all(address.startswith("https://raw.githubusercontent.com/") for address in asked)


def solar_text(rows):
    return ("# Lean, J.. 2004.\n# YEAR 11yrCYCLE\n" + "\n".join(rows) + "\n").encode()


def covid_text(counts):
    days = [date(2020, 2, 26) + timedelta(days=number) for number in range(len(counts))]
    rows = [f"{day:%d/%m/%Y},9,{count},7" for day, count in zip(days, counts, strict=True)]
    return "\n".join([",Brasil,Santa Catarina,Sul", ",BR,SC,(S)", *rows]).encode()


def test_solar_rows_stay_as_they_are_written(published, tmp_path, monkeypatch):
    published["solar_data.txt"] = solar_text(["1610.5, 1365.8477, 1364.7338", "1611.5, 1.10, 2.0"])
    text = "year,tsi_11yr_cycle,tsi_11yr_cycle_plus_background\n1610.5,1365.8477,1364.7338\n"
    expected = (text + "1611.5,1.10,2.0\n").encode()
    known = hashlib.sha256(expected).hexdigest()
    solar = fetch._SETS["solar"]._replace(sha256=known)
    monkeypatch.setattr(fetch, "_SETS", {"solar": solar})
    download_online("solar", tmp_path / "new")
    path = tmp_path / "new" / "solar_irradiance" / "solar_irradiance.csv"
    assert path.read_bytes() == expected
    series = load_series("solar", tmp_path / "new")
    assert series.time == pytest.approx([0.0, 0.1])
    assert series.values.tolist() == [1364.7338, 2.0]


def test_deaths_of_one_state_are_taken_from_the_table_of_all(published, tmp_path):
    counts = [*range(-1, 400), ""]  # the last day is yet to come
    published["henriquemor/covid19-Brazil-timeseries/master/transp-deaths-new.csv"] = covid_text(
        counts
    )
    download_online("covid", tmp_path)
    assert len(published["asked"]) == 2  # the address of the old name does not answer
    path = tmp_path / "covid_deaths_brazil" / "santa_catarina.csv"
    lines = path.read_text().splitlines()
    assert lines[1] == "2020-02-26,-1,-1"
    assert int(lines[-1].split(",")[2]) == sum(counts[:-1])
    series = load_series("covid", tmp_path)
    assert (len(series), series.values[0], series.values[-1]) == (365, 3.0, 367.0)


def mat(**values):
    file = io.BytesIO()
    savemat(file, values)
    return file.getvalue()


def test_the_demodulated_sub_band_is_the_envelope_of_the_carrier(published, tmp_path):
    t = np.arange(1, 220_001)
    envelope = 1.0 + 0.5 * np.sin(2 * np.pi * 1e-4 * t)  # 22 whole periods: no edge for hilbert
    y = envelope * np.cos(2 * np.pi * 0.01 * t)
    published["audio_subband.mat"] = mat(y=y[:, None], fs=16000, mu=0.01, W=0.003)
    download_online("audio", tmp_path)
    with np.load(tmp_path / "audio_subband" / "audio_subband.npz") as arrays:
        assert np.array_equal(arrays["y"], y)
        assert (arrays["fs"], arrays["mu"], arrays["W"]) == (16000, 0.01, 0.003)
        demodulated = arrays["demodulated"]
    assert (demodulated.shape, demodulated.dtype) == ((50_000,), np.float32)
    inner = slice(20, -20)  # the filter's ends
    assert np.abs(demodulated - envelope[8000:208_000:4])[inner].max() < 2e-3
    assert len(load_series("audio", tmp_path)) == 11_250


def test_skillcraft_has_its_masks_as_columns(published, tmp_path):
    pytest.importorskip("pyarrow")
    published["skillcraft/data.csv.gz"] = gzip.compress(b"1.5,2,3\n4,5,6e-5\n")
    published["skillcraft/test_mask.csv.gz"] = gzip.compress(b"1,0\n0,1\n")
    download_online("skillcraft", tmp_path)
    table = load_table("skillcraft", tmp_path, seed=1)
    assert (table.x.tolist(), table.y.tolist()) == ([[1.5, 2.0], [4.0, 5.0]], [3.0, 6e-5])
    assert (table.columns, table.test.tolist()) == (("x0", "x1"), [False, True])


def test_power_plant_has_its_test_rows_by_number(published, tmp_path):
    pytest.importorskip("pyarrow")
    published["data.txt"] = b"8.34 40.77 1010.84 90.01 480.48\n23.64 58.49 1011.4 74.2 445.75\n"
    for number in range(20):
        published[f"index_test_{number}.txt"] = b"%d.0e+00\n" % (number % 2)
    download_online("powerplant", tmp_path)
    table = load_table("powerplant", tmp_path, seed=3)
    assert table.x[1].tolist() == [23.64, 58.49, 1011.4, 74.2]
    assert table.y.tolist() == [480.48, 445.75]
    assert table.test.tolist() == [False, True]
    assert "exhaust_vacuum" in table.columns


def test_what_is_there_is_not_fetched_and_what_does_not_answer_is_named(published, tmp_path):
    path = tmp_path / "solar_irradiance" / "solar_irradiance.csv"
    path.parent.mkdir()
    path.write_text("mine\n")
    download_online("solar", tmp_path)
    assert path.read_text() == "mine\n"
    assert not published["asked"]
    with pytest.raises(DataError, match=r"tsgp/.*not there.*audio_subband\.npz by hand"):
        download_online("audio", tmp_path)
    with pytest.raises(DataError, match="'sp500' is not fetched: download is for solar"):
        download_online("sp500", tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("solar", solar_text(["1610.5, 1365.8477, 1364.7338"]), "SHA-256"),
        ("covid", covid_text([1] * 100), "2021-02-28"),
        ("covid", covid_text([1] * 400).replace(b"27/02", b"28/02"), "follow each other"),
        ("covid", b"<html>", r"published of 'covid' \(make .*santa_catarina\.csv by hand\)"),
        ("audio", mat(y=np.ones(9), mu=1.0), "y must have 208,000 samples"),
        ("skillcraft", b"version https://git-lfs.github.com/spec/v1\n", "cannot be read as what"),
    ],
)
def test_what_was_not_published_is_refused_and_not_kept(
    published, tmp_path, name, content, message
):
    pytest.importorskip("pyarrow")
    published[""] = content
    with pytest.raises(DataError, match=message):
        download_online(name, tmp_path)
    assert not list(tmp_path.iterdir())
