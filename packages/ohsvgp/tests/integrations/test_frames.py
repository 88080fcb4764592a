"""Forecasts of the series of a table."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import minimize_scalar

from ohsvgp import Fading, Gaussian, LegS, OnlineGP, Poisson, Refit, forecast
from ohsvgp.exact import log_marginal_likelihood
from ohsvgp.integrations.frames import forecast_groups
from probseq.kernels import RBF

AHEAD = ["mean", "low", "high"]
COLUMNS: dict[str, Any] = {"time": "t", "target": "y", "horizon": 3}


def model(lengthscale: float = 5.0) -> OnlineGP:
    return OnlineGP(RBF(1, lengthscale=lengthscale), Gaussian(0.1), LegS(20))


def series(name: str, count: int = 40, seed: int = 0, **columns: Any) -> pd.DataFrame:
    noise = np.random.default_rng(seed).normal(size=count)
    t = np.arange(float(count))
    y = 50 * (1 + seed) + np.sin(t / (2 + seed)) + 0.2 * noise
    return pd.DataFrame({"name": name, "t": t, "y": y} | columns)


def table(*names: str) -> pd.DataFrame:
    parts = [series(name, seed=seed) for seed, name in enumerate(names)]
    return pd.concat(parts).sample(frac=1.0, random_state=0)


@pytest.mark.parametrize("models", [model(), [model(2.0), model(20.0)], None])
def test_series_of_one_table_are_forecast_as_each_alone(models: Any) -> None:
    frame = table("a", "b", "c")
    frame.loc[(frame["name"] != "b") & frame["t"].isin([3.0, 39.0]), "y"] = np.nan
    together = forecast_groups(frame, by="name", model=models, **COLUMNS)
    alone = [
        forecast_groups(frame[frame["name"] == name], by="name", model=models, **COLUMNS)
        for name in "abc"
    ]
    np.testing.assert_allclose(together[AHEAD], pd.concat(alone)[AHEAD], rtol=1e-10)
    assert together["name"].tolist() == [*"aaabbbccc"]
    assert together["t"].tolist() == 3 * [40.0, 41.0, 42.0]  # after missing values too
    assert set(together["reason"]) == {""}


def test_a_forecast_is_that_of_an_online_gp_at_the_scale_of_greatest_evidence() -> None:
    frame = series("a")
    ahead = forecast_groups(frame, model=model(), **COLUMNS)
    centre = frame["y"].mean()
    t, y = torch.tensor(frame["t"]), torch.tensor(frame["y"] - centre)
    kernel = RBF(1, lengthscale=5.0).double()

    def evidence(scale: float) -> float:
        value = log_marginal_likelihood(kernel, 0.1, t[:, None], y / scale) - 40 * np.log(scale)
        return float(value.detach())

    best = minimize_scalar(lambda scale: -evidence(scale), (0.5, 1.0), tol=1e-10).x
    gp = model()
    gp.update(t, y / best)
    expected = forecast(gp, 3)
    np.testing.assert_allclose(ahead["mean"], centre + best * expected.mean, rtol=1e-6)
    low, high = expected.interval(0.95)
    np.testing.assert_allclose(
        ahead[["low", "high"]].T - centre, best * torch.stack([low, high]), rtol=1e-3
    )


def test_each_series_takes_the_model_of_greatest_evidence() -> None:
    t = np.arange(60.0)
    quick, slow = (series(name, 60, y=np.sin(t / pace)) for name, pace in (("q", 1.0), ("s", 12.0)))
    frame = pd.concat([quick, slow])
    short, long = model(1.5), model(15.0)
    both = forecast_groups(frame, by="name", model=[short, long], **COLUMNS)
    expected = [
        forecast_groups(part, by="name", model=one, **COLUMNS)
        for part, one in ((quick, short), (slow, long))
    ]
    np.testing.assert_allclose(both[AHEAD], pd.concat(expected)[AHEAD], rtol=1e-10)


def test_default_models_forecast_swings_lines_and_wandering_levels() -> None:
    random, t = np.random.default_rng(0), np.arange(150.0)
    paths = {
        "level": random.normal(size=(20, 150)),
        "line": t * random.normal(size=(20, 1)) + random.normal(size=(20, 150)),
        "swing": 5 * np.sin(t / 8 + random.normal(size=(20, 1))) + random.normal(size=(20, 150)),
        "walk": random.normal(size=(20, 150)).cumsum(-1),
    }
    for kind, y in paths.items():
        count = len(y)
        frame = pd.DataFrame(
            {"name": np.repeat(range(count), 140), "t": np.tile(t[:140], count)}
        ).assign(y=y[:, :140].ravel())
        ahead = forecast_groups(frame, by="name", time="t", target="y", horizon=10)
        truth, naive = y[:, 140:].ravel(), np.repeat(y[:, 139], 10)
        covered = ((ahead["low"] <= truth) & (truth <= ahead["high"])).mean()
        assert 0.85 < covered <= 0.99, kind
        error = np.abs(truth - ahead["mean"]).mean() / np.abs(truth - naive).mean()
        assert error < (1.05 if kind == "walk" else 0.85), kind


def test_a_series_that_cannot_be_forecast_says_why_and_stops_no_other() -> None:
    parts = [
        series("constant", y=7.0),
        series("endless", y=np.inf),
        series("fine"),
        series("missing", y=np.nan),
        series("once", t=3.0),
        series("short", count=9),
        series("unknown").assign(t=lambda part: part["t"].where(part["t"] != 8.0)),
    ]
    ahead = forecast_groups(pd.concat(parts), by="name", model=model(), **COLUMNS)
    rows = dict(iter(ahead.groupby("name")))
    assert (rows["constant"][AHEAD] == 7.0).all(axis=None)
    assert rows["constant"]["t"].tolist() == [40.0, 41.0, 42.0]
    assert set(rows["constant"]["reason"]) == {"all values are equal"}
    alone = forecast_groups(parts[2], by="name", model=model(), **COLUMNS)
    pd.testing.assert_frame_equal(rows["fine"].reset_index(drop=True), alone)
    reasons = {
        "endless": "values must lie within ±1e+100",
        "missing": "0 values are too few: 10 are needed",
        "once": "all stamps are the same",
        "short": "9 values are too few: 10 are needed",
        "unknown": "stamps are missing",
    }
    for name, reason in reasons.items():
        (row,) = rows[name].to_dict("records")
        assert row["reason"] == reason, name
        assert np.isnan([row[column] for column in AHEAD]).all(), name
    assert rows["short"]["t"].tolist() == [8.0]


def test_counts_are_learned_as_they_are_and_refused_one_by_one() -> None:
    good = series("good", y=np.random.default_rng(0).poisson(5.0, 40).astype(float))
    bad = series("bad", y=good["y"] - 20)
    counts = OnlineGP(RBF(1, lengthscale=20.0), Poisson(), LegS(10))
    ahead = forecast_groups(pd.concat([bad, good]), by="name", model=counts, **COLUMNS)
    assert "y must" in ahead["reason"][0]
    gp = OnlineGP(RBF(1, lengthscale=20.0), Poisson(), LegS(10))
    gp.update(good["t"].to_numpy(), good["y"].to_numpy())
    np.testing.assert_allclose(ahead["mean"][1:], forecast(gp, 3).mean, rtol=1e-8)


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_stamps_go_on_as_the_calendar_does_in_their_own_zone(zone: str | None) -> None:
    months = pd.date_range("2020-01-31", periods=24, freq="ME")
    hours = pd.date_range("2024-03-30 12:00", periods=24, freq="h", tz=zone)
    if zone is None:
        ahead = forecast_groups(series("a", 24, t=months), model=model(), **COLUMNS)
        assert [str(stamp.date()) for stamp in ahead["t"]] == [
            "2022-01-31",
            "2022-02-28",
            "2022-03-31",
        ]
    ahead = forecast_groups(series("a", 24, t=hours), model=model(), **COLUMNS)
    assert ahead["t"].dtype.kind == "M"
    assert ahead["t"].tolist() == pd.date_range(hours[-1], periods=4, freq="h")[1:].tolist()


def test_several_columns_name_a_series_and_an_empty_table_has_none() -> None:
    frame = table("a", "b").assign(place=lambda rows: np.where(rows["t"] % 2 == 0, "x", "y"))
    ahead = forecast_groups(frame, by=["place", "name"], model=model(), **COLUMNS)
    pairs = [(row.place, row.name_) for row in ahead.rename(columns={"name": "name_"}).itertuples()]
    assert pairs[::3] == [("x", "a"), ("x", "b"), ("y", "a"), ("y", "b")]
    empty = forecast_groups(frame[:0], by=["place", "name"], model=model(), **COLUMNS)
    assert empty.columns.tolist() == ahead.columns.tolist()
    assert len(empty) == 0


def learned() -> OnlineGP:
    gp = model()
    gp.update([0.0], [1.0])
    return gp


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"by": "sensor"}, "frame must have a column 'sensor', got"),
        ({"time": "name"}, r"column 'name' must hold dates or numbers \(pandas.to_datetime"),
        ({"target": "name"}, "column 'name' must hold numbers, got"),
        ({"horizon": 0}, "horizon must be a whole number of at least 1, got 0"),
        ({"model": learned()}, "without data and without refit, got one of dim 1 with 1 updates"),
        (
            {"model": OnlineGP(RBF(1), Gaussian(0.1), LegS(9), refit=Refit())},
            "model must be of times, without data and without refit",
        ),
        (
            {"model": [model(), OnlineGP(RBF(1), Poisson(), Fading(9))]},
            "model must be a single one unless all have Gaussian noise, got Poisson among several",
        ),
        ({"model": []}, "model must be one or several, got none"),
    ],
)
def test_bad_arguments_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        forecast_groups(table("a"), **(COLUMNS | {"by": "name"} | changes))


def test_pandas_and_dask_apply_it_to_groups() -> None:
    frame = table("a", "b").sort_values(["name", "t"])
    whole = forecast_groups(frame, by="name", model=model(), **COLUMNS)
    options = COLUMNS | {"model": model()}
    applied = frame.groupby("name").apply(forecast_groups, **options)
    pd.testing.assert_frame_equal(applied.reset_index(0).reset_index(drop=True), whole)
    dask = pytest.importorskip("dask.dataframe", reason="needs dask")
    parts = dask.from_pandas(frame.reset_index(drop=True), npartitions=2)
    empty = whole[:0].drop(columns="name")
    lazy = parts.groupby("name").apply(forecast_groups, meta=empty, **options)
    result = lazy.compute(scheduler="sync").reset_index(level=0).sort_values(["name", "t"])
    np.testing.assert_allclose(result[AHEAD], whole[AHEAD], rtol=1e-10)


@pytest.mark.slow  # Ray takes seconds to start
@pytest.mark.filterwarnings("ignore")
def test_ray_maps_it_over_groups() -> None:
    ray = pytest.importorskip("ray", reason="needs ray[data]")
    data = pytest.importorskip("ray.data", reason="needs ray[data]")
    frame = table("a", "b")
    options = COLUMNS | {"by": "name", "model": model()}
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        groups = data.from_pandas(frame).groupby("name", num_partitions=1)
        mapped = groups.map_groups(forecast_groups, fn_kwargs=options, batch_format="pandas")
        result = mapped.to_pandas().sort_values(["name", "t"])
    finally:
        ray.shutdown()
    np.testing.assert_allclose(
        result[AHEAD].astype(float), forecast_groups(frame, **options)[AHEAD], rtol=1e-10
    )
