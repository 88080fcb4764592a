"""Processes as models of river."""

import math
from datetime import date, datetime, timedelta
from statistics import NormalDist

import numpy as np
import pytest
from river import (
    checks,
    compose,
    datasets,
    dummy,
    evaluate,
    metrics,
    preprocessing,
    stats,
)

from ohsvgp import (
    Gaussian,
    LegS,
    Seasonal,
    Trend,
)
from ohsvgp.integrations.river import RiverForecaster, RiverRegressor
from ohsvgp.integrations.sklearn import OnlineGPRegressor
from probseq.kernels import RBF

FEATURES = "a kernel needs every column: a dict of other features is refused by name"
ALONE = "other variables are not learned from, and refused by name"
EXPECTED = {
    "RiverRegressor": {
        "check_emerging_features": FEATURES,
        "check_disappearing_features": FEATURES,
        "check_radically_disappearing_features": FEATURES,
    },
    "RiverForecaster": {"check_learn_one": ALONE, "check_forecast": ALONE},
}


def fixed(**more) -> OnlineGPRegressor:
    """For points, with given hyperparameters."""
    return OnlineGPRegressor(kernel=RBF(2), likelihood=Gaussian(0.01), fit_steps=0, **more)


def rows(n: int = 40) -> list[tuple[dict[str, float], float]]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 2))
    return [({"b": b, "a": a}, 4 + math.sin(a) + b) for a, b in x.tolist()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", [RiverRegressor(OnlineGPRegressor(fit_steps=5)), RiverForecaster()]
)
def test_checks_of_river_pass_but_for_those_with_a_reason(model, plain_calls) -> None:
    refused, passed = set(), 0
    for check in checks.yield_checks(model):
        if check.__name__ in EXPECTED[type(model).__name__]:
            with pytest.raises(ValueError, match="x must"):
                check(model.clone())
            refused.add(check.__name__)
        else:
            check(model.clone())
            passed += 1
    assert refused == set(EXPECTED[type(model).__name__])
    assert passed >= 14


def test_rows_are_learned_as_the_estimator_learns_them() -> None:
    model, expected = RiverRegressor(fixed(), warmup=10), fixed()
    data = rows()
    for x, y in data:
        model.learn_one(x, y)
    # Columns are in the order of their names.
    X = [[x["a"], x["b"]] for x, _ in data]
    expected.fit(X[:10], [y for _, y in data[:10]])
    for row, (_, y) in zip(X[10:], data[10:], strict=True):
        expected.partial_fit([row], [y])

    mean, std = expected.predict([[0.3, -0.2]], return_std=True)
    found = model.predict_one({"b": -0.2, "a": 0.3}, with_dist=True)
    assert found == NormalDist(mean[0], std[0])
    assert model.predict_one({"a": 0.3, "b": -0.2}) == mean[0]


@pytest.mark.slow
def test_a_regressor_works_in_pipelines_and_evaluations_of_river() -> None:
    def error(model) -> float:
        pipeline = compose.Pipeline(preprocessing.StandardScaler(), model)
        return evaluate.progressive_val_score(rows(150), pipeline, metrics.MAE()).get()

    learned = error(RiverRegressor(fixed(), warmup=20))
    assert learned < 0.5 * error(dummy.StatisticRegressor(stats.Mean()))


def test_a_forecaster_continues_trends_and_waves() -> None:
    regressor = OnlineGPRegressor(
        mean=Trend(3.0, 3.0) + Seasonal(8 * math.pi, 1), basis=LegS(40), rebase="grow:1.05"
    )
    model = RiverForecaster(regressor, warmup=60)
    truth = 7 + 0.1 * np.arange(130) + np.sin(np.arange(130) / 4)
    for y in truth[:120]:
        model.learn_one(y)
    forecast = model.forecast(10)
    assert all(isinstance(mean, float) for mean in forecast)
    np.testing.assert_allclose(forecast, truth[120:], atol=0.05)
    assert model._model.gp_.growth == 1.05
    assert not hasattr(regressor, "gp_")


@pytest.mark.parametrize("factor", [0.01, 100.0])
def test_a_forecaster_tells_of_the_deviation_of_the_latest_values(factor) -> None:
    model, noise = RiverForecaster(warmup=20), np.random.default_rng(0).normal(size=80)
    for k, value in enumerate(noise):
        model.learn_one(float(value if k < 20 else factor * value))
    (ahead,) = model.forecast(1, with_dist=True)
    assert 0.6 * factor < ahead.stdev < 2.5 * factor


@pytest.mark.parametrize("warmup", [2, 100])
def test_refusals_name_what_came_and_leave_the_model_as_it_was(warmup) -> None:
    model = RiverRegressor(fixed(), warmup=warmup)
    with pytest.raises(ValueError, match="x must have the features"):
        model.learn_one({}, 1.0)
    for x, y in rows(5):
        model.learn_one(x, y)
    before = model.predict_one({"a": 0.0, "b": 0.0})
    for x, y, words in (
        ({"a": 1.0}, 1.0, r"x must have the features \['a', 'b'\], got \['a'\]"),
        ({"a": 1.0, "b": 1.0, "c": 1.0}, 1.0, r"got \['a', 'b', 'c'\]"),
        ({"a": 1.0, "b": "1"}, 1.0, r"x\['b'\] must be a finite number, got '1'"),
        ({"a": 1.0, "b": math.nan}, 1.0, r"x\['b'\] must be a finite number, got nan"),
        ({"a": 1.0, "b": 1.0}, math.inf, "y must be a finite number, got inf"),
    ):
        with pytest.raises(ValueError, match=words):
            model.learn_one(x, y)
        assert model.predict_one({"a": 0.0, "b": 0.0}) == before
    with pytest.raises(ValueError, match="warmup must be"):
        RiverRegressor(warmup=0)


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
    for k in range(40):
        y = None if k in (5, 30) else math.sin(k / 5)
        day = date(2024, 1, 1) + timedelta(days=2 * k)
        by_date.learn_one(y, {"day": day})
        by_text.learn_one(y, {"day": day.isoformat()})  # as river's `iter_csv` hands it
        by_number.learn_one(y, {"t": np.float32(2 * k)})
    (first,) = by_date.forecast(1, xs=[{"day": datetime(2024, 1, 1) + timedelta(days=81)}])
    (second,) = by_number.forecast(1, xs=[{"t": 81}])
    assert first == pytest.approx(second, abs=1e-3)
    assert by_text.forecast(1, xs=[{"day": "2024-03-22"}]) == [first]
    assert first == pytest.approx(math.sin(40.5 / 5), abs=0.1)
    for xs in (None, [{"t": 1, "other": 2}], [{"other": 1}], [{}], [{"t": "soon"}]):
        with pytest.raises(ValueError, match="x"):
            by_number.forecast(1, xs=xs)
    with pytest.raises(ValueError, match="xs must hold 2 stamps, got 1"):
        by_number.forecast(2, xs=[{"t": 81}])


def test_a_single_feature_is_a_number_in_any_order():
    model, rng = RiverRegressor(warmup=30), np.random.default_rng(0)
    for k, a in enumerate(rng.normal(size=80)):
        model.learn_one({"a": None} if k == 40 else {"a": a}, 3 * a)
    model.learn_one({"a": 0.5}, None)
    assert model.predict_one({"a": 0.7}) == pytest.approx(2.1, abs=0.2)
    flags = RiverRegressor(warmup=10)
    for k in range(20):
        flags.learn_one({"a": np.bool_(k % 2), "b": k % 3}, np.float64(k % 2))
    assert flags.predict_one({"a": np.True_, "b": 1}) == pytest.approx(1, abs=0.1)
