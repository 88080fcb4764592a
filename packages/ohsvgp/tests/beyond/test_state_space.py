"""The bank of state-space models against dense conditioning, quadrature and enumeration."""

import math
from itertools import product

import numpy as np
import pytest
from scipy.linalg import expm
from scipy.stats import nbinom, poisson
from scipy.stats import t as student

from ohsvgp.beyond.seasons import (
    SeriesRow,
    candidates,
    choose_seasons,
    common_divisor,
    filter_rows,
    harmonics,
    suggested_periods,
)
from ohsvgp.beyond.state_space import OUTLIERS, Candidates, StateSpace
from ohsvgp.integrations.live.regimes import Regimes, advance, learn

PERIOD = 5.5


def one_model(*, slope: float = 0.02, season: float = 0.03, J: int = 2) -> Candidates:
    numbers = [0.3, slope, 0.2, 1.5, 0.4, season, 0.05]
    return Candidates(*np.array(numbers)[:, None], *harmonics([PERIOD])[:, None, :J])


def dense(c: Candidates, space: StateSpace, start, times: np.ndarray):
    """Mean and covariance of values, from integrals of the differential equation's noise."""
    D, n = len(space.row), len(times)
    A, B = np.zeros((D, D)), np.zeros(D)
    A[0, 1], A[1, 1], A[2, 2] = 1.0, -c.fading[0], -c.rate[0]
    B[:3] = c.level[0], c.slope[0], 2 * c.swing[0] * c.rate[0]
    for j, w in enumerate(c.frequencies[0]):
        i = 3 + 2 * j
        A[i : i + 2, i : i + 2] = [[-c.damping[0], w], [-w, -c.damping[0]]]
        B[i : i + 2] = c.season[0] / (j + 1) ** 2
    rows = np.stack([space.row @ expm(A * t) for t in times])
    K = rows @ start.cov[0] @ rows.T
    nodes, weights = np.polynomial.legendre.leggauss(40)
    for a, b in product(range(n), repeat=2):
        end = min(times[a], times[b])
        for u, w in zip(0.5 * end * (nodes + 1), 0.5 * end * weights, strict=True):
            left, right = (space.row @ expm(A * (times[k] - u)) for k in (a, b))
            K[a, b] += w * (left * B) @ right
    return rows @ start.mean[0], K


def test_filter_and_evidence_are_those_of_dense_conditioning() -> None:
    # Irregular steps, and a repeated stamp.
    times, y = np.array([0.0, 0.7, 0.7, 2.0, 5.5]), np.array([1.0, 0.4, 0.6, -0.5, 1.2])
    c = one_model()
    space = StateSpace(c, 1e-12)
    belief = start = space.begin(0.5, 2.0, 0.7)
    mean, K = dense(c, space, start, np.append(times, 8.0))
    last = 0.0
    draws, total = 1.0, 0.7
    for k, (t, value) in enumerate(zip(times, y, strict=True)):
        belief, last = space.advance(belief, t - last), t
        prediction = space.predict(belief)
        S = K[:k, :k] + np.eye(k)
        gain = np.linalg.solve(S, K[:k, k]) if k else np.zeros(0)
        center = mean[k] + gain @ (y[:k] - mean[:k])
        spread = K[k, k] + 1.0 - gain @ K[:k, k]
        np.testing.assert_allclose([prediction.mean[0], prediction.spread[0]], [center, spread])
        _, logs, chance, _ = space.observe(belief, value)
        regular = student.logpdf(value, draws, center, math.sqrt(spread * total / draws))
        # All values are regular, so that the filter's posterior is the exact one.
        np.testing.assert_allclose(
            logs[0] + math.log1p(-chance), math.log1p(-OUTLIERS) + regular, atol=1e-12
        )
        belief = condition(space, belief, prediction, value)
        draws, total = draws + 1, total + (value - center) ** 2 / spread
    forecast = space.ahead(belief, [2.5])
    S = np.linalg.inv(K[:5, :5] + np.eye(5))
    assert forecast[0][0] == pytest.approx(mean[5] + K[5, :5] @ S @ (y - mean[:5]))


def condition(space: StateSpace, belief, prediction, value: float):
    """The Kalman filter's update, and a draw of the noise."""
    gain, error = prediction.gain / prediction.spread[:, None], value - prediction.mean
    return belief._replace(
        mean=belief.mean + gain * error[:, None],
        cov=belief.cov - gain[:, :, None] * prediction.gain[:, None, :],
        draws=belief.draws + 1,
        total=belief.total + error**2 / prediction.spread,
    )


@pytest.mark.parametrize("value", [0.5, 4.5, 8.0, -300.0])
def test_an_outliers_moments_are_those_of_quadrature(value: float) -> None:
    # One state, known noise: p(f | y) ∝ N(f) [(1 − ε) N(y; f, v) + ε C(y)].
    c = one_model(slope=0.0, season=0.0, J=0)
    space = StateSpace(c._replace(swing=np.zeros(1)), 1e-12)
    belief = space.begin(0.3, 3.0, 2.0)
    belief = belief._replace(draws=np.array([1e9]), total=np.array([2e9]))
    prediction = space.predict(belief)
    after = space.observe(belief, value)[0]
    f, width = np.linspace(0.3 - 40, 0.3 + 40, 400_001, retstep=True)
    v, variance = 2.0, 2.0 * belief.cov[0, 0, 0]
    prior = np.exp(-0.5 * (f - 0.3) ** 2 / variance) / math.sqrt(2 * math.pi * variance)
    regular = np.exp(-0.5 * (value - f) ** 2 / v) / math.sqrt(2 * math.pi * v)
    scale = 10.0 * math.sqrt(prediction.variance)
    broad = 1.0 / (math.pi * scale * (1.0 + ((value - prediction.center) / scale) ** 2))
    density = prior * ((1 - OUTLIERS) * regular + OUTLIERS * broad)
    density /= density.sum() * width
    mean = float((f * density).sum() * width)
    square = float((((f - mean) ** 2) * density).sum() * width)
    assert after.mean[0, 0] == pytest.approx(mean, rel=1e-6)
    assert 2.0 * after.cov[0, 0, 0] == pytest.approx(square, rel=1e-6)


def test_the_odds_of_a_new_regime_are_those_of_enumeration() -> None:
    # Values of one level, then of another: of the second of them on, the two run lengths' joint
    # densities are multiplied up value by value.
    rng = np.random.default_rng(0)
    space = StateSpace(candidates([], coarse=True), 1e-9)
    belief = space.begin(0.0, 2.0, 1.0)
    state = Regimes(belief)
    for value in rng.normal(size=40):
        state, verdict = learn(space, advance(space, state, 1.0), float(value), 3.1)
        assert not verdict.outlier
    before = space.advance(state.main, 1.0)
    state, verdict = learn(space, advance(space, state, 1.0), 7.0, 3.1)
    assert verdict.alerts == ["outlier"]
    assert state.rival is not None
    ends, odds = [before, space.restart(before, 7.0)], math.log(0.1)
    ends[0] = space.observe(before, 7.0)[0]
    assert (state.odds, state.age) == (pytest.approx(odds), 0)
    for end, twin in zip(ends, (state.main, state.rival), strict=True):
        np.testing.assert_allclose(end.mean, twin.mean)
    joint = []
    for end in ends:
        now = space.advance(end, 1.0)
        logs = space.observe(now, 7.5)[1]
        joint.append(math.log(float(np.exp(now.weights) @ np.exp(logs))))
    after, verdict = learn(space, advance(space, state, 1.0), 7.5, 3.1)
    assert after.odds == pytest.approx(odds + joint[1] - joint[0])
    assert odds + joint[1] - joint[0] > 3.0
    assert (verdict.restart, verdict.alerts, after.rival) == (1, ["new level"], None)


@pytest.mark.parametrize("floor", [1e-8, 0.5])
def test_a_held_value_is_a_draw_of_the_noise_as_far_as_it_may_have_come_by_chance(floor) -> None:
    # P(held | y comes again) = s/(s + (1 − s) p(y) Δ), values being rounded to Δ.
    space = StateSpace(one_model(), floor)
    belief = space.begin(0.3, 3.0, 2.0)
    free, logs, _, _ = space.observe(belief, 1.1)
    after, _, outlier, held = space.observe(belief, 1.1, 0.2)
    width = math.sqrt(12.0 * floor)
    chance = min(1.0, math.exp(logs[0]) * width)
    assert held == pytest.approx(0.2 / (0.2 + 0.8 * chance))
    np.testing.assert_allclose(after.mean, free.mean)
    np.testing.assert_allclose(after.cov, free.cov)
    regular, kept = 1.0 - outlier, 0.98
    drawn = regular * (1.0 - held)
    assert after.draws[0] == pytest.approx(1.0 + drawn * (1.0 - (1.0 - kept)))
    prediction = space.predict(belief)
    square = (1.1 - prediction.mean[0]) ** 2 / prediction.spread[0]
    total = 2.0 + drawn * (square - (1.0 - kept) * 2.0)
    assert after.total[0] == pytest.approx(max(total, floor * after.draws[0]))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("factor", [0.1, 0.56, 1.0, 7e5])
def test_the_common_divisor_of_rounded_values_is_their_step_and_of_others_tiny(factor, dtype):
    counts, noise = np.random.default_rng(0).integers(50, 90, size=(2, 40))
    width, values = 0.0, (factor * counts).astype(dtype).astype(np.float64)
    for step in np.abs(np.diff(values)).tolist():
        width = common_divisor(width, step, 90 * factor)
    assert width == pytest.approx(factor * np.gcd.reduce(np.diff(counts)), rel=1e-4)
    for step in (factor * np.sqrt(noise)).tolist():
        width = common_divisor(width, step, 90 * factor)
    assert 0.0 < width < 1e-3 * factor


@pytest.mark.parametrize("factor", [0.01, 1000.0])
def test_noise_that_changes_at_once_is_known_within_forty_lines(factor: float) -> None:
    rng, space = np.random.default_rng(0), StateSpace(candidates([], coarse=True), 1e-12)
    state, alerts = Regimes(space.begin(0.0, 2.0, 1.0)), []
    for k, value in enumerate(rng.normal(size=140)):
        y = float(value * (1.0 if k < 100 else factor))
        state, verdict = learn(space, advance(space, state, 1.0), y, 3.1)
        alerts += verdict.alerts if k >= 100 else []
    deviation = math.sqrt(space.predict(state.leader).variance)
    assert 0.7 * factor < deviation < 3.0 * factor
    assert ("new level" in alerts) == (factor > 1.0)  # less noise is no new level


def test_a_constant_mean_of_counts_has_the_gamma_posterior(monkeypatch) -> None:
    monkeypatch.setattr("ohsvgp.beyond.state_space.OUTLIERS", 1e-300)
    c = one_model(slope=0.0, season=0.0, J=0)._replace(level=np.zeros(1), swing=np.zeros(1))
    space, y = StateSpace(c, 1e-12, "poisson"), np.array([0, 3, 0, 0, 5, 1, 0, 9, 0, 2.0])
    belief = space.begin(2.0, 0.5, 1.0)
    rate = 2.0 / belief.cov[0, 0, 0]
    for value in y:
        belief = space.observe(space.advance(belief, 1.0), value)[0]
    moments = np.array([1.0, 1.0 / (rate + len(y))]) * (2.0 * rate + y.sum()) / (rate + len(y))
    assert (belief.mean[0, 0], belief.cov[0, 0, 0]) == pytest.approx(moments, rel=1e-12)


@pytest.mark.parametrize(("mean", "v"), [(0.3, 4.0), (5.0, 1.5)])
def test_a_count_tells_of_its_dispersion_as_the_variance_of_its_square_has_it(mean, v) -> None:
    space = StateSpace(one_model(slope=0.0, season=0.0, J=0), 1e-12, "negative-binomial")
    belief = space.begin(mean, 1e-12, v)
    after, _, outlier, _ = space.observe(belief, 1.0)
    # Draws of a Gaussian whose squares had that variance.
    draw = (1.0 - outlier) * 2.0 / (2.0 + nbinom(mean / (v - 1.0), 1.0 / v).stats("k"))
    assert after.draws[0] == pytest.approx(1.0 + draw * 0.98, rel=1e-9)


@pytest.mark.parametrize(("mean", "variance"), [(0.02, 3e14), (0.9, 3.0), (4.0, 4.0), (30.0, 45.0)])
def test_intervals_of_counts_are_quantiles(mean: float, variance: float) -> None:
    space = StateSpace(candidates([], coarse=True), 1e-9, "negative-binomial")
    r = mean * mean / max(variance - mean, 1e-9)
    exact = nbinom(r, r / (r + mean)) if variance > mean else poisson(mean)
    found = space.interval(np.array([mean]), np.array([variance]), 1.959963984540054)
    assert [float(end[0]) for end in found] == [exact.ppf(0.025), exact.ppf(0.975)]


def test_cycles_have_their_variance_and_win_where_phases_wander() -> None:
    bank = candidates([11.0])
    cycles = bank.damping > 0.0
    assert cycles.sum() == 3
    assert (bank.frequencies[cycles] > 0.0).sum(1).tolist() == [2] * 3
    # dz = (−γ + iω) z dt + √q dW has the variance q/2γ in the long run.
    size = bank.season[cycles] / (2.0 * bank.damping[cycles])
    np.testing.assert_allclose(size, [3.0, 30.0, 30.0])
    step = StateSpace(bank, 1e-12).step(1e4)
    np.testing.assert_allclose(step.noise[cycles, 3], size, rtol=1e-6)
    assert step.keep[cycles, 3:].max() < 1e-6
    rng, z, y = np.random.default_rng(0), 3.0 + 0.0j, []
    for _ in range(300):
        z = z * np.exp(-0.02 + 2j * math.pi / 11) + rng.normal() + 1j * rng.normal()
        y.append(float(z.real + 0.5 * rng.normal()))
    rows = [SeriesRow(float(t), value) for t, value in enumerate(y)]
    evidence = filter_rows(StateSpace(bank, 1e-12), rows)[1]
    assert cycles[evidence.argmax()]
    assert evidence[cycles].max() > evidence[~cycles].max() + 5.0


@pytest.mark.parametrize(
    ("wave", "period"),
    [
        (lambda k: 3 * np.sin(2 * math.pi * k / 24), 24),
        (lambda k: 4.0 * (k % 7 == 0), 7),
        (None, 0),
    ],
)
def test_seasons_are_chosen_by_evidence(wave, period: int) -> None:
    noise = np.random.default_rng(1).normal(size=200)
    k = np.arange(200)
    y = np.cumsum(0.2 * noise) + 0.5 * noise[::-1] + (0.0 if wave is None else wave(k))
    rows = [SeriesRow(float(t), value) for t, value in zip(k, y.tolist(), strict=True)]
    periods, nats = choose_seasons(rows, None, 1e-9, None)
    assert periods == ((float(period),) if period else ())
    assert (nats > 20.0) == bool(period)


def test_a_new_level_is_the_limit_of_a_vague_one_beside_the_seasons_of_now() -> None:
    space = StateSpace(candidates([7.0]), 1e-9)
    belief = space.begin(3.0, 2.0, 1.0)
    for y in (4.0, 2.0, 5.0):
        belief = space.observe(space.advance(belief, 2.3), y)[0]
    new, mean, cov = space.restart(belief, 9.0), belief.mean.copy(), belief.cov.copy()
    mean[:, 0], cov[:, 0], cov[:, :, 0], cov[:, 0, 0] = 0.0, 0.0, 0.0, 1e8
    gain = (cov @ belief.row[..., None])[..., 0]
    step = gain / ((gain * belief.row).sum(1) + 1.0)[:, None]
    error = 9.0 - (mean * belief.row).sum(1)
    np.testing.assert_allclose(new.mean, mean + step * error[:, None], atol=1e-5)
    np.testing.assert_allclose(new.cov, cov - step[..., None] * gain[:, None], atol=1e-5)


def test_a_new_regime_may_be_one_that_long_calm_has_ruled_out() -> None:
    space = StateSpace(candidates([]), 1e-4)
    belief = space.begin(20.0, 1e-4, 1e-4)
    for _ in range(200):
        belief = space.observe(space.advance(belief, 1.0), 20.0)[0]
    assert np.exp(belief.weights).min() < 1e-8
    weights = np.exp(space.restart(belief, 30.0).weights)
    assert weights.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(weights, 0.9 * np.exp(belief.weights) + 0.1 / len(weights))


def test_held_values_do_not_tell_models_apart() -> None:
    # A model of tiny noise would be 1/√v times as probable at each value that comes again.
    rng = np.random.default_rng(11)
    y = np.minimum(0.3, 0.1 * rng.normal(size=200).cumsum() + rng.normal(size=200))
    rows = [SeriesRow(float(k), v) for k, v in enumerate((y - 0.3).round(2).tolist())]
    assert choose_seasons(rows, None, 1e-4 / 12, None) == ((), 0.0)


def test_a_cycle_whose_phase_wanders_is_suggested_and_few_repeats_are_no_season() -> None:
    rng, z, y = np.random.default_rng(15), 3.0 + 0.0j, []
    for _ in range(300):
        z = z * np.exp(-0.04 + 2j * math.pi / 11) + 0.7 * (rng.normal() + 1j * rng.normal())
        y.append(float(z.real + 0.3 * rng.normal()))
    rows = [SeriesRow(float(t), value) for t, value in enumerate(y)]
    assert suggested_periods(rows, None)[0] == pytest.approx(11.0, abs=1.0)
    # Two waves of a walk are none: of 28 steps only the calendar's seasons are compared then.
    wave = [SeriesRow(float(t), math.sin(2 * math.pi * t / 13)) for t in range(28)]
    assert suggested_periods(wave, 365.25 * 86_400.0) == []
    assert suggested_periods(wave, 86_400.0 * 7 / 13) == [13.0]


def test_smooth_trends_are_followed() -> None:
    rng = np.random.default_rng(0)
    y = 100.0 + np.cumsum(5.0 + np.cumsum(0.1 * rng.normal(size=200))) + 0.1 * rng.normal(size=200)
    space = StateSpace(candidates([]), 1e-9)
    belief, errors = space.begin(float(y[0]), 1.0, 0.01), list[float]()
    for k in range(192):
        belief = space.observe(space.advance(belief, 1.0), float(y[k]))[0]
        if k >= 50:
            mean = space.ahead(belief, [8.0])[0][0]
            # Beside Holt's method, whose slope is that of the latest four steps.
            errors.append((abs(mean - y[k + 8]), abs(y[k] + 2 * (y[k] - y[k - 4]) - y[k + 8])))
    live, holt = np.mean(errors, 0)
    assert live < 1.2 * holt


def test_quarters_of_dates_have_both_harmonics_of_a_year() -> None:
    # A year has 3.97 steps of 92 days.
    assert harmonics([365.25 / 92])[1].tolist() == [1.0, 0.25]
    assert len(harmonics([365.25 / 31])[1]) == 6


def test_two_seasons_have_the_same_prior() -> None:
    # Their covariance is Σ_j cos(2π j τ/p)/j² in units of the spread, of each season.
    periods, counts, gap = (24.0, 30.0), (6, 6), 7.3
    bank = candidates(periods)
    lasting = np.flatnonzero(bank.damping == 0.0)
    space = StateSpace(bank._replace(season=np.zeros_like(bank.season)), 1e-12)
    start = space.begin(0.0, 9.0, 1.0)
    later = space.advance(start, gap).row[lasting]
    for k, (period, J) in enumerate(zip(periods, counts, strict=True)):
        i = 3 + 2 * sum(counts[:k])
        cov = start.cov[lasting, i : i + 2 * J, i : i + 2 * J]
        exact = sum(9.0 * math.cos(2 * math.pi * j * gap / period) / j**2 for j in range(1, J + 1))
        found = cov @ space.row[i : i + 2 * J]
        np.testing.assert_allclose((later[:, i : i + 2 * J] * found).sum(1), exact)


@pytest.mark.parametrize("step", [None, 86_400.0])
@pytest.mark.parametrize("slope", [0.0, 5.0])
def test_a_saw_tooth_and_a_wave_on_a_slope_suggest_their_periods(step, slope: float) -> None:
    k, noise = np.arange(60), np.random.default_rng(0).normal(size=60)
    for wave in (k % 7 * 10.0, 6.0 * np.sin(2 * math.pi * k / 7)):
        y = 100.0 + slope * k + wave + noise
        rows = [SeriesRow(float(t), value) for t, value in enumerate(y.tolist())]
        assert suggested_periods(rows, step)[0] == 7.0
        assert choose_seasons(rows, step, 1e-9, None)[0] == (7.0,)


def test_a_slow_second_season_is_chosen_and_none_beside_one_wave() -> None:
    k, noise = np.arange(400), np.random.default_rng(0).normal(size=400)
    day = 20.0 + 5.0 * np.sin(2 * math.pi * k / 24) + 0.5 * noise
    week = 3.0 * np.sin(2 * math.pi * k / 168) + 2.0 * np.cos(4 * math.pi * k / 168)
    for y, periods in ((day + week, (24.0, 168.0)), (day, (24.0,))):
        rows = [SeriesRow(float(t), value) for t, value in enumerate(y.tolist())]
        assert choose_seasons(rows, None, 1e-9, None)[0] == periods


@pytest.mark.parametrize(("seed", "size", "n"), [(0, 0.7, 90), (1, 0.5, 60)])
def test_a_season_that_is_chosen_stays_until_others_are_better_by_some(seed, size, n) -> None:
    y = np.random.default_rng(seed).normal(size=n) + size * np.sin(2 * math.pi * np.arange(n) / 7)
    rows = [SeriesRow(float(t), value) for t, value in enumerate(y.tolist())]
    assert (suggested_periods(rows, None) == [7.0]) == (seed == 0)
    assert choose_seasons(rows, None, 1e-9, None) == ((), 0.0)
    assert choose_seasons(rows, None, 1e-9, None, (7.0,))[0] == (7.0,)


@pytest.mark.parametrize("counts", [None, "negative-binomial"])
def test_forecasts_at_many_times_are_those_of_going_there(counts) -> None:
    space = StateSpace(candidates((7.0,)), 1e-9, counts)
    if counts:  # whose unit, their mean, is that of now
        space._weight = lambda belief: np.full(len(belief.mean), 3.0)
    belief, last = space.begin(3.0, 2.0, 1.0), 0.0
    for now, y in ((1.0, 4.0), (2.5, 2.0), (9.0, 6.0)):
        belief, last = space.observe(space.advance(belief, now - last), y)[0], now
        np.testing.assert_array_equal(belief.cov, belief.cov.transpose(0, 2, 1))
        for times in ([1.0, 2.0, 3.5], [1.0, 2.0, 3.5], [40.0]):
            there = [space.predict(space.advance(belief, dt)) for dt in times]
            mean, variance = space.ahead(belief, times)
            np.testing.assert_allclose(mean, [p.center for p in there])
            np.testing.assert_allclose(variance, [p.variance for p in there])
