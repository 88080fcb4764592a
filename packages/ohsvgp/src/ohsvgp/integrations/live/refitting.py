"""Rules by which a live stream fits its hyperparameters again, and starts again."""

import copy
import math
from contextlib import suppress
from statistics import fmean

import torch

from ohsvgp.beyond.prior import fit_prior
from ohsvgp.hyperparameters import Refit
from ohsvgp.integrations.live.stream_state import StreamState
from ohsvgp.online import OnlineGP
from ohsvgp.tasks import starting_lengthscales
from probseq.errors import CholeskyError
from probseq.kernels import ARDKernel, Sum, Walk

# Lines that fits see.
LATEST = 100
# Standardised errors beyond it come once in a hundred; a new start takes so many lines at least.
_Z_99, _MIN_RESTART_LINES = 2.576, 5
# … and this one once in a thousand. Mean squares of twenty that are below it hardly ever come.
_Z_999, _CALM_MEAN_SQUARE = 3.291, 0.0625


def refit_due(position: StreamState, refit: Refit) -> bool:
    """Return whether to fit the hyperparameters anew before the latest line is learned.

    The position counts the latest line.
    """
    far = [abs(error) > _Z_999 for *_, error in position.recent[-2:]]
    if refit.period is None:
        return refit.when == "drift" and far[-1]
    due = position.since >= min(refit.period, position.fitted)
    return due or (position.since > 1 and all(far))


def refit_to_lines(
    model: OnlineGP, refit: Refit, position: StreamState, unit: float, *, first: bool = False
) -> None:
    """Fit the hyperparameters to the latest lines, in place.

    The unit of the model's times is a difference of stamps; the first lines are fitted from several
    lengthscales, of unknown unit.
    """
    lines = position.recent if first else position.recent[-LATEST:]
    stamps, values, _ = zip(*sorted(lines), strict=True)
    x = (torch.tensor(stamps, dtype=torch.float64) - (position.start or 0.0)) / unit
    y = (torch.tensor(values, dtype=torch.float64) - position.centre) / position.scale
    if first:
        for kernel in model.kernel.modules():
            if isinstance(kernel, Walk) and len(x) > 1:
                kernel.set_step(x.diff().median())
    starts = [copy.deepcopy((model.kernel, model.likelihood))]
    for lengthscale in starting_lengthscales(x) if first else ():
        kernel, likelihood = copy.deepcopy(starts[0])
        term = kernel.kernels[0] if isinstance(kernel, Sum) else kernel
        if isinstance(term, ARDKernel) and not isinstance(term, Walk):
            with torch.no_grad():
                term.raw_lengthscale.fill_(math.log(lengthscale))
            starts.append((kernel, likelihood))
    with suppress(CholeskyError):
        best = fit_prior(
            starts,
            x,
            y,
            seed=model.seed,
            mean=model.mean,
            steps=refit.steps,
            priors=refit.priors,
            restarts=refit.restarts if first else 0,
            limited=refit.limited,
        )
        for module, fitted in zip((model.kernel, model.likelihood), best, strict=True):
            module.load_state_dict(fitted.state_dict())
    position.fitted, position.since = len(lines), 0


def lines_to_restart_from(position: StreamState, warmup: int) -> list[list[float]] | None:
    """Return the latest lines if they are all far out, or all near, and enough to start from.

    Half of those since one; or as many as the model began with whose squares are a sixteenth of
    what it expects, as those after a jump that a fit took for the stream's variance.
    """
    rows = position.recent[-2 * warmup :]
    if warmup < _MIN_RESTART_LINES or len(rows) < warmup:
        return None
    errors = [error for *_, error in rows]
    far = [abs(error) > _Z_99 for error in errors]
    first: int | None = len(rows) - warmup
    # What the model was fitted to are no forecasts, and have no errors.
    calm = all(errors[first:]) and fmean(e * e for e in errors[first:]) < _CALM_MEAN_SQUARE
    if not calm:
        # Two at once: one alone may be an outlier of what was before.
        begins = (k for k in range(first + 1) if far[k] and far[k + 1])
        first = next((k for k in begins if 2 * sum(far[k:]) >= len(far) - k), None)
    return None if first is None else rows[first:]
