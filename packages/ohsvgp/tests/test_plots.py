"""Figures: what they show of predictions, metrics and data."""

from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes

from ohsvgp import Gaussian, LegS, OnlineGP
from ohsvgp.exact import exact_posterior
from ohsvgp.plots import (
    Band,
    Metric,
    Plane,
    SeriesFit,
    after_tasks_plot,
    boundaries_plot,
    coefficients_plot,
    metric_figures,
    metrics_plot,
    prediction_figures,
)
from ohsvgp.plots.coefficients import coefficient_path
from probseq.kernels import RBF

K = 3
LABELS = ("Year", "Irradiance")
NLPD, RMSE = Metric("NLPD"), Metric("RMSE")


def fits(**changes: Any) -> SeriesFit:
    t, train = np.linspace(0.0, 3.0, 31), np.arange(12) / 4
    fields: dict[str, Any] = {
        "t": t,
        "mean": np.stack([np.sin(t + k) for k in range(K)]),
        "sd": np.stack([np.full(31, 0.1 * (k + 1)) for k in range(K)]),
        "train": (train, np.sin(train), np.arange(12) // 4),
        "test": (np.array([0.1, 1.1, 2.1]), np.array([0.5, 0.6, 0.7]), np.arange(3)),
        "inducing": np.array([[0.0, 0.5, np.nan], [0.0, 1.0, 2.0], [0.0, 1.5, 3.0]]),
    }
    return SeriesFit(**{**fields, **changes})


def plane() -> Plane:
    a, b = np.meshgrid(np.linspace(-1, 1, 21), np.linspace(-1, 1, 21))
    grid = np.stack([a.ravel(), b.ravel()], -1)
    x = np.array([[-0.5, 0.0], [0.5, 0.0], [-0.5, 0.5], [0.5, 0.5]])
    # Crosses one half where the first coordinate is 0.1 (k + 1).
    probability = np.stack([0.5 + 0.4 * (grid[:, 0] - 0.1 * (k + 1)) for k in range(2)])
    return Plane(grid, probability, x, np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1]))


def one(mean: Any, seeds: int = 1, half: float = np.nan) -> Band:
    values = np.asarray(mean, dtype=float)
    return Band(values, np.full_like(values, half), seeds)


def matrix(offset: float = 0.0) -> np.ndarray:
    rows = [[offset + 10.0 * i + j if i <= j else np.nan for i in range(K)] for j in range(K)]
    return np.array(rows)


def named(axes: Axes, label: str) -> np.ndarray:
    (line,) = [line for line in axes.lines if line.get_label() == label]
    return np.column_stack(line.get_data())


def edges(axes: Axes) -> np.ndarray:
    return np.asarray(axes.collections[0].get_paths()[0].vertices)[:, 1]


def test_each_panel_has_its_prediction_its_points_and_its_inducing_locations() -> None:
    shown = fits()
    figure = after_tasks_plot(shown, labels=LABELS)
    assert len(figure.axes) == K
    for task, axes in enumerate(figure.axes):
        curves = [line for line in axes.lines if len(np.asarray(line.get_xdata())) == 31]
        assert curves[0].get_ydata() == pytest.approx(shown.mean[task])
        assert edges(axes).max() == pytest.approx((np.sin(shown.t + task) + 0.2 * (task + 1)).max())
        latest = named(axes, "training points, latest task")
        assert latest[:, 0] == pytest.approx(np.arange(4 * task, 4 * task + 4) / 4)
        tests = named(axes, "test points of the learned tasks")
        assert tests[:, 1] == pytest.approx([0.5, 0.6, 0.7][: task + 1])
    # What is not there yet is NaN.
    assert named(figure.axes[0], "inducing locations")[:, 0] == pytest.approx([0.0, 0.5])
    assert named(figure.axes[2], "inducing locations")[:, 0] == pytest.approx([0.0, 1.5, 3.0])


def test_boundaries_lie_where_the_probability_is_one_half() -> None:
    figure = boundaries_plot({"osvgp": plane(), "ohsvgp-k": plane()})
    shown = [axes for axes in figure.axes if axes.collections and axes.lines]
    assert len(shown) == 4
    assert [axes.get_ylabel() for axes in shown] == ["osvgp", "", "ohsvgp-k", ""]
    for axes, place in zip(shown, (0.1, 0.2, 0.1, 0.2), strict=True):
        boundary = np.asarray(axes.collections[-1].get_paths()[0].vertices)
        assert boundary[:, 0] == pytest.approx(np.full(len(boundary), place), abs=1e-6)
        assert len(named(axes, "class 1, latest task")) == 1
    assert len(named(shown[1], "class 0, earlier tasks")) == 1


def test_lines_are_means_with_bands_of_three_seeds_and_more() -> None:
    methods = {"ohsvgp": one([2.0, 3.0, 4.0], 3, 0.5), "grid": one([0.5, 1.5, 2.5], 2)}
    (axes,) = metrics_plot([(NLPD, methods)], list(methods)).axes
    assert named(axes, "ohsvgp") == pytest.approx(np.array([[1, 2], [2, 3], [3, 4]]))
    assert len(axes.collections) == 1
    assert edges(axes).max() == pytest.approx(4.5)
    assert named(axes, "grid")[:, 1] == pytest.approx([0.5, 1.5, 2.5])


def test_scores_are_drawn_over_the_seeds() -> None:
    def scored(offset: float, seconds: float) -> dict[str, Any]:
        rmse = [[offset, None], [offset + 1, offset + 2]]
        over = {"rmse": [offset, offset + 1.5], "own": [1.0, 2.0]}
        matrix = {"rmse": rmse, "own": rmse}
        return {"over_tasks": over, "matrix": matrix, "seconds": [seconds, 2 * seconds]}

    methods = {"ohsvgp": [scored(k, 1.0 + k) for k in range(3)], "exact": [scored(5.0, 0.0)] * 3}
    figures = metric_figures(methods, standardised=True)
    assert list(figures) == ["over-tasks", "per-task-rmse", "per-task-own"]
    rmse, own = figures["over-tasks"].axes
    assert named(rmse, "ohsvgp").tolist() == [[1.0, 1.0], [2.0, 2.5]]
    assert rmse.get_ylabel().startswith("RMSE (standardised)")
    assert own.get_ylabel().startswith("own")
    assert named(figures["per-task-rmse"].axes[1], "exact").tolist() == [[2.0, 7.0]]


def test_curves_are_drawn_as_fits_or_as_boundaries() -> None:
    shown, flat = fits(), plane()
    one = {"t": shown.t, "mean": shown.mean, "sd": shown.sd}
    for part, (t, y, task) in zip(("train", "test"), shown.points, strict=True):
        one |= {f"{part}_t": t, f"{part}_y": y, f"{part}_task": task}
    # Of several series side by side, the first.
    twice = {k: np.stack([one[k], 9 + one[k]], 1) for k in ("mean", "sd")}
    twice |= {k: np.stack([one[k], 9 + one[k]]) for k in ("train_y", "test_y")}
    moons = {"grid": flat.grid, "probability": flat.probability}
    moons |= {"train_x": flat.x, "train_y": flat.y, "train_task": flat.task.astype(float)}
    models = {"a": one, "b, c": one | twice, "moons": moons, "none": {"train_y": flat.y}}
    figures = prediction_figures(models, LABELS)
    assert list(figures) == ["boundaries", "fits", "fits-a", "fits-b-c"]
    first, second = figures["fits"].axes
    assert first.lines[-1].get_ydata() == pytest.approx(second.lines[-1].get_ydata())
    assert edges(first) == pytest.approx(edges(second))
    assert len(figures["fits-a"].axes) == K
    assert list(prediction_figures({"moons": moons}, LABELS)) == ["boundaries"]


TASKS = [
    (torch.tensor([0.0, 0.8, 1.7, 2.6, 3.3, 4.0]), torch.tensor([0.1, 0.9, 0.8, -0.2, -0.8, -0.9])),
    (torch.tensor([5.2, 6.0]), torch.tensor([0.4, 1.1])),
]


def small() -> OnlineGP:
    return OnlineGP(RBF(1), Gaussian(0.01), LegS(12), alpha=0.0)


def test_the_path_holds_projections_of_the_posterior_on_shorter_windows() -> None:
    gp, end = small().updated(*TASKS[0]), 2.5
    nodes, weights = np.polynomial.legendre.leggauss(60)
    posterior = gp.predict(torch.from_numpy(end * (1 + nodes) / 2), full_cov=True)
    polynomials = np.polynomial.legendre.legvander(nodes, 11).T
    phi = torch.from_numpy(np.sqrt(2 * np.arange(12) + 1)[:, None] * polynomials * weights / 2)
    path = coefficient_path(gp, torch.tensor([end], dtype=torch.float64))
    torch.testing.assert_close(path.mean[0], phi @ posterior.mean, rtol=0, atol=1e-7)
    variance = (phi @ posterior.covariance @ phi.T).diagonal()
    torch.testing.assert_close(path.variance[0], variance, rtol=0, atol=1e-7)


def test_twelve_inducing_variables_show_what_the_exact_process_shows() -> None:
    figure = coefficients_plot()
    exact, online, rebuilt = (np.asarray(axes.lines[0].get_ydata()) for axes in figure.axes[2:])
    t, y = (torch.cat(part).double() for part in zip(*TASKS, strict=True))
    x = torch.linspace(0.0, 6.0, 300, dtype=torch.float64)
    wanted = exact_posterior(RBF(1).double(), 0.01, t[:, None], y, x[:, None]).mean.detach()
    np.testing.assert_allclose(exact, wanted, atol=1e-6)
    np.testing.assert_allclose(online, exact, atol=5e-3)
    np.testing.assert_allclose(rebuilt, exact[1:], atol=2e-2)
