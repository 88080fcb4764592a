"""The command line `probseq`, the only place that reads arguments.

They are read, and wrong ones refused with exit status 2, before torch is imported.
"""

import io
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import make_dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn

import tyro
from tyro.conf import arg

from probseq_apps.data.names import unknown_name_message
from probseq_apps.engine.files import ConfigMismatchError
from probseq_apps.engine.signals import exit_on_sigterm
from probseq_apps.options import Options, Output
from probseq_apps.registry import GROUPS, REGISTRY, Entry, load
from probseq_apps.settings.common import Pick, Recipes, config_values, merged, saved_settings

_FROM_RECIPE = (
    "Every setting comes from a recipe, and flags override it. The defaults shown are those of the "
    "recipe named by --recipe; without one, of the recipe that suits --data."
)


_CONFIG = "YAML or JSON file of settings, as `probseq config` prints; flags override it."


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
        if words[:1] in ([], ["-h"], ["--help"]):
            print(_overview())
            return 0
        if words[0] == "info":
            return _info()
        if words[0] == "config":
            command = parse(_config_words(words[1:]))
            values = config_values(
                command.entry.kind, command.recipe or "", command.settings.to_dict()
            )
            print(json.dumps(values, indent=2))
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
    entry, prog, asked = REGISTRY[name], f"probseq {name}", None
    for place, word in enumerate(rest):
        if word in ("-h", "--help"):
            asked, rest = " ".join(rest[place + 1 : place + 2]), rest[:place] + rest[place + 2 :]
            break
    try:
        recipe, settings, known = _defaults(entry, prog, rest)
        options = Options() if entry.files else Output()
        fields: list[Any] = [
            (name, Annotated[type(group), arg(name="")], group)
            for name, group in (("settings", settings), ("options", options))
        ]
        if known:
            fields.insert(0, ("recipe", Annotated[str, arg(help=f"One of {known}.")], recipe))
            fields.insert(1, ("config", Annotated[Path | None, arg(help=_CONFIG)], None))
        about = [f"{entry.summary[0].upper()}{entry.summary[1:]}.", entry.about]
        read = partial(
            tyro.cli,
            make_dataclass("Command", fields, kw_only=True),
            prog=prog,
            description="\n\n".join(filter(None, [*about, _FROM_RECIPE if known else ""])),
        )
        if asked is not None:
            _help(read, prog, asked)
        found = read(args=rest)
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
        saved = saved_settings(pick.run_dir, entry.kind, load(entry.settings))
    recipe, settings = saved or _from_file(pick, entry, defaults)
    return recipe, settings, ", ".join(defaults.known)


def _from_file(pick: Pick, entry: Entry, defaults: Recipes[Any]) -> tuple[str, Any]:
    """Return recipe and settings: those of --config over those of the recipe that it names."""
    if pick.config is None:
        return defaults(pick)
    text = pick.config.read_text("utf-8")
    try:
        values = json.loads(text)
    except ValueError:
        import yaml

        try:
            values = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(f"{pick.config} is neither JSON nor YAML: {error}") from error
    if not isinstance(values, Mapping) or not isinstance(values.get("settings"), Mapping):
        raise ValueError(f"{pick.config} must have settings, as `probseq config` prints them")
    if values.get("experiment", entry.kind) != entry.kind:
        raise ValueError(f"{pick.config} is of {values['experiment']}, and not of {entry.kind}")
    given = values["settings"]
    named = replace(
        pick, recipe=pick.recipe or values.get("recipe"), data=pick.data or given.get("data")
    )
    recipe, settings = defaults(named)
    return recipe, settings.from_dict(merged(settings.to_dict(), given))


def _config_words(words: list[str]) -> list[str]:
    """Return the words of the command to print the settings of; --recipe alone finds its first."""
    if words and (words[0] in GROUPS or words[0] in REGISTRY):
        return words
    pick, _ = tyro.cli(
        Pick, prog="probseq config", args=words, return_unknown_args=True, add_help=False
    )
    known: dict[str, str] = {}
    for name, entry in REGISTRY.items():
        recipes = load(entry.defaults) if entry.kind else None
        known |= {recipe: name for recipe in getattr(recipes, "known", ()) if recipe not in known}
    if pick.recipe not in known:
        _refuse(unknown_name_message("recipe", pick.recipe or "", known))
    return [*known[pick.recipe].split(), *words]


def _help(read: Callable[..., Any], prog: str, asked: str) -> NoReturn:
    """Print what most people set and the names of the other groups; or one group, or all."""
    told = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    with redirect_stdout(told), suppress(SystemExit):
        read(args=["--help"])
    text = told.buffer.getvalue().decode("utf-8")
    intro, *boxes = re.split(r"^(?=╭)", text, flags=re.MULTILINE)
    titles = [re.sub(r"^╭─+ ?| ─*╮$", "", box.splitlines()[0]) for box in boxes]
    groups = {title.removesuffix(" options"): box for title, box in zip(titles, boxes, strict=True)}
    if asked == "all":
        print(text, end="")
    elif asked in groups:
        print(groups[asked], end="")
    elif asked and not asked.startswith("-"):
        _refuse(unknown_name_message("group of options", asked, [*groups, "all"]))
    else:
        print(intro + boxes[0], end="")
        lines = [
            f"  {name.ljust(max(map(len, groups)))}  {box.splitlines()[1].strip('│ ')}"
            for name, box in groups.items()
            if box is not boxes[0]
        ]
        if lines:
            title = f"more options, shown by `{prog} --help GROUP` or `--help all`:"
            print("\n".join([title, *lines]))
    raise SystemExit(0)


def _info() -> int:
    """Print what a report of a fault should say of the machine."""
    import platform

    import torch

    for name in ("probseq-apps", "probseq", "torch", "numpy"):
        print(f"{name.ljust(12)} {version(name)}")
    print(f"{'python'.ljust(12)} {platform.python_version()} on {platform.platform()}")
    print(f"{'threads'.ljust(12)} {torch.get_num_threads()} of {os.cpu_count()} processors")
    found = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    print(f"{'devices'.ljust(12)} {', '.join(['cpu', *found])}")
    return 0


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
    } | {
        "config": "print settings, for --config: `probseq config --recipe NAME`, or COMMAND flags",
        "info": "versions, devices and threads",
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
