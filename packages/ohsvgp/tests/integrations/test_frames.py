"""Forecasts of the groups of a table, alone and by the engines that cut it."""

import shutil
from datetime import date, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ohsvgp.integrations.frames import forecast_group
from ohsvgp.integrations.live import LiveStream

AHEAD = ["mean", "low", "high"]
COLUMNS: dict[str, Any] = {"time": "t", "target": "y", "horizon": 3}


def series(name: str, count: int = 40, seed: int = 0, **columns: Any) -> pd.DataFrame:
    noise = np.random.default_rng(seed).normal(size=count)
    t = np.arange(float(count))
    y = 50 * (1 + seed) + np.sin(t / (2 + seed)) + 0.2 * noise
    return pd.DataFrame({"name": name, "t": t, "y": y} | columns)


def table() -> pd.DataFrame:
    parts = [series(name, seed=seed) for seed, name in enumerate("ab")]
    return pd.concat(parts, ignore_index=True)


def each() -> pd.DataFrame:
    rows = [series(name, seed=seed) for seed, name in enumerate("ab")]
    options = COLUMNS | {"by": ["name"]}
    return pd.concat([forecast_group(part, **options) for part in rows], ignore_index=True)


def test_a_forecast_is_that_of_a_live_stream_in_any_order_of_rows() -> None:
    frame = series("a", 60, y=np.random.default_rng(1).normal(size=60).cumsum())
    frame.loc[frame["t"].isin([33.0, 59.0]), "y"] = np.nan
    ahead = forecast_group(frame.sample(frac=1.0, random_state=0), **COLUMNS)
    assert ahead["t"].tolist() == [60.0, 61.0, 62.0]  # after missing values too
    assert set(ahead["reason"]) == {""}
    stream = LiveStream(horizon=3, warmup=10, seasons=None)
    rows = zip(frame["t"].tolist(), frame["y"].tolist(), strict=True)
    *_, last = [stream.answer(f"{t},{y!r}") or {} for t, y in rows]
    expected = pd.DataFrame(last["forecasts"])[AHEAD]
    np.testing.assert_allclose(ahead["mean"].to_numpy(float), expected["mean"], rtol=1e-3)


def test_seasons_are_found() -> None:
    t = np.arange(240)
    y = 20 + 5 * np.sin(2 * np.pi * t / 24) + 0.5 * np.random.default_rng(0).normal(size=240)
    stamps = np.datetime64("2024-01-01") + t * np.timedelta64(1, "h")
    frame = pd.DataFrame({"t": stamps[:-24], "y": y[:-24]})
    ahead = forecast_group(frame, time="t", target="y", horizon=24)
    assert np.abs(ahead["mean"] - y[-24:]).mean() < 0.8
    assert set(ahead["season"]) == {"1d"}
    same = forecast_group(frame, time="t", target="y", horizon=24, seasons=np.array([86_400]))
    np.testing.assert_array_equal(same[AHEAD], ahead[AHEAD])
    none = forecast_group(frame, time="t", target="y", horizon=24, seasons=None)
    assert np.abs(none["mean"] - y[-24:]).mean() > 2.0
    assert set(none["season"]) == {""}
    for second, words in (
        (np.inf, r"\[1\] must be positive and finite, got inf"),
        (86_400.0, " must differ"),
    ):
        with pytest.raises(ValueError, match=f"seasons{words}"):
            forecast_group(frame, time="t", target="y", horizon=24, seasons=[86_400.0, second])
    (row,) = forecast_group(series("a"), seasons=[1.5], **COLUMNS).to_dict("records")
    assert row["reason"] == "seasons must be at least two steps of 1"
    (row,) = forecast_group(series("a"), likelihood="poisson", **COLUMNS).to_dict("records")
    assert "counts" in row["reason"]


def test_default_models_forecast_swings_lines_and_wandering_levels() -> None:
    random, t = np.random.default_rng(0), np.arange(150.0)
    paths = {
        "level": random.normal(size=(10, 150)),
        "line": t * random.normal(size=(10, 1)) + random.normal(size=(10, 150)),
        "swing": 5 * np.sin(t / 8 + random.normal(size=(10, 1))) + random.normal(size=(10, 150)),
        "walk": random.normal(size=(10, 150)).cumsum(-1),
    }
    for kind, rows in paths.items():
        answers = [
            forecast_group(
                pd.DataFrame({"t": t[:140], "y": y[:140]}), time="t", target="y", horizon=10
            )
            for y in rows
        ]
        ahead = pd.concat(answers)
        truth, naive = rows[:, 140:].ravel(), np.repeat(rows[:, 139], 10)
        covered = ((ahead["low"] <= truth) & (truth <= ahead["high"])).mean()
        assert 0.75 < covered <= 1.0, kind
        error = np.abs(truth - ahead["mean"]).mean() / np.abs(truth - naive).mean()
        assert error < (1.05 if kind in ("walk", "swing") else 0.85), kind


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (series("a", y=[np.inf, -1e200] * 20), "values must be at least 10, within ±1e+100, got 0"),
        (series("a", y=np.nan), "values must be at least 10, within ±1e+100, got 0"),
        (series("a", t=3.0), "stamps are missing, or all the same"),
        (series("a", count=9), "values must be at least 10, within ±1e+100, got 9"),
        (series("a").assign(t=lambda part: part["t"].where(part["t"] != 8.0)), "stamps are miss"),
    ],
)
def test_a_series_that_cannot_be_forecast_says_why(frame: pd.DataFrame, reason: str) -> None:
    (row,) = forecast_group(frame, by=["name"], **COLUMNS).to_dict("records")
    assert row["reason"].startswith(reason)
    assert row["name"] == "a"
    assert np.isnan([row[column] for column in AHEAD]).all()


@pytest.mark.parametrize("start", ["1610-01-01", "2500-01-01", "9999-10-01"])
def test_dates_of_any_year_are_forecast_as_those_of_now(start: str) -> None:
    days = np.arange(40) * np.timedelta64(1, "D")
    far, now = (
        forecast_group(series("a", t=np.datetime64(first, "s") + days), **COLUMNS)
        for first in (start, "2023-07-04")
    )
    np.testing.assert_array_equal(far[AHEAD], now[AHEAD])
    assert (far["t"].to_numpy()[0] - np.datetime64(start, "s")).astype(int) == 40 * 86_400
    of_python = series("a", 20, t=[date(2500, 1, 1) + timedelta(days=k) for k in range(20)])
    assert str(forecast_group(of_python, **COLUMNS)["t"][2]) == "2500-01-23 00:00:00"


def test_stamps_beyond_what_a_column_holds_are_no_stamps_of_the_past() -> None:
    t = np.datetime64("2262-03-02", "ns") + np.arange(40) * np.timedelta64(1, "D")
    (row,) = forecast_group(series("a", t=t), **COLUMNS).to_dict("records")
    assert "3 stamps after 2262-04-10" in row["reason"]


def test_columns_that_the_answer_would_overwrite_are_refused() -> None:
    frame = series("a", low=1.0)
    for time, by, words in (
        ("low", [], "none of mean, low, high, season, reason"),
        ("t", ["low"], "none of mean, low, high, season, reason"),
        ("t", ["t"], "each be another column"),
        ("t", "name", "the list by"),
        ("t", ["other"], "must be columns"),
        ("name", [], "dates or numbers"),
    ):
        with pytest.raises(ValueError, match=words):
            forecast_group(frame, time=time, target="y", horizon=1, by=by)


def test_days_and_months_go_on_by_the_local_clock() -> None:
    # Over a change of clocks, and 23:00 of the day before in UTC.
    for start, freq in (("2024-03-12", "D"), ("2023-10-01", "MS")):
        stamps = pd.date_range(start, periods=23, freq=freq, tz="Europe/Berlin")
        ahead = forecast_group(series("a", 20, t=stamps[:20]), **COLUMNS)
        assert ahead["t"].tolist() == stamps[20:].tolist()


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_stamps_go_on_as_the_calendar_does_in_their_own_zone(zone: str | None) -> None:
    months = pd.date_range("2020-01-31", periods=24, freq="ME")
    hours = pd.date_range("2024-03-30 12:00", periods=24, freq="h", tz=zone)
    if zone is None:
        ahead = forecast_group(series("a", 24, t=months), **COLUMNS)
        days = [str(stamp.date()) for stamp in ahead["t"]]
        assert days == ["2022-01-31", "2022-02-28", "2022-03-31"]
        weeks = pd.period_range("2024-01-01", periods=27, freq="W")
        ahead = forecast_group(series("a", 24, t=weeks[:24]), **COLUMNS)
        assert ahead["t"].tolist() == weeks[24:].to_timestamp().tolist()
    ahead = forecast_group(series("a", 24, t=hours), **COLUMNS)
    assert ahead["t"].tolist() == pd.date_range(hours[-1], periods=4, freq="h")[1:].tolist()


def check(answer: Any) -> None:
    found = answer.sort_values(["name", "t"], ignore_index=True)
    expected = each()
    np.testing.assert_allclose(found[AHEAD].astype(float), expected[AHEAD], rtol=1e-10)
    assert found["name"].tolist() == expected["name"].tolist()


def test_pandas_applies_it_to_groups() -> None:
    applied = table().groupby("name").apply(forecast_group, **COLUMNS)
    check(applied.reset_index("name"))


def test_dask_applies_it_to_groups() -> None:
    dask = pytest.importorskip("dask.dataframe", reason="needs dask[dataframe]")
    groups = dask.from_pandas(table(), npartitions=2).groupby("name")
    meta = each()[:0].drop(columns="name")
    lazy = groups.apply(forecast_group, meta=meta, **COLUMNS)
    check(lazy.compute(scheduler="sync").reset_index("name"))


@pytest.mark.slow  # Ray takes seconds to start
@pytest.mark.filterwarnings("ignore")
def test_ray_maps_it_over_groups() -> None:
    ray = pytest.importorskip("ray", reason="needs ray[data]")
    data = pytest.importorskip("ray.data", reason="needs ray[data]")
    options = COLUMNS | {"by": ["name"]}
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        groups = data.from_pandas(table()).groupby("name", num_partitions=1)
        mapped = groups.map_groups(forecast_group, fn_kwargs=options, batch_format="pandas")
        check(mapped.to_pandas())
    finally:
        ray.shutdown()


@pytest.mark.slow  # as Java does
@pytest.mark.filterwarnings("ignore")
def test_spark_applies_it_to_groups() -> None:
    sql = pytest.importorskip("pyspark.sql", reason="needs pyspark[sql]")
    if shutil.which("java") is None:
        pytest.skip("needs Java")
    options = COLUMNS | {"by": ["name"]}
    schema = "name string, t double, mean double, low double, high double, "
    schema += "season string, reason string"
    settings = {"spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"}
    session = sql.SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
    try:
        rows = session.createDataFrame(table()).groupBy("name")
        ahead = rows.applyInPandas(lambda group: forecast_group(group, **options), schema)
        check(ahead.toPandas())
    finally:
        session.stop()
