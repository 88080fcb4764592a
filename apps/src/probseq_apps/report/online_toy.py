"""Figure 4.1 of the thesis: how the basis, q(u) and the posterior follow two small tasks."""

from pathlib import Path

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from ohsvgp import Gaussian, LegS, OnlineGP
from ohsvgp.core import predict
from ohsvgp.exact import exact_posterior
from probseq.gaussians import DiagonalGaussian
from probseq.kernels import RBF

__all__ = ["coefficient_path", "toy_figure", "toy_models", "write_toy_figure"]

# Okabe and Ito's colours.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
_GUIDE = "#1A1A1A"
_NOISE, _SHOWN = 0.01, 4
# Six points of one task, then two of another, as in the thesis; the end of the second is t2.
_TIMES = torch.tensor([0.0, 0.8, 1.7, 2.6, 3.3, 4.0, 5.2, 6.0], dtype=torch.float64)
_VALUES = torch.tensor([0.1, 0.9, 0.8, -0.2, -0.8, -0.9, 0.4, 1.1], dtype=torch.float64)
_FIRST = 6


def toy_models(num_inducing: int = 12) -> tuple[OnlineGP, OnlineGP]:
    """The model after the first task, and after the second.

    Args:
        num_inducing: M.
    """
    one = torch.ones((), dtype=torch.float64)
    model = OnlineGP(RBF(1, lengthscale=one), Gaussian(_NOISE * one), LegS(num_inducing), alpha=0.0)
    model.update(_TIMES[:_FIRST], _VALUES[:_FIRST])
    return model, model.updated(_TIMES[_FIRST:], _VALUES[_FIRST:])


def coefficient_path(model: OnlineGP, ends: Float[Tensor, " n"]) -> DiagonalGaussian:
    """Law of the projections u^(x) of the posterior on windows that end at x (thesis C.2).

    Args:
        model: a posterior with a LegS basis and a window that starts at 0.
        ends: the ends x, above 0.

    Returns:
        Means and variances, shape (n, M).
    """
    state, basis = model.state, model.basis
    if state is None or not isinstance(basis, LegS):
        raise ValueError("model must have absorbed data with a LegS basis")
    means, variances = [], []
    with torch.no_grad():
        for end in ends.tolist():
            window = basis.inducing(model.kernel, end)
            P = state.whitening.apply(state.inducing.cross_inducing(model.kernel, window))
            law = predict(state.moments, P, window.covariance(model.kernel), full_cov=True)
            means.append(law.mean)
            # Round-off can take a variance of nothing below zero.
            variances.append(law.variance.clamp_min(0))
    return DiagonalGaussian(torch.stack(means), torch.stack(variances))


@torch.no_grad()
def toy_figure() -> Figure:
    """The five panels of Fig. 4.1."""
    first, second = toy_models()
    end_1, end_2 = float(_TIMES[_FIRST - 1]), float(_TIMES[-1])
    grid = torch.linspace(0.0, end_2, 300, dtype=torch.float64)
    figure = Figure(figsize=(11.0, 6.2), dpi=150)
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)
    FigureCanvasAgg(figure)
    grid_of_panels = figure.add_gridspec(2, 6)
    basis_panel = figure.add_subplot(grid_of_panels[0, :2])
    path_panel = figure.add_subplot(grid_of_panels[0, 2:])
    _draw_basis(basis_panel, first, end_1, end_2)
    _draw_path(path_panel, first, second, end_1, end_2)
    one = torch.ones((), dtype=torch.float64)
    exact = exact_posterior(
        RBF(1, lengthscale=one), _NOISE * one, _TIMES[:, None], _VALUES, grid[:, None]
    )
    inside = grid[1:]
    for place, (title, x, law) in enumerate(
        (
            ("(c) exact GP", grid, exact),
            ("(d) online posterior", grid, second.predict(grid)),
            ("(e) from the coefficients alone", inside, second.reconstruct(inside)),
        )
    ):
        panel = figure.add_subplot(grid_of_panels[1, 2 * place : 2 * place + 2])
        _draw_band(panel, x, law)
        _finish(panel, title, end_1)
    return figure


def write_toy_figure(folder: Path) -> Path:
    """Draw Fig. 4.1 into a folder.

    Args:
        folder: made if it is not there.

    Returns:
        The file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "toy.png"
    toy_figure().savefig(file)
    return file


def _draw_basis(panel: Axes, model: OnlineGP, end_1: float, end_2: float) -> None:
    for end, style in ((end_1, "-"), (end_2, "--")):
        x = torch.linspace(0.0, end, 200, dtype=torch.float64)[:, None]
        g = model.basis.functions(model.kernel, x, end).detach()
        for m in range(_SHOWN):
            label = f"m = {m}" if style == "-" else None
            panel.plot(x[:, 0], g[m], style, color=_COLOURS[m], lw=1.2, label=label)
    panel.legend(fontsize=7, ncols=2, loc="lower right")
    _finish(panel, "(a) basis at t₁ (solid) and t₂ (dashed)", end_1)


def _draw_path(panel: Axes, first: OnlineGP, second: OnlineGP, end_1: float, end_2: float) -> None:
    before = torch.linspace(0.05, end_1, 80, dtype=torch.float64)
    after = torch.linspace(end_1, end_2, 60, dtype=torch.float64)
    for ends, model in ((before, first), (after, second)):
        law = coefficient_path(model, ends)
        sd = law.variance.clamp_min(0).sqrt()
        for m in range(_SHOWN):
            label = f"u, m = {m}" if model is first else None
            panel.plot(ends, law.mean[:, m], color=_COLOURS[m], lw=1.2, label=label)
            low, high = law.mean[:, m] - 2 * sd[:, m], law.mean[:, m] + 2 * sd[:, m]
            panel.fill_between(ends, low, high, color=_COLOURS[m], alpha=0.2, lw=0)
    panel.legend(fontsize=7, ncols=4, loc="lower left")
    _finish(
        panel, "(b) q(u) on the window [0, x], mean ± 2 sd; the second task is learned at t₁", end_1
    )


def _draw_band(panel: Axes, x: Tensor, law: DiagonalGaussian) -> None:
    sd = law.variance.clamp_min(0).sqrt()
    panel.fill_between(x, law.mean - 2 * sd, law.mean + 2 * sd, color=_COLOURS[0], alpha=0.2, lw=0)
    panel.plot(x, law.mean, color=_COLOURS[0], lw=1.4)
    panel.plot(_TIMES[:_FIRST], _VALUES[:_FIRST], "o", ms=4, color=_GUIDE)
    panel.plot(_TIMES[_FIRST:], _VALUES[_FIRST:], "s", ms=4, color=_COLOURS[1])
    panel.set_ylim(-2.4, 2.4)


def _finish(panel: Axes, title: str, end_1: float) -> None:
    panel.axvline(end_1, color=_GUIDE, lw=0.6, ls=":")
    panel.set_title(title, fontsize=9)
    panel.set_xlabel("x", fontsize=8)
    panel.tick_params(labelsize=7)
