"""The parts that a model's function is the sum of."""

from typing import TYPE_CHECKING, Any

from ohsvgp.online import OnlineGP
from probseq.figures import COLOURS, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def components_plot(gp: OnlineGP, t: Any, *, labels: tuple[str, str] = ("t", "y")) -> "Figure":
    """Draw each part of ``OnlineGP.decompose``: its mean and two standard deviations.

    Args:
        gp: a model of times and one series; it stays as it is.
        t: times in ascending order, also beyond the data.
        labels: of time and values.

    Raises:
        ValueError: a model of points or of several series, or bad times.
        MissingExtraError: matplotlib is not installed.
    """
    parts = gp.decompose(t)
    if not gp.of_time or any(law.mean.ndim != 1 for law in parts.values()):
        raise ValueError("gp must be a model of times and one series")
    stamps = gp.user_inputs(gp.inputs(t))
    figure, axes = panels(len(parts), 1, (8.0, 1.7), shared=False, extra=(0.4, 0.4))
    for panel, (name, law) in zip(axes, parts.items(), strict=True):
        mean, sd = law.mean.cpu().numpy(), law.variance.sqrt().cpu().numpy()
        style: dict[str, Any] = {"color": COLOURS[4], "alpha": 0.3, "linewidth": 0}
        panel.fill_between(stamps, mean - 2 * sd, mean + 2 * sd, **style)
        panel.plot(stamps, mean, color=COLOURS[0], linewidth=1.2)
        panel.set_title(name, fontsize=9, loc="left")
        panel.set_ylabel(labels[1], fontsize=9)
    axes[-1].set_xlabel(labels[0], fontsize=9)
    return figure
