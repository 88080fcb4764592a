"""Which past a model still resolves, and what its updates lost."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from ohsvgp.likelihoods import Gaussian
from ohsvgp.online import OnlineGP
from ohsvgp.state import UpdateInfo
from probseq.figures import COLOURS, GUIDE, legend, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GRID = 600


def memory_plot(
    gp: OnlineGP, infos: Sequence[UpdateInfo] = (), *, labels: tuple[str, str] = ("t", "y")
) -> "Figure":
    """Draw the standard deviation of f along the past, and what each update lost.

    Where the deviation is near the prior's, without a ``mean``, the past is forgotten; where it is
    below that of the noise it is known better than by an observation. Below, in nats, what moves of
    the inducing variables lost of old knowledge, and what they did not take in of new observations.

    Args:
        gp: a model of times and one series that has learned some; it stays as it is.
        infos: what its updates returned, in order; none for the first panel alone.
        labels: of time and values.

    Raises:
        ValueError: a model of points, of several series, or one without data.
        MissingExtraError: matplotlib is not installed.
    """
    state = gp.state
    if state is None or not gp.of_time or state.site.shift.ndim != 1:
        raise ValueError("gp must be a model of times and one series that has learned data")
    x = torch.linspace(0.0, state.length, _GRID, dtype=torch.float64)[:, None]
    stamps = gp.user_inputs(x)
    figure, axes = panels(2 if infos else 1, 1, (8.0, 2.4), shared=False, extra=(0.4, 1.0))
    with torch.no_grad():
        sd = gp.process.predict(state, x.to(gp.kernel.like)).variance.clamp_min(0.0).sqrt()
        prior = gp.kernel.diag(x.to(gp.kernel.like)).sqrt()
        axes[0].plot(stamps, prior.cpu(), color=GUIDE, linestyle="--", label="prior")
        axes[0].plot(stamps, sd.cpu(), color=COLOURS[0], linewidth=1.2, label="posterior")
        if isinstance(gp.likelihood, Gaussian):
            noise = float(gp.likelihood.noise.sqrt())
            axes[0].axhline(noise, color=COLOURS[1], linestyle=":", label="noise")
    axes[0].set_ylim(bottom=0.0)
    axes[0].set_ylabel(f"deviation of {labels[1]}", fontsize=9)
    if infos:
        ends = np.array([info.t_end for info in infos])
        lost = [float(info.lost_information) for info in infos]
        axes[1].plot(ends, lost, "o-", color=COLOURS[2], label="lost of old knowledge")
        missed = [float(info.unexplained) for info in infos]
        axes[1].plot(ends, missed, "s-", color=COLOURS[3], label="not taken in of new observations")
        axes[1].set_ylabel("nats an update", fontsize=9)
        axes[1].set_ylim(bottom=0.0)
        axes[1].sharex(axes[0])
    axes[-1].set_xlabel(labels[0], fontsize=9)
    legend(figure, axes)
    return figure
