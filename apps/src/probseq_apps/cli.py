"""The command line `probseq`.

Arguments are read, and unknown names refused with exit status 2, before torch is imported: the
modules imported here know settings and names only, and an experiment is imported when it runs.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, NoReturn, Protocol

import tyro
from tyro.conf import OmitArgPrefixes, Positional, arg

from probseq_apps.data.names import unknown_name_message
from probseq_apps.experiments.bench_settings import BenchSettings
from probseq_apps.experiments.online_live_settings import LiveSettings, saved_model
from probseq_apps.experiments.online_settings import OnlineSettings, saved_online
from probseq_apps.experiments.regress_settings import RegressSettings, saved_regress
from probseq_apps.experiments.report_settings import ReportSettings
from probseq_apps.experiments.saved import saved_command
from probseq_apps.experiments.settings import ClassifySettings, RunOptions
from probseq_apps.recipes import RECIPES, for_data, load_recipe, small_recipe_name
from probseq_apps.recipes.online import (
    ONLINE_RECIPES,
    for_stream,
    load_online_recipe,
    online_recipe_name,
)
from probseq_apps.recipes.regression import REGRESS_RECIPES, for_molecules, load_regress_recipe


@dataclass(frozen=True, kw_only=True)
class Classify:
    """Train classifiers, measure how sure they are and how right, and compare them.

    Every setting comes from a recipe, and flags override it. The defaults shown are those of the
    recipe named by --recipe; without one, of the small recipe that suits --data.
    """

    recipe: Annotated[str, arg(help=f"One of {', '.join(RECIPES)}.")] = "digits-small"
    settings: Annotated[ClassifySettings, arg(name="")] = field(default_factory=ClassifySettings)
    run: Annotated[RunOptions, arg(name="")] = field(default_factory=RunOptions)

    @property
    def debug(self) -> bool:
        """Whether errors show where they came from."""
        return self.run.debug

    def execute(self) -> None:
        """Run the experiment."""
        from probseq_apps.experiments.classify import classify

        classify(self.settings, self.run, recipe=self.recipe)


@dataclass(frozen=True, kw_only=True)
class Regress:
    """Predict a property of molecules, measure how sure and how right, and compare methods.

    Every setting comes from a recipe, and flags override it. The defaults shown are those of the
    recipe named by --recipe. Molecules need the extra `molecules` (RDKit).
    """

    recipe: Annotated[str, arg(help=f"One of {', '.join(REGRESS_RECIPES)}.")] = "zinc-small"
    settings: Annotated[RegressSettings, arg(name="")] = field(default_factory=RegressSettings)
    run: Annotated[RunOptions, arg(name="")] = field(default_factory=RunOptions)

    @property
    def debug(self) -> bool:
        """Whether errors show where they came from."""
        return self.run.debug

    def execute(self) -> None:
        """Run the experiment."""
        from probseq_apps.experiments.regress import regress

        regress(self.settings, self.run, recipe=self.recipe)


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
        from probseq_apps.experiments.online import online

        online(self.settings, self.run, recipe=self.recipe)


@dataclass(frozen=True, kw_only=True)
class OnlineLive:
    """Learn lines `t,y` from standard input one by one; print a forecast `t,mean,sd` after each.

    t is a number or an ISO date. With --state, a process that was killed goes on where it was;
    the flags of the model then need not be repeated.
    """

    settings: Annotated[LiveSettings, arg(name="")] = field(default_factory=LiveSettings)

    @property
    def debug(self) -> bool:
        """Whether errors show where they came from."""
        return self.settings.debug

    def execute(self) -> None:
        """Follow the stream to its end."""
        from probseq_apps.experiments.online_live import live

        live(self.settings, sys.stdin, sys.stdout)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Time the methods beside plain softmax attention: speed, and memory kept for training."""

    subject: Annotated[Positional[Literal["attention"]], arg(help="What to time.")]
    settings: Annotated[BenchSettings, arg(name="")] = field(default_factory=BenchSettings)

    @property
    def debug(self) -> bool:
        """Whether errors show where they came from."""
        return self.settings.debug

    def execute(self) -> None:
        """Measure and print the table."""
        from probseq_apps.experiments.bench import bench_attention

        bench_attention(self.settings)


@dataclass(frozen=True, kw_only=True)
class Report:
    """Put a table of the papers beside what run folders hold; print, write and draw it."""

    settings: Annotated[ReportSettings, arg(name="")]

    @property
    def debug(self) -> bool:
        """Whether errors show where they came from."""
        return self.settings.debug

    def execute(self) -> None:
        """Make the table, or list all."""
        from probseq_apps.report.papers import load_table, table_names

        if self.settings.table is None:
            for name in table_names():
                print(f"{name.ljust(9)} {load_table(name).title}")
            return
        from probseq_apps.report.paper_report import paper_report

        paper_report(self.settings.table, self.settings)


class Command(Protocol):
    """What the command line asks of a parsed command."""

    @property
    def debug(self) -> bool:
        """Whether errors show where they came from."""
        ...

    def execute(self) -> None:
        """Do it; imports what it needs."""
        ...


class Subcommand(NamedTuple):
    """An entry of `probseq --help`.

    Attributes:
        summary: one line.
        parse: reads the arguments behind the name; wrong ones exit with status 2.
    """

    summary: str
    parse: Callable[[list[str]], Command]


def main(argv: Sequence[str] | None = None) -> int:
    """Run `probseq`.

    Args:
        argv: arguments without the program's name; `None` takes them from the process.

    Returns:
        Exit status: 0, 1 for a failure, 130 after Ctrl-C. Wrong usage raises `SystemExit` with
        status 2, like argparse.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    name, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if name == "--version":
        print(f"probseq {version('probseq-apps')}")
        return 0
    if name in ("-h", "--help"):
        print(_help())
        return 0
    if name not in SUBCOMMANDS:
        _refuse(unknown_name_message("command", name, SUBCOMMANDS))
    command = SUBCOMMANDS[name].parse(rest)
    # Failures of the data, the machine or the numbers are told in one line; an error that points
    # to a mistake in the program itself (TypeError, KeyError, ...) keeps its traceback.
    try:
        command.execute()
    except (ValueError, OSError, ImportError, ArithmeticError, RuntimeError) as error:
        if command.debug:
            raise
        message = " ".join(str(error).split()) or type(error).__name__
        print(f"probseq: error: {message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        if command.debug:
            raise
        print("probseq: interrupted", file=sys.stderr)
        return 130
    return 0


def parse_classify(arguments: list[str]) -> Classify:
    """Read the arguments of `probseq classify`."""
    try:
        default = _default_classify(arguments)
        return tyro.cli(
            OmitArgPrefixes[Classify], prog="probseq classify", args=arguments, default=default
        )
    except ValueError as error:  # what the settings refuse once all of them are known
        _refuse(str(error))


def parse_regress(arguments: list[str]) -> Regress:
    """Read the arguments of `probseq regress`."""
    try:
        default = _default_regress(arguments)
        return tyro.cli(
            OmitArgPrefixes[Regress], prog="probseq regress", args=arguments, default=default
        )
    except ValueError as error:
        _refuse(str(error))


def parse_online(arguments: list[str]) -> Command:
    """Read the arguments of `probseq online`, `online live` and `online vae`."""
    if arguments[:1] == ["live"]:
        return parse_online_live(arguments[1:])
    try:
        default = _default_online(arguments)
        return tyro.cli(
            OmitArgPrefixes[Online], prog="probseq online", args=arguments, default=default
        )
    except ValueError as error:
        _refuse(str(error))


def parse_online_live(arguments: list[str]) -> OnlineLive:
    """Read the arguments of `probseq online live`; those of the model come from the state."""
    try:
        state = _value_of("--state", arguments)
        model = None if state is None else saved_model(Path(state))
        settings = LiveSettings() if model is None else LiveSettings(model=model)
        return tyro.cli(
            OmitArgPrefixes[OnlineLive],
            prog="probseq online live",
            args=arguments,
            default=OnlineLive(settings=settings),
        )
    except (ValueError, OSError) as error:
        _refuse(str(error))


def parse_bench(arguments: list[str]) -> Bench:
    """Read the arguments of `probseq bench`."""
    try:
        return tyro.cli(OmitArgPrefixes[Bench], prog="probseq bench", args=arguments)
    except ValueError as error:
        _refuse(str(error))


def parse_report(arguments: list[str]) -> Report:
    """Read the arguments of `probseq report`."""
    try:
        return tyro.cli(OmitArgPrefixes[Report], prog="probseq report", args=arguments)
    except ValueError as error:
        _refuse(str(error))


def _default_classify(arguments: Sequence[str]) -> Classify:
    """What `probseq classify` does where no flag says otherwise.

    The settings of the recipe, or of the run to resume; they must be known before the flags are
    read, since they are the flags' defaults.

    Raises:
        ValueError: the recipe or the data set is unknown.
    """
    recipe, data = _value_of("--recipe", arguments), _value_of("--data", arguments)
    run_dir = _value_of("--run-dir", arguments)
    if recipe is None and data is None and run_dir is not None and "--resume" in arguments:
        saved = saved_command(Path(run_dir))
        if saved is not None:
            return Classify(recipe=saved[0], settings=saved[1])
    if recipe is None:
        recipe = small_recipe_name(data or "digits")
    settings = load_recipe(recipe)
    return Classify(recipe=recipe, settings=for_data(settings, data or settings.data))


def _default_regress(arguments: Sequence[str]) -> Regress:
    """What `probseq regress` does where no flag says otherwise, as `_default_classify`.

    Raises:
        ValueError: the recipe or the data set is unknown.
    """
    recipe, data = _value_of("--recipe", arguments), _value_of("--data", arguments)
    run_dir = _value_of("--run-dir", arguments)
    if recipe is None and data is None and run_dir is not None and "--resume" in arguments:
        saved = saved_regress(Path(run_dir))
        if saved is not None:
            return Regress(recipe=saved[0], settings=saved[1])
    recipe = recipe or "zinc-small"
    settings = load_regress_recipe(recipe)
    return Regress(recipe=recipe, settings=for_molecules(settings, data or settings.data))


def _default_online(arguments: Sequence[str]) -> Online:
    """What `probseq online` does where no flag says otherwise, as `_default_classify`.

    Raises:
        ValueError: the recipe or the data set is unknown.
    """
    recipe, data = _value_of("--recipe", arguments), _value_of("--data", arguments)
    run_dir = _value_of("--run-dir", arguments)
    if recipe is None and data is None and run_dir is not None and "--resume" in arguments:
        saved = saved_online(Path(run_dir))
        if saved is not None:
            return Online(recipe=saved[0], settings=saved[1])
    recipe = recipe or online_recipe_name(data or "sp500")
    settings = load_online_recipe(recipe)
    return Online(recipe=recipe, settings=for_stream(settings, data or settings.data))


def _value_of(flag: str, arguments: Sequence[str]) -> str | None:
    value = None
    for index, argument in enumerate(arguments):
        if argument == flag and index + 1 < len(arguments):
            value = arguments[index + 1]
        elif argument.startswith(f"{flag}="):
            value = argument.removeprefix(f"{flag}=")
    return value


def _help() -> str:
    width = max(map(len, SUBCOMMANDS))
    lines = [f"  {name.ljust(width)}  {entry.summary}" for name, entry in SUBCOMMANDS.items()]
    return "\n".join(
        [
            "usage: probseq [--help] [--version] COMMAND [options]",
            "",
            "Probabilistic sequence models: train, evaluate and compare.",
            "",
            "commands:",
            *lines,
            "",
            "`probseq COMMAND --help` lists the options of a command.",
        ]
    )


def _refuse(message: str) -> NoReturn:
    print(f"probseq: error: {message}", file=sys.stderr)
    raise SystemExit(2)


SUBCOMMANDS: dict[str, Subcommand] = {
    "classify": Subcommand(
        "train classifiers on one data set, compare accuracy and uncertainty (default: digits)",
        parse_classify,
    ),
    "regress": Subcommand(
        "predict a property of molecules, compare errors and uncertainty (default: zinc)",
        parse_regress,
    ),
    "online": Subcommand(
        "learn a stream task by task, compare what methods remember; `online live` forecasts",
        parse_online,
    ),
    "report": Subcommand("put a table of the papers beside what run folders hold", parse_report),
    "bench": Subcommand("time attention methods beside softmax attention", parse_bench),
}


if __name__ == "__main__":
    raise SystemExit(main())
