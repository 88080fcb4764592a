"""Basis, q(u) and posterior along a stream: thesis Figure 4.1."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ohsvgp.bases.legendre import LegS
from ohsvgp.exact import exact_posterior
from ohsvgp.likelihoods import Gaussian
from ohsvgp.online import OnlineGP
from ohsvgp.plots.drawing import shade
from probseq.figures import COLOURS, GUIDE, new_figure
from probseq.gaussians import DiagonalGaussian
from probseq.kernels import RBF

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COEFFICIENTS, _STEPS = 4, 60
# Six points of one task, then two of another.
_TASKS = (
    ((0.0, 0.8, 1.7, 2.6, 3.3, 4.0), (0.1, 0.9, 0.8, -0.2, -0.8, -0.9)),
    ((5.2, 6.0), (0.4, 1.1)),
)
_NOISE = 0.01


@torch.no_grad()
def coefficients_plot() -> "Figure":
    """Draw basis, coefficients and posterior of a model of two tasks, and the exact one."""
    unit = torch.ones((), dtype=torch.float64)
    gp = OnlineGP(RBF(1, lengthscale=unit), Gaussian(_NOISE * unit), LegS(12), alpha=0.0)
    models, ends = [], [t[-1] for t, _ in _TASKS]
    for t, y in _TASKS:
        models.append(gp := gp.updated(t, y))
    figure = new_figure(11.0, 6.2)
    grid = figure.add_gridspec(2, 6)
    _draw_basis(figure.add_subplot(grid[0, :2]), gp, ends)
    _draw_path(figure.add_subplot(grid[0, 2:]), models, ends)
    t, y = (torch.tensor(sum(columns, ())).double() for columns in zip(*_TASKS, strict=True))
    x = torch.linspace(0.0, ends[-1], 300, dtype=torch.float64)
    panels = (
        ("(c) exact GP", x, exact_posterior(gp.kernel, _NOISE, t[:, None], y, x[:, None])),
        ("(d) online posterior", x, gp.predict(x)),
        ("(e) from the coefficients alone", x[1:], gp.reconstruct(x[1:])),
    )
    for column, (title, at, f) in enumerate(panels):
        axes = figure.add_subplot(grid[1, 2 * column : 2 * column + 2])
        _band(axes, at, f.mean, f.variance, COLOURS[0])
        for (times, values), marker, colour in zip(_TASKS, "os", (GUIDE, COLOURS[1]), strict=True):
            axes.plot(times, values, marker, ms=4, color=colour)
        _finish(axes, title, ends)
    return figure


def coefficient_path(gp: OnlineGP, ends: Tensor) -> DiagonalGaussian:
    """Return means and variances (n, M) of the projections on windows that end at x (thesis C.2).

    The model has learned data, with a LegS basis and a window that starts at 0.
    """
    state, basis = gp.state, gp.basis
    if state is None or not isinstance(basis, LegS):
        raise ValueError("gp must have absorbed data with a LegS basis")
    with torch.no_grad():
        sets = [basis.inducing(gp.kernel, end) for end in ends.tolist()]
        projections = [gp.process.project(state, inducing) for inducing in sets]
    # Round-off can take a variance of nothing below zero.
    variances = torch.stack([u.variance for u in projections]).clamp_min(0)
    return DiagonalGaussian(torch.stack([u.mean for u in projections]), variances)


def _draw_basis(axes: "Axes", gp: OnlineGP, ends: Sequence[float]) -> None:
    for style, end in zip(("-", "--"), ends, strict=True):
        x = torch.linspace(0.0, end, 200, dtype=torch.float64)[:, None]
        g = gp.basis.functions(gp.kernel, x, end).detach()
        for m in range(_COEFFICIENTS):
            label = f"m = {m}" if style == "-" else None
            axes.plot(x[:, 0], g[m], style, color=COLOURS[m], lw=1.2, label=label)
    axes.legend(fontsize=7, ncols=2, loc="lower right")
    _finish(axes, "(a) basis after the first task (solid) and later (dashed)", ends)


def _draw_path(axes: "Axes", models: Sequence[OnlineGP], ends: Sequence[float]) -> None:
    start = 0.01 * ends[0]
    for task, (model, end) in enumerate(zip(models, ends, strict=True)):
        x = torch.linspace(start, end, _STEPS, dtype=torch.float64)
        u, start = coefficient_path(model, x), end
        for m in range(_COEFFICIENTS):
            label = None if task else f"u, m = {m}"
            _band(axes, x, u.mean[:, m], u.variance[:, m], COLOURS[m], label)
    axes.legend(fontsize=7, ncols=4, loc="lower left")
    _finish(axes, "(b) q(u) on the window [0, x], mean ± 2 sd, learned at the dotted lines", ends)


def _band(
    axes: "Axes", x: Tensor, mean: Tensor, variance: Tensor, colour: str, label: str | None = None
) -> None:
    sd = variance.clamp_min(0).sqrt()
    axes.plot(x, mean, color=colour, lw=1.3, label=label)
    shade(axes, x, mean - 2 * sd, mean + 2 * sd, 0.2, color=colour)


def _finish(axes: "Axes", title: str, ends: Sequence[float]) -> None:
    for end in ends[:-1]:
        axes.axvline(end, color=GUIDE, lw=0.6, ls=":")
    axes.set_title(title, fontsize=9)
    axes.set_xlabel("x", fontsize=8)
    axes.tick_params(labelsize=7)
