"""Processes as models of river."""

import math
import pickle
from datetime import date, datetime, timedelta

import numpy as np
import pytest
from river import checks, compat, compose, datasets, dummy, evaluate, metrics, preprocessing, stats

from ohsvgp.integrations.live import LiveStream
from ohsvgp.integrations.river import RiverForecaster
from ohsvgp.integrations.sklearn import OnlineGPRegressor

ALONE = {"check_learn_one", "check_forecast"}  # other variables are refused by name


def rows(n: int = 40) -> list[tuple[dict[str, float], float]]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 2))
    return [({"b": b, "a": a}, 4 + math.sin(a) + b) for a, b in x.tolist()]


@pytest.mark.slow
def test_checks_of_river_pass_but_for_those_with_a_reason(plain_calls) -> None:
    model, refused, passed = RiverForecaster(), set(), 0
    for check in checks.yield_checks(model):
        if check.__name__ in ALONE:
            with pytest.raises(ValueError, match="x must"):
                check(model.clone())
            refused.add(check.__name__)
        else:
            check(model.clone())
            passed += 1
    assert refused == ALONE
    assert passed >= 14


def test_river_itself_takes_the_estimator_as_a_regressor() -> None:
    def error(model) -> float:
        pipeline = compose.Pipeline(preprocessing.StandardScaler(), model)
        return evaluate.progressive_val_score(rows(80), pipeline, metrics.MAE()).get()

    learned = error(compat.convert_sklearn_to_river(OnlineGPRegressor(fit_steps=10)))
    assert learned < 0.5 * error(dummy.StatisticRegressor(stats.Mean()))


def test_a_pickled_forecaster_goes_on_as_the_other() -> None:
    model = RiverForecaster()
    for k in range(40):
        model.learn_one(float(k % 5))
    model.forecast(3)
    twin = pickle.loads(pickle.dumps(model))
    for each in (model, twin):
        each.learn_one(0.5)
    assert twin.forecast(3) == model.forecast(3)


def test_refusals_name_what_came_and_leave_the_model_as_it_was() -> None:
    model = RiverForecaster(warmup=5)
    for k in range(12):
        model.learn_one(float(k % 3), {"t": k})
    before = model.forecast(1, xs=[{"t": 12}])
    for y, x, words in (
        (1.0, {"t": 12, "other": 1.0}, r"x must be a stamp as before \(\['t'\]\)"),
        (1.0, {"t": math.nan}, "x must be a finite number, got nan"),
        (1.0, {"t": "2024-01-01"}, "stamps must be numbers like those before"),
        ("1", {"t": 12}, "y must be a finite number, got '1'"),
        (math.inf, {"t": 12}, "y must be a finite number, got inf"),
    ):
        with pytest.raises(ValueError, match=words):
            model.learn_one(y, x)
        assert model.forecast(1, xs=[{"t": 12}]) == before
    with pytest.raises(ValueError, match="warmup must be"):
        RiverForecaster(warmup=0)


def test_a_forecaster_continues_trends_and_waves_it_has_found() -> None:
    model, k = RiverForecaster(), np.arange(170)
    truth = 7 + 0.1 * k + 5 * np.sin(2 * math.pi * k / 24)
    y = truth + 0.2 * np.random.default_rng(0).normal(size=170)
    for value in y[:140].tolist():
        model.learn_one(value)
    forecast = model.forecast(30)
    assert 0.15 < model.forecast(1, with_dist=True)[0].stdev < 0.4
    assert all(isinstance(mean, float) for mean in forecast)
    assert np.abs(np.array(forecast) - truth[140:]).mean() < 0.5
    stream = LiveStream(horizon=30)
    *_, last = [stream.answer(f"{t},{value!r}") or {} for t, value in enumerate(y[:140].tolist())]
    assert forecast == [row["mean"] for row in last["forecasts"]]


@pytest.mark.slow
def test_evaluations_hand_a_forecaster_its_stamps():
    model = RiverForecaster(warmup=36)
    stream = list(datasets.AirlinePassengers())  # which closes its file
    found = evaluate.evaluate(stream, model, metrics.MAE(), horizon=2)
    assert all(0 < error < 300 for error in np.ravel(found.get()))
    ahead = model.forecast(1, xs=[{"month": date(1961, 1, 1)}])
    assert np.isfinite(ahead).all()


def test_a_forecaster_takes_dates_numbers_and_gaps():
    by_date, by_text, by_number = (RiverForecaster(warmup=20) for _ in range(3))
    for k in range(80):
        y = None if k in (5, 30) else math.sin(k / 5)
        day = date(2024, 1, 1) + timedelta(days=2 * k)
        by_date.learn_one(y, {"day": day})
        by_text.learn_one(y, {"day": day.isoformat()})  # as river's `iter_csv` hands it
        by_number.learn_one(y, {"t": np.float32(2 * k)})
    (first,) = by_date.forecast(1, xs=[{"day": datetime(2024, 1, 1) + timedelta(days=161)}])
    (second,) = by_number.forecast(1, xs=[{"t": 161}])
    assert first == pytest.approx(second, abs=1e-3)
    assert by_text.forecast(1, xs=[{"day": "2024-06-10"}]) == [first]
    assert first == pytest.approx(math.sin(80.5 / 5), abs=0.1)
    for xs in (None, [{"t": 1, "other": 2}], [{"other": 1}], [{}], [{"t": "soon"}]):
        with pytest.raises(ValueError, match=r"x|stamp"):
            by_number.forecast(1, xs=xs)
    with pytest.raises(ValueError, match="xs must hold 2 stamps, got 1"):
        by_number.forecast(2, xs=[{"t": 161}])
