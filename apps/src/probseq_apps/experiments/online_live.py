"""`probseq online live`: learn a stream line by line, forecast, and survive being killed."""

import sys
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from ohsvgp import LostInformationWarning, OnlineGP
from ohsvgp.live import LiveStream
from probseq_apps.experiments.online import make_kernel, make_likelihood
from probseq_apps.settings.online import METHODS, LiveModel, LiveSettings, Place

_REBASE = "grow:1.05"


def live_command(settings: LiveSettings) -> None:
    """Follow the stream on standard input to its end."""
    live(
        settings, sys.stdin, partial(print, flush=True), partial(print, file=sys.stderr, flush=True)
    )


def live(
    settings: LiveSettings,
    lines: Iterable[str],
    tell: Callable[[str], None],
    complain: Callable[[str], None],
) -> None:
    """Read lines to the end; tell the forecasts after each, complain of what is wrong or lost."""
    torch.set_num_threads(settings.threads)
    stream = LiveStream(
        build_live_model(settings.model),
        settings.state,
        settings=settings.model.to_dict(),
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


def build_live_model(settings: LiveModel) -> OnlineGP:
    """Return a model that has seen nothing yet."""
    basis, start = METHODS[settings.method].basis, settings.t0
    if basis is None:
        raise ValueError(f"method {settings.method!r} has no inducing variables")
    t0: Any = start
    with suppress(TypeError, ValueError):
        t0 = float(start)  # pyright: ignore[reportArgumentType]
    return OnlineGP(
        make_kernel(settings, 1),
        make_likelihood(settings),
        basis(settings, Place(settings.window)),
        t0=t0,
        rebase=_REBASE,
        time_unit=settings.time_unit,
    )
