"""`probseq online live`: learn a stream line by line, forecast, and survive being killed."""

import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial

import torch

from ohsvgp import LostInformationWarning, OnlineGP
from ohsvgp.live import LiveStream
from probseq_apps.experiments.online_live_settings import LiveModel, LiveSettings
from probseq_apps.experiments.online_methods import make_basis, make_kernel, make_likelihood
from probseq_apps.experiments.online_settings import GPSettings

_REBASE = "grow:1.05"


def build_live_model(settings: LiveModel) -> OnlineGP:
    """A model that has seen nothing yet."""
    model = GPSettings(
        num_inducing=settings.num_inducing,
        likelihood=settings.likelihood,
        kernel=settings.kernel,
        hyperparameters="fixed",
        lengthscale=settings.lengthscale,
        outputscale=settings.outputscale,
        noise=settings.noise,
        dispersion=settings.dispersion,
        window=settings.window,
    )
    return OnlineGP(
        make_kernel(model, 1),
        make_likelihood(model),
        make_basis(settings.method, model, window=settings.window),
        t0=None if settings.t0 is None else _start(settings.t0),
        rebase=_REBASE,
        time_unit=settings.time_unit,
    )


def live(
    settings: LiveSettings,
    lines: Iterable[str],
    tell: Callable[[str], None],
    complain: Callable[[str], None],
) -> None:
    """Read lines to the end; tell a forecast after each.

    Args:
        settings: model, forecast and state.
        lines: the stream.
        tell: takes the forecasts, line by line.
        complain: takes warnings, and messages about lines that cannot be understood.

    Raises:
        ValueError: the state's file is damaged, or belongs to another model.
        OSError: a file cannot be read or written.
    """
    torch.set_num_threads(settings.threads)
    stream = LiveStream(
        build_live_model(settings.model),
        settings.state,
        settings=asdict(settings.model),
        offset=settings.model.offset,
        horizon=settings.horizon,
        step=settings.step,
    )
    with warnings.catch_warnings():
        # A plain line, without a place in our sources.
        warnings.simplefilter("always", LostInformationWarning)
        warnings.showwarning = lambda message, *_: complain(f"warning: {message}")
        for text in stream.follow(
            lines, complain=complain, every=settings.every, replay=settings.replay
        ):
            tell(text)


def live_command(settings: LiveSettings) -> None:
    """Follow the stream on standard input to its end."""

    def complain(message: str) -> None:
        print(message, file=sys.stderr, flush=True)

    live(settings, sys.stdin, partial(print, flush=True), complain)


def _start(t0: str) -> float | str:
    """The earliest stamp as a model takes it: a number, or a date."""
    try:
        return float(t0)
    except ValueError:
        return t0
