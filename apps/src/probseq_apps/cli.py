"""The command line `probseq`, the only place that reads arguments.

They are read, and wrong ones refused with exit status 2, before torch is imported.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import make_dataclass
from importlib.metadata import version
from typing import Annotated, Any, NamedTuple, NoReturn

import tyro
from tyro.conf import arg

from probseq_apps.data.names import unknown_name_message
from probseq_apps.engine.files import ConfigMismatchError
from probseq_apps.engine.signals import exit_on_sigterm
from probseq_apps.options import Options, Output
from probseq_apps.registry import GROUPS, REGISTRY, Entry, load
from probseq_apps.settings.common import Pick, Recipes, saved_settings

_FROM_RECIPE = (
    "Every setting comes from a recipe, and flags override it. The defaults shown are those of the "
    "recipe named by --recipe; without one, of the recipe that suits --data."
)


class Command(NamedTuple):
    """What is asked for."""

    entry: Entry
    recipe: str | None
    settings: Any
    options: Any


def main(argv: Sequence[str] | None = None) -> int:
    """Run `probseq`.

    Args:
        argv: arguments without the program's name; `None` takes them from the process.

    Returns:
        Exit status: 0, 1 for a failure, 130 after Ctrl-C. Wrong usage raises `SystemExit` with
        status 2, like argparse, and SIGTERM one with 143.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if words[:1] == ["--version"]:
            print(f"probseq {version('probseq-apps')}")
            return 0
        if words in ([], ["-h"], ["--help"]):
            print(_overview())
            return 0
        return _run(parse(words))
    except BrokenPipeError:  # `probseq report --list | head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def parse(words: Sequence[str]) -> Command:
    """Read the arguments of a command.

    The first parse finds what decides the defaults, the second takes all flags.

    Raises:
        SystemExit: with status 2 for wrong ones, with 0 for --help.
    """
    name, rest = _split(list(words))
    entry, prog = REGISTRY[name], f"probseq {name}"
    try:
        recipe, settings, known = _defaults(entry, prog, rest)
        options = Options() if entry.files else Output()
        fields: list[Any] = [
            (name, Annotated[type(group), arg(name="")], group)
            for name, group in (("settings", settings), ("options", options))
        ]
        if known:
            fields.insert(0, ("recipe", Annotated[str, arg(help=f"One of {known}.")], recipe))
        about = [f"{entry.summary[0].upper()}{entry.summary[1:]}.", entry.about]
        found = tyro.cli(
            make_dataclass("Command", fields, kw_only=True),
            prog=prog,
            args=rest,
            description="\n\n".join(filter(None, [*about, _FROM_RECIPE if known else ""])),
        )
        if hasattr(settings, "check_given"):
            found.settings.check_given()
    except BrokenPipeError:
        raise
    except (ValueError, OSError) as error:  # what settings refuse once all of them are known
        _refuse(str(error))
    return Command(entry, getattr(found, "recipe", None), found.settings, found.options)


def _split(words: list[str]) -> tuple[str, list[str]]:
    """Return the command's name of one or two words, and what is behind it."""
    for number in (2, 1):
        name = " ".join(words[:number])
        if name in REGISTRY:
            return name, words[number:]
    group, names = words[0], {name.split()[0] for name in REGISTRY}
    if group not in GROUPS:
        _refuse(unknown_name_message("command", group, sorted(names)))
    if len(words) == 1 or words[1] in ("-h", "--help"):
        print(_overview(group))
        raise SystemExit(0)
    steps = [name.split()[1] for name in REGISTRY if name.startswith(f"{group} ")]
    _refuse(unknown_name_message(f"command of {group}", words[1], steps))


def _defaults(entry: Entry, prog: str, words: list[str]) -> tuple[str, Any, str]:
    """Return recipe and settings where no flag says otherwise, and the names of all recipes.

    They are those of the run to resume where neither recipe nor data are named.
    """
    if not entry.defaults:
        return "", load(entry.settings)(), ""
    pick, _ = tyro.cli(Pick, prog=prog, args=words, return_unknown_args=True, add_help=False)
    defaults = load(entry.defaults)
    if not isinstance(defaults, Recipes):
        return "", defaults(pick), ""
    saved = None
    if pick.resume and pick.run_dir is not None and pick.recipe is pick.data is None:
        saved = saved_settings(pick.run_dir, entry.kind, load(entry.settings).from_dict)
    recipe, settings = saved or defaults(pick)
    return recipe, settings, ", ".join(defaults.known)


def _run(command: Command) -> int:
    """Do what is asked for; exit status 1 and one line for a failure, unless --debug is given.

    An error that points to a mistake in the program itself (TypeError, KeyError, ...) keeps its
    traceback.
    """
    try:
        with exit_on_sigterm():
            _start(command)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except ConfigMismatchError as error:  # what is asked for is not what the run was started with
        _refuse(str(error))
    except (ValueError, OSError, ImportError, ArithmeticError, RuntimeError) as error:
        if command.options.debug:
            raise
        _say(f"error: {' '.join(str(error).split()) or type(error).__name__}")
        return 1
    except KeyboardInterrupt:
        if command.options.debug:
            raise
        _say("interrupted")
        return 130
    except SystemExit as stop:
        if stop.code == 143:
            _say("terminated")
        raise
    return 0


def _start(command: Command) -> None:
    entry, recipe, settings, options = command
    target = load(entry.run)
    if isinstance(target, type):
        from probseq_apps.run import run

        run(target(settings), options, recipe=recipe or "")
        return
    named = {} if recipe is None else {"recipe": recipe}
    target(settings, *([options] if entry.files else []), **named)


def _overview(group: str = "") -> str:
    """Return the list of all commands, or of those of a group."""
    listed = {name: entry.summary for name, entry in REGISTRY.items()} | GROUPS
    listed = {
        name: text
        for name, text in listed.items()
        if name.split()[0] not in GROUPS or name in GROUPS
    }
    about, command = "Probabilistic sequence models: train, evaluate and compare.", "COMMAND"
    if group:
        listed = {
            name.split()[1]: entry.summary
            for name, entry in REGISTRY.items()
            if name.startswith(f"{group} ")
        }
        about, command = f"{GROUPS[group][0].upper()}{GROUPS[group][1:]}.", f"{group} COMMAND"
    width = max(map(len, listed))
    lines = [f"  {name.ljust(width)}  {summary}" for name, summary in listed.items()]
    return "\n".join(
        [
            f"usage: probseq {command} [options]",
            f"\n{about}\n\ncommands:",
            *lines,
            f"\n`probseq {command} --help` lists the options of a command.",
        ]
    )


def _say(message: str) -> None:
    print(f"probseq: {message}", file=sys.stderr)


def _refuse(message: str) -> NoReturn:
    _say(f"error: {message}")
    raise SystemExit(2)


if __name__ == "__main__":
    raise SystemExit(main())
