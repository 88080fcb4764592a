"""`probseq online`: the comparison on a stream, `online live` and `online vae`."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import OmitArgPrefixes, arg

from probseq_apps.cli_arguments import Command, refuse, value_of
from probseq_apps.experiments.online_live_settings import LiveSettings, saved_model
from probseq_apps.experiments.online_settings import OnlineSettings, saved_online
from probseq_apps.experiments.online_vae_settings import OnlineVaeSettings, saved_online_vae
from probseq_apps.experiments.settings import RunOptions
from probseq_apps.recipes.online import (
    ONLINE_RECIPES,
    for_stream,
    load_online_recipe,
    online_recipe_name,
)
from probseq_apps.recipes.online_vae import (
    ONLINE_VAE_RECIPES,
    for_channels,
    load_online_vae_recipe,
)


@dataclass(frozen=True, kw_only=True)
class Online:
    """Learn a stream task by task with online Gaussian processes, and compare what they remember.

    Every setting comes from a recipe, and flags override it. The defaults shown are those of the
    recipe named by --recipe; without one, of the recipe that suits --data. `probseq online live`
    forecasts a stream from standard input, `probseq online vae` is for many channels: each has a
    --help of its own.
    """

    recipe: Annotated[str, arg(help=f"One of {', '.join(ONLINE_RECIPES)}.")] = "sp500-small"
    settings: Annotated[OnlineSettings, arg(name="")] = field(default_factory=OnlineSettings)
    run: Annotated[RunOptions, arg(name="")] = field(default_factory=RunOptions)

    @property
    def debug(self) -> bool:
        """Whether errors show where they came from."""
        return self.run.debug

    def execute(self) -> None:
        """Run the comparison."""
        from probseq_apps.experiments import online
        from probseq_apps.run import run

        run(online.Online(self.settings), self.run, recipe=self.recipe)


@dataclass(frozen=True, kw_only=True)
class OnlineVae:
    """Learn a series of many channels with an online GP prior VAE, and compare what is remembered.

    Every setting comes from a recipe, and flags override it. The defaults shown are those of the
    recipe named by --recipe.
    """

    recipe: Annotated[str, arg(help=f"One of {', '.join(ONLINE_VAE_RECIPES)}.")] = (
        "moving-digits-small"
    )
    settings: Annotated[OnlineVaeSettings, arg(name="")] = field(default_factory=OnlineVaeSettings)
    run: Annotated[RunOptions, arg(name="")] = field(default_factory=RunOptions)

    @property
    def debug(self) -> bool:
        """Whether errors show where they came from."""
        return self.run.debug

    def execute(self) -> None:
        """Run the comparison."""
        from probseq_apps.experiments import online_vae
        from probseq_apps.run import run

        run(online_vae.OnlineVae(self.settings), self.run, recipe=self.recipe)


@dataclass(frozen=True, kw_only=True)
class OnlineLive:
    """Learn lines `t,y` from standard input one by one; print a forecast `t,mean,sd` after each.

    t is a number or an ISO date. Without --step the first line has no forecast: how far the next
    stamp is becomes known with the second. With --state, a process that was killed goes on where
    it was; the flags of the model then need not be repeated. Lines that cannot be understood, that
    lie before --t0, or absurdly far ahead, are named on standard error and skipped.
    """

    settings: Annotated[LiveSettings, arg(name="")] = field(default_factory=LiveSettings)

    @property
    def debug(self) -> bool:
        """Whether errors show where they came from."""
        return self.settings.debug

    def execute(self) -> None:
        """Follow the stream to its end."""
        from probseq_apps.experiments.online_live import live

        live(self.settings, sys.stdin, partial(print, flush=True), _complain)


def _complain(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def parse_online(arguments: list[str]) -> Command:
    """Read the arguments of `probseq online`, `online live` and `online vae`."""
    try:
        if arguments[:1] == ["live"]:
            return _parse_live(arguments[1:])
        if arguments[:1] == ["vae"]:
            return _parse_vae(arguments[1:])
        default = _default_online(arguments)
        return tyro.cli(
            OmitArgPrefixes[Online], prog="probseq online", args=arguments, default=default
        )
    except (ValueError, OSError) as error:
        refuse(str(error))


def _parse_live(arguments: list[str]) -> OnlineLive:
    """Arguments of `online live`; those of the model come from the state."""
    state, model = value_of("--state", arguments), None
    # A file that cannot be read is no wrong usage: the stream will refuse it when it begins.
    with suppress(ValueError, OSError):
        model = None if state is None else saved_model(Path(state))
    settings = LiveSettings() if model is None else LiveSettings(model=model)
    return tyro.cli(
        OmitArgPrefixes[OnlineLive],
        prog="probseq online live",
        args=arguments,
        default=OnlineLive(settings=settings),
    )


def _parse_vae(arguments: list[str]) -> OnlineVae:
    default = _default_vae(arguments)
    return tyro.cli(
        OmitArgPrefixes[OnlineVae], prog="probseq online vae", args=arguments, default=default
    )


def _default_online(arguments: Sequence[str]) -> Online:
    """What `probseq online` does where no flag says otherwise.

    The settings of the recipe, or of the run to resume; they must be known before the flags are
    read, since they are the flags' defaults.

    Raises:
        ValueError: the recipe or the data set is unknown.
    """
    recipe, data = value_of("--recipe", arguments), value_of("--data", arguments)
    if recipe is None and data is None and (folder := _to_resume(arguments)) is not None:
        saved = saved_online(folder)
        if saved is not None:
            return Online(recipe=saved[0], settings=saved[1])
    recipe = recipe or online_recipe_name(data or "sp500")
    settings = load_online_recipe(recipe)
    return Online(recipe=recipe, settings=for_stream(settings, data or settings.data))


def _default_vae(arguments: Sequence[str]) -> OnlineVae:
    """What `probseq online vae` does where no flag says otherwise, as `_default_online`.

    Raises:
        ValueError: the recipe or the data set is unknown.
    """
    recipe, data = value_of("--recipe", arguments), value_of("--data", arguments)
    if recipe is None and data is None and (folder := _to_resume(arguments)) is not None:
        saved = saved_online_vae(folder)
        if saved is not None:
            return OnlineVae(recipe=saved[0], settings=saved[1])
    recipe = recipe or "moving-digits-small"
    settings = load_online_vae_recipe(recipe)
    return OnlineVae(recipe=recipe, settings=for_channels(settings, data or settings.data))


def _to_resume(arguments: Sequence[str]) -> Path | None:
    folder = value_of("--run-dir", arguments)
    return Path(folder) if folder is not None and "--resume" in arguments else None
