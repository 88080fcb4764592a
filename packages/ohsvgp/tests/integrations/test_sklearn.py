"""Processes as estimators of scikit-learn."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk
from sklearn.metrics import r2_score
from sklearn.utils.estimator_checks import check_estimator

from ohsvgp import Cosine, Gaussian, LegS, OnlineGP, Path, PivotedCholesky, Poisson
from ohsvgp.beyond.means import Level
from ohsvgp.integrations.sklearn import OnlineGPRegressor
from probseq.kernels import RBF

EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": "weights divide the noise: rows that are "
    "repeated tell of the noise too, and those of weight zero are refused"
}


def plane(n: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    return X, 5 + 3 * np.sin(X[:, 0]) * X[:, 1] + 0.1 * rng.normal(size=n)


def series(n: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    t = np.sort(rng.uniform(0, 10, n))
    return t[:, None], 5 + 3 * np.sin(t) + 0.1 * rng.normal(size=n)


def fixed(dim: int, **more) -> OnlineGPRegressor:
    """With given hyperparameters."""
    return OnlineGPRegressor(
        kernel=RBF(dim, lengthscale=0.9, outputscale=1.3),
        likelihood=Gaussian(torch.tensor(0.02, dtype=torch.float64)),
        fit_steps=0,
        **more,
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_checks_of_scikit_learn_pass_but_for_those_with_a_reason(plain_calls) -> None:
    found = check_estimator(
        OnlineGPRegressor(fit_steps=10), expected_failed_checks=EXPECTED, on_fail=None
    )
    # One is skipped for want of an environment variable that turns its array API on.
    assert {check["check_name"] for check in found if check["status"] == "failed"} == set()
    assert {check["check_name"] for check in found if check["status"] == "xfail"} == set(EXPECTED)
    assert sum(check["status"] == "passed" for check in found) > 40


@pytest.mark.parametrize(
    ("data", "basis"), [(series, PivotedCholesky(60)), (plane, PivotedCholesky(60))]
)
@pytest.mark.parametrize("batches", [1, 3])
def test_all_inducing_points_give_the_process_of_scikit_learn(data, basis, batches) -> None:
    X, y = data()
    y, new = y - 5, data(15, seed=1)[0]
    own = fixed(X.shape[1], basis=basis, normalize_y=batches == 1)
    for rows in np.array_split(np.arange(len(X)), batches):
        own.partial_fit(X[rows], y[rows])
    kernel = 1.3 * sk.RBF(0.9) + sk.WhiteKernel(0.02)
    theirs = GaussianProcessRegressor(kernel, alpha=0, optimizer=None, normalize_y=batches == 1)
    theirs.fit(X, y)

    # Kernels hold their hyperparameters in float32 before they are made double: 1e-7 of each; and
    # the inducing set has jitter of 1e-8, which nearly equal points make larger.
    mean, std = own.predict(new, return_std=True)
    expected_mean, expected_std = theirs.predict(new, return_std=True)
    np.testing.assert_allclose(mean, expected_mean, atol=1e-4)
    np.testing.assert_allclose(std, expected_std, atol=1e-4)
    np.testing.assert_allclose(own.score(X, y), r2_score(y, theirs.predict(X)), atol=1e-5)


@pytest.mark.parametrize("data", [series, plane])
def test_targets_are_independent_series(data) -> None:
    X, y = data()
    both = np.stack([y, 10 * y[::-1]], axis=1)
    dim = X.shape[1]
    joint = fixed(dim).fit(X, both)
    alone = [fixed(dim).fit(X, column) for column in both.T]

    mean, std = joint.predict(X[:7], return_std=True)
    expected = [model.predict(X[:7], return_std=True) for model in alone]
    np.testing.assert_allclose(mean, np.stack([e[0] for e in expected], 1), rtol=1e-8)
    np.testing.assert_allclose(std, np.stack([e[1] for e in expected], 1), rtol=1e-8)
    scores = [model.score(X, column) for model, column in zip(alone, both.T, strict=True)]
    np.testing.assert_allclose(joint.score(X, both), np.mean(scores), rtol=1e-8)


@pytest.mark.parametrize("data", [series, plane])
def test_defaults_explain_data_in_any_units(data) -> None:
    X, y = data(300)
    test_X, test_y = data(100, seed=1)
    model = OnlineGPRegressor().fit(1000 * X[:200] + 7, 1e6 * y[:200])
    model.partial_fit(1000 * X[200:] + 7, 1e6 * y[200:])
    mean, std = model.predict(1000 * test_X + 7, return_std=True)
    assert r2_score(1e6 * test_y, mean) > 0.98
    # Of 100 errors 95 ± 2.2 are within the interval.
    inside = np.abs(1e6 * test_y - mean) < 1.96 * std
    assert 0.87 <= inside.mean() <= 1


def test_other_bases_and_options_reach_the_process() -> None:
    X, y = plane()
    model = fixed(2, basis=Path(15), alpha=0.7, random_state=3).fit(X, y).partial_fit(X + 1, y)
    gp = OnlineGP(
        RBF(2, lengthscale=0.9, outputscale=1.3), Gaussian(0.02), Path(15), alpha=0.7, seed=3
    )
    with torch.no_grad():
        gp.likelihood.raw_noise.copy_(model.gp_.likelihood.raw_noise)
    for points in (X, X + 1):
        gp.update(points, (y - y.mean()) / y.std())
    np.testing.assert_allclose(
        model.predict(X), gp.predict(X).mean.numpy() * y.std() + y.mean(), rtol=1e-10
    )
    X, y = series()
    assert fixed(1, rebase="grow:1.05", basis=LegS(12)).fit(X, y).gp_.growth == 1.05


@pytest.mark.parametrize("data", [series, plane])
@pytest.mark.parametrize("factor", [0.05, 100.0])
def test_later_batches_of_another_noise_have_intervals_of_their_own(data, factor) -> None:
    model, inside = OnlineGPRegressor(fit_steps=20), []
    X, y = data(300)
    noise = np.random.default_rng(1).normal(size=300)
    y = y + 2 * noise * np.where(np.arange(300) < 100, 1.0, factor)
    for rows in np.array_split(np.arange(300), 6):
        if rows[0] >= 150:
            mean, std = model.predict(X[rows], return_std=True)
            inside += (np.abs(y[rows] - mean) < 1.96 * std).tolist()
        model.partial_fit(X[rows], y[rows])
    assert np.mean(inside) > 0.85
    # Of the batches' own deviation, but for what the function adds.
    assert std.mean() < 3 * y[rows].std()


def test_a_constant_first_batch_does_not_decide_for_later_ones() -> None:
    t, noise = np.arange(60.0)[:, None], np.random.default_rng(0).normal(size=60)
    model = OnlineGPRegressor(fit_steps=10).fit(t[:20], np.full(20, 7.0))
    for rows in np.split(np.arange(20, 60), 2):
        model.partial_fit(t[rows], 7 + 30 * noise[rows])
    _, std = model.predict(t[-1:] + 1, return_std=True)
    assert 15 < std[0] < 100


def test_seasons_of_greatest_evidence_go_on_beyond_the_data() -> None:
    t, order = np.arange(288.0)[:, None], np.random.default_rng(1).permutation(240)
    noise = np.random.default_rng(0).normal(size=288)
    y = 20 + 5 * np.sin(2 * np.pi * t[:, 0] / 24) + noise
    both = np.stack([np.full(288, 7.0), y], 1)  # a constant beside
    error = []
    for seasons, mean in ((None, None), ("auto", None), ([24.0], Level())):
        kernel, options = RBF(1, lengthscale=50.0, outputscale=0.01), {"fit_steps": 0, "mean": mean}
        model = OnlineGPRegressor(
            kernel=kernel, likelihood=Gaussian(0.07), seasons=seasons, **options
        )
        ahead = model.fit(t[order], both[order]).predict(t[240:])
        np.testing.assert_allclose(ahead[:, 0], 7.0, atol=0.01)
        error.append(np.sqrt(np.mean((ahead[:, 1] - y[240:]) ** 2)))
    assert error[0] > 3.0
    assert max(error[1:]) < 1.3  # of a noise of one
    for points, seasons in ((np.tile(t, 2), "auto"), (np.tile(t, 2), [24.0]), (t, [24.0, 24.0])):
        with pytest.raises(ValueError, match="seasons "):
            OnlineGPRegressor(seasons=seasons).fit(points, y)
    for few in (t[:1], np.zeros((5, 1))):  # without a step
        assert OnlineGPRegressor(seasons="auto", fit_steps=0).fit(few, y[: len(few)])


def test_counts_are_predicted_as_counts() -> None:
    X, y = series(200)
    counts = np.random.default_rng(0).poisson(y)
    model = OnlineGPRegressor(likelihood=Poisson(), normalize_y=False).fit(X, counts)
    assert np.abs(model.predict(X) - y).mean() < 0.6
    with pytest.raises(ValueError, match="normalize_y must be False with Poisson"):
        OnlineGPRegressor(likelihood=Poisson()).fit(X, counts)


def test_refusals_name_what_came_and_leave_the_model_as_it_was() -> None:
    X, y = plane()
    model = fixed(2).fit(X, y)
    before = model.predict(X)
    for points, targets, words in (
        (X[:, :1], y, "X has 1 features, but OnlineGPRegressor is expecting 2"),
        (np.where(X > 2, np.nan, X), y, "X contains NaN"),
        (X, np.stack([y, y], 1), r"y must have as many series as before, 1"),
        (X, np.where(y > 5, np.inf, y), "y contains infinity"),
    ):
        with pytest.raises(ValueError, match=words):
            model.partial_fit(points, targets)
        np.testing.assert_array_equal(model.predict(X), before)
    with pytest.raises(ValueError, match="fit_steps"):
        fixed(2).set_params(fit_steps=-1).fit(X, y)


def test_equal_targets_and_columns_are_not_scaled_by_their_round_off() -> None:
    # The mean of seven numbers 0.1 is not 0.1 to the last digit.
    X, y = np.full((7, 2), 0.1), np.full(7, 0.1)
    X[:, 1] = np.arange(7)
    model = OnlineGPRegressor(fit_steps=5).fit(X, y)
    assert model.y_scale_ == 1.0
    assert float(model.gp_.kernel.lengthscale.detach().flatten()[0]) == 1.0
    assert model.score(X, np.ones(7)) == 0.0


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e200])
def test_targets_that_have_no_variance_are_refused_by_name(wrong) -> None:
    X, y = plane(20)
    y[3] = wrong
    with pytest.raises(ValueError, match=r"(y|X) (contains|must have a finite variance)"):
        OnlineGPRegressor().fit(X, y)
    with pytest.raises(ValueError, match=r"(Input X contains|X must have a finite variance)"):
        OnlineGPRegressor().fit(np.stack([y, y], 1)[:, :1], X[:, 0])
    with pytest.raises(ValueError, match=r"^fit_steps must"):
        OnlineGPRegressor(fit_steps=-1).fit(X, X[:, 0])


def test_seeds_are_scikit_learns_and_columns_may_be_dates():
    X, y = plane()
    for state in (None, np.random.RandomState(0), np.int64(3)):
        model = OnlineGPRegressor(fit_steps=1, random_state=state).fit(X, y)
        assert model.predict(X[:2]).shape == (2,)
    stamps = pd.date_range("2024-01-01", periods=60, freq="12h")
    y = np.sin(np.arange(60) / 5)
    numbers = OnlineGPRegressor().fit(np.arange(60)[:, None] / 2 + 19_723, y)
    for table in (
        pd.DataFrame({"t": stamps}),
        pd.DataFrame({"t": stamps.tz_localize("UTC")}),
        pd.DataFrame({"t": stamps.to_period("12h")}),
        stamps.to_numpy()[:, None],
    ):
        model = OnlineGPRegressor().fit(table[:50], y[:50]).partial_fit(table[50:], y[50:])
        np.testing.assert_allclose(
            model.predict(table), numbers.predict(np.arange(60)[:, None] / 2 + 19_723), atol=0.02
        )
    mixed = pd.DataFrame({"t": stamps, "a": np.cos(np.arange(60) / 3)})
    assert OnlineGPRegressor().fit(mixed, y).score(mixed, y) > 0.9


def test_sample_weights_divide_the_noise() -> None:
    t = np.linspace(0, 6, 40)
    y = np.sin(t) + 0.3 * np.random.default_rng(0).normal(size=40)
    weight = np.where(np.arange(40) % 2, 4.0, 0.5)
    kernel, options = RBF(1).double(), {"fit_steps": 0, "normalize_y": False}
    model = OnlineGPRegressor(kernel=kernel, likelihood=Gaussian(0.1), basis=Cosine(40), **options)
    model.fit(t[:25, None], y[:25], sample_weight=weight[:25])
    model.partial_fit(t[25:, None], y[25:], sample_weight=weight[25:])
    with torch.no_grad():
        K = kernel(torch.from_numpy(t)[:, None], torch.from_numpy(t)[:, None]).numpy()
    expected = K @ np.linalg.solve(K + np.diag(0.1 / weight), y)
    np.testing.assert_allclose(model.predict(t[:, None]), expected, atol=1e-5)
    # Fits know of them: the same data with a noise four times as large.
    fitted = OnlineGPRegressor().fit(t[:, None], y, sample_weight=np.full(40, 4.0))
    again = OnlineGPRegressor().fit(t[:, None], y)
    noise = [float(m.gp_.likelihood.noise.detach()) for m in (fitted, again)]
    assert noise[0] == pytest.approx(4 * noise[1], rel=0.02)
    for bad, message in (([1.0], "sample_weight"), (np.zeros(40), "zero")):
        with pytest.raises(ValueError, match=message):
            OnlineGPRegressor().fit(t[:, None], y, sample_weight=bad)
