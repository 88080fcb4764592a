"""The command line `probseq`.

Arguments are read, and unknown names refused with exit status 2, before torch is imported: the
modules imported here know settings and names only, and an experiment is imported when it runs.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import tyro
from tyro.conf import OmitArgPrefixes, Positional, arg

from probseq_apps.cli_arguments import Command, refuse, value_of
from probseq_apps.cli_generate import parse_generate
from probseq_apps.cli_online import parse_online
from probseq_apps.data.names import unknown_name_message
from probseq_apps.experiments.regress_settings import RegressSettings, saved_regress
from probseq_apps.experiments.report_settings import ReportSettings
from probseq_apps.experiments.saved import saved_command
from probseq_apps.experiments.settings import ClassifySettings, RunOptions
from probseq_apps.recipes import RECIPES, for_data, load_recipe, small_recipe_name
from probseq_apps.recipes.regression import REGRESS_RECIPES, for_molecules, load_regress_recipe
from probseq_apps.settings.bench import BenchGenerateSettings, BenchOnlineSettings, BenchSettings


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
class Bench:
    """Time the methods beside plain softmax attention: speed, and memory kept for training.

    `probseq bench online` times online Gaussian processes, `probseq bench generate` pseudo videos,
    tokenizers, priors and UNets; each has options of its own.
    """

    subject: Annotated[Positional[Literal["attention"]], arg(help="What to time.")]
    settings: Annotated[BenchSettings, arg(name="")] = field(default_factory=BenchSettings)

    @property
    def debug(self) -> bool:
        """Whether errors show where they came from."""
        return self.settings.debug

    def execute(self) -> None:
        """Measure and print the table."""
        from probseq_apps.bench.attention import bench_attention

        bench_attention(self.settings)


@dataclass(frozen=True, kw_only=True)
class BenchOnline:
    """Time updates of online Gaussian processes, and watch the memory of a long stream."""

    settings: Annotated[BenchOnlineSettings, arg(name="")] = field(
        default_factory=BenchOnlineSettings
    )

    @property
    def debug(self) -> bool:
        """Whether errors show where they came from."""
        return self.settings.debug

    def execute(self) -> None:
        """Measure and print the table."""
        from probseq_apps.bench.online import bench_online

        bench_online(self.settings)


@dataclass(frozen=True, kw_only=True)
class BenchGenerate:
    """Time pseudo videos, tokenizers, priors, UNets and the Fréchet distance."""

    settings: Annotated[BenchGenerateSettings, arg(name="")] = field(
        default_factory=BenchGenerateSettings
    )

    @property
    def debug(self) -> bool:
        """Whether errors show where they came from."""
        return self.settings.debug

    def execute(self) -> None:
        """Measure and print the table."""
        from probseq_apps.bench.generate import bench_generate

        bench_generate(self.settings)


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
        refuse(unknown_name_message("command", name, SUBCOMMANDS))
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
        refuse(str(error))


def parse_regress(arguments: list[str]) -> Regress:
    """Read the arguments of `probseq regress`."""
    try:
        default = _default_regress(arguments)
        return tyro.cli(
            OmitArgPrefixes[Regress], prog="probseq regress", args=arguments, default=default
        )
    except ValueError as error:
        refuse(str(error))


def parse_bench(arguments: list[str]) -> Command:
    """Read the arguments of `probseq bench attention`, `bench online` and `bench generate`."""
    try:
        if arguments[:1] == ["online"]:
            return tyro.cli(
                OmitArgPrefixes[BenchOnline], prog="probseq bench online", args=arguments[1:]
            )
        if arguments[:1] == ["generate"]:
            return tyro.cli(
                OmitArgPrefixes[BenchGenerate], prog="probseq bench generate", args=arguments[1:]
            )
        return tyro.cli(OmitArgPrefixes[Bench], prog="probseq bench", args=arguments)
    except ValueError as error:
        refuse(str(error))


def parse_report(arguments: list[str]) -> Report:
    """Read the arguments of `probseq report`."""
    try:
        return tyro.cli(OmitArgPrefixes[Report], prog="probseq report", args=arguments)
    except ValueError as error:
        refuse(str(error))


def _default_classify(arguments: Sequence[str]) -> Classify:
    """What `probseq classify` does where no flag says otherwise.

    The settings of the recipe, or of the run to resume; they must be known before the flags are
    read, since they are the flags' defaults.

    Raises:
        ValueError: the recipe or the data set is unknown.
    """
    recipe, data = value_of("--recipe", arguments), value_of("--data", arguments)
    run_dir = value_of("--run-dir", arguments)
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
    recipe, data = value_of("--recipe", arguments), value_of("--data", arguments)
    run_dir = value_of("--run-dir", arguments)
    if recipe is None and data is None and run_dir is not None and "--resume" in arguments:
        saved = saved_regress(Path(run_dir))
        if saved is not None:
            return Regress(recipe=saved[0], settings=saved[1])
    recipe = recipe or "zinc-small"
    settings = load_regress_recipe(recipe)
    return Regress(recipe=recipe, settings=for_molecules(settings, data or settings.data))


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
    "generate": Subcommand(
        "generate images through pseudo videos; `generate run` does all steps (default: digits)",
        parse_generate,
    ),
    "report": Subcommand("put a table of the papers beside what run folders hold", parse_report),
    "bench": Subcommand(
        "time attention beside softmax attention, online processes, or image generation",
        parse_bench,
    ),
}


if __name__ == "__main__":
    raise SystemExit(main())
