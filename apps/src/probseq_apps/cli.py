"""The command line `probseq`, the only place that reads arguments.

They are read, and wrong ones refused with exit status 2, before torch is imported.
"""

import io
import json
import os
import re
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import make_dataclass, replace
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path
from types import FunctionType
from typing import Annotated, Any, NamedTuple, NoReturn

import tyro
from tyro.conf import Suppress, arg

from probseq.settings import Settings
from probseq_apps.data.names import some_names, unknown_name_message
from probseq_apps.engine.files import FULL_DISK, ConfigMismatchError
from probseq_apps.engine.signals import exit_on_sigterm
from probseq_apps.options import Options, Output
from probseq_apps.registry import GROUPS, REGISTRY, Entry, load
from probseq_apps.settings.common import DefaultSelectors, Recipes, merged, saved_settings

_FROM_RECIPE = (
    "Every setting comes from a recipe, and flags override it. The defaults shown are those of the "
    "recipe named by --recipe; without one, of the recipe that suits --data."
)
_CONFIG = "JSON file of settings, as `probseq config` prints, or TOML; flags override it."
_CONFIG_HELP = """usage: probseq config COMMAND [options]

Print the settings of a command as JSON, which --config reads: those of its recipe, under its flags.

Example: probseq config classify --epochs 2 > mine.json
Example: probseq classify --config mine.json"""


class Command(NamedTuple):
    """A parsed command line: the command, its recipe and its settings."""

    entry: Entry
    recipe: str | None
    settings: Any
    options: Any


def main(argv: Sequence[str] | None = None) -> int:
    """Run `probseq`, and return the exit status: 0, 1 for a failure, 130 after Ctrl-C.

    Wrong usage raises `SystemExit` with status 2, like argparse, and SIGTERM one with 143.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        match words:
            case ["--version", *_]:
                print(f"probseq {version('probseq-apps')}")
            case [] | ["-h" | "--help" | "help"] | ["help", "-h" | "--help", *_]:
                print(_overview())
            case ["config", "-h" | "--help", *_]:
                print(_CONFIG_HELP)
            case ["help", *command]:
                return main([*command, "--help"])
            case ["config"]:
                _refuse("config needs a command, as `probseq config classify`")
            case ["config", *arguments]:
                entry, recipe, settings, _ = parse(arguments)
                values = {"experiment": entry.kind, "recipe": recipe or ""}
                print(json.dumps(values | {"settings": settings.to_dict()}, indent=2))
            case _:
                return _run(parse(words))
    except BrokenPipeError:  # `probseq claims | head` has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def parse(words: Sequence[str]) -> Command:
    """Read the arguments of a command; exit with status 2 for wrong ones, with 0 for --help.

    The first parse reads the flags that choose the defaults, the second all flags.
    """
    name, arguments = _split(list(words))
    entry, prog = REGISTRY[name], f"probseq {name}"
    flags = [word for word in arguments if word not in ("-h", "--help", "--help-all")]
    try:
        recipe, settings, recipes = _defaults(entry, prog, flags)
        options = Options() if entry.files else Output()
        about = [f"{entry.summary[0].upper()}{entry.summary[1:]}.", entry.about.strip()]
        about += [f"Example: {line}" for line in entry.examples]
        if recipes:
            about.append(_FROM_RECIPE)
        listed = ", ".join(recipes)
        if flags != arguments and "--help-all" not in arguments:
            listed = some_names(recipes)
            if groups := [*_groups(settings), *_groups(options)]:
                about.append(f"`{prog} --help-all` has more options: {', '.join(groups)}.")
            settings, options = _hidden_groups(settings), _hidden_groups(options)
        form: list[Any] = [
            ("recipe", Annotated[str, arg(help=f"One of {listed}.")], recipe),
            ("config", Annotated[Path | None, arg(help=_CONFIG)], None),
            ("settings", Annotated[type(settings), arg(name="")], settings),
            ("options", Annotated[type(options), arg(name="")], options),
        ]
        parsed = _read(
            make_dataclass("Command", form if recipes else form[2:], kw_only=True),
            prog=prog,
            description="\n\n".join(filter(None, about)),
            args=arguments if flags == arguments else ["--help"],
        )
        if hasattr(settings, "check_complete"):
            parsed.settings.check_complete()
    except BrokenPipeError:
        raise
    except (ValueError, OSError) as error:  # what settings refuse once all of them are known
        _refuse(str(error))
    return Command(entry, getattr(parsed, "recipe", None), parsed.settings, parsed.options)


def _split(words: list[str]) -> tuple[str, list[str]]:
    """Return the command's name of one or two words, and what is behind it."""
    if words[0] == "online" and (words[1:2] == ["live"] or any(map(os.path.isfile, words[1:2]))):
        _refuse("readings are forecast by `probseq forecast FILE`, those of a pipe by `... -`")
    for number in (2, 1):
        name = " ".join(words[:number])
        if name in REGISTRY:
            return name, words[number:]
    group, names = words[0], {name.split()[0] for name in REGISTRY}
    if group not in GROUPS:
        _refuse(unknown_name_message("command", group, sorted(names | {"config", "help"})))
    if len(words) == 1 or words[1] in ("-h", "--help"):
        print(_overview(group))
        raise SystemExit(0)
    steps = [name.split()[1] for name in REGISTRY if name.startswith(f"{group} ")]
    _refuse(unknown_name_message(f"command of {group}", words[1], steps))


def _read(form: Any, **options: Any) -> Any:
    """Return what tyro reads; what it refuses in a box is an error of one line."""
    box = io.StringIO()
    try:
        with redirect_stderr(box):
            return tyro.cli(form, **options)
    except SystemExit as stop:
        if stop.code != 2:
            raise
    # Below the title, and in ASCII a rule, the message goes to the next rule.
    lines = [re.sub("^[─-]{3,}$", "", line.strip("│ ")) for line in box.getvalue().splitlines()[1:]]
    text = " ".join(takewhile(bool, lines if lines[0] else lines[1:]))
    if near := [
        line.split()[0] for line in lines if text[:12] == "Unrecognized" and line[:2] == "--"
    ]:
        text += f"; did you mean {near[0]}?"
    if choice := re.match(
        r"invalid choice '(.*)' for argument '(.*)'\. Expected one of (.*)", text
    ):
        text = unknown_name_message(choice[2], choice[1], re.findall("'([^']+)'", choice[3]))
    text = re.sub(r"^Error parsing ([^-:][^:]*: )?", "", text)  # a flag's name stays, a group's not
    text = re.sub(r"Could not find valid.*?:|no type matching.*?from", "cannot be read from", text)
    _refuse(re.sub(r"(invalid literal for|could not conv).*?:", "must be a number, got", text))


def _defaults(entry: Entry, prog: str, words: list[str]) -> tuple[str, Any, tuple[str, ...]]:
    """Return recipe and settings where no flag says otherwise, and the names of all recipes."""
    source = load(entry.settings)
    if isinstance(source, type):
        return "", source(), ()
    selectors, _ = _read(
        DefaultSelectors, prog=prog, args=words, return_unknown_args=True, add_help=False
    )
    if not isinstance(source, Recipes):
        return "", source(selectors), ()
    recipe, settings = _from_file(selectors, entry, source)
    if (
        selectors.resume
        and selectors.run_dir is not None
        and selectors.recipe is selectors.data is None
    ):
        saved = saved_settings(selectors.run_dir, entry.kind, type(settings))
        recipe, settings = saved or (recipe, settings)
    return recipe, settings, tuple(source.by_name)


def _from_file(
    selectors: DefaultSelectors, entry: Entry, defaults: Recipes[Any]
) -> tuple[str, Any]:
    """Return recipe and settings: those of --config over those of the recipe that it names."""
    if selectors.config is None:
        return defaults(selectors)
    try:
        text = selectors.config.read_text("utf-8")
        values = json.loads(text) if selectors.config.suffix == ".json" else tomllib.loads(text)
    except (ValueError, OSError) as error:
        raise ValueError(
            f"config must be a file of JSON or TOML, got {selectors.config}: {error}"
        ) from error
    if not isinstance(values, Mapping) or not isinstance(values.get("settings"), Mapping):
        raise ValueError(f"{selectors.config} must have settings, as `probseq config` prints them")
    if values.get("experiment", entry.kind) != entry.kind:
        raise ValueError(
            f"{selectors.config} is of {values['experiment']}, and not of {entry.kind}"
        )
    overrides = values["settings"]
    for name, value in (("recipe", values.get("recipe")), ("data", overrides.get("data"))):
        if not isinstance(value, str | None):
            raise ValueError(f"{name} in {selectors.config} must be text, got {value!r}")
    named = replace(
        selectors,
        recipe=selectors.recipe or values.get("recipe"),
        data=selectors.data or overrides.get("data"),
    )
    recipe, settings = defaults(named)
    try:
        return recipe, settings.from_dict(merged(settings.to_dict(), overrides))
    except ValueError as error:
        raise ValueError(f"{error}, in {selectors.config}") from error


def _groups(settings: Settings) -> list[str]:
    """Return the names of the settings that are groups of others."""
    return [name for name, value in vars(settings).items() if isinstance(value, Settings)]


def _hidden_groups(settings: Settings) -> Settings:
    """Return the same settings in a class whose groups the help leaves out."""
    values, kind = vars(settings), type(settings)
    hidden = {name: Suppress[type(values[name])] for name in _groups(settings)}
    body = {name: values[name] for name in hidden}
    body |= {"__annotations__": hidden, "__doc__": kind.__doc__, "__post_init__": lambda _: None}
    return type(kind.__name__, (kind,), body)(**values)


def _run(command: Command) -> int:
    """Run a command; return 1 after a failure, with one line of text unless --debug is given."""
    (entry, recipe, settings, options), started = command, time.perf_counter()
    try:
        with exit_on_sigterm():
            # Before torch is imported, which takes seconds.
            if entry.files and not options.quiet and os.environ.get("RANK", "0") == "0":
                data = f": {settings.data}" if hasattr(settings, "data") else ""
                print(f"{entry.name}{data}", flush=True)
            target = load(entry.run)
            if isinstance(target, FunctionType):
                target(settings)
            else:
                from probseq_apps.run import log, run

                log.started = started
                run(target, settings, options, recipe=recipe or "")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except ConfigMismatchError as error:  # what is asked for is not what the run was started with
        _refuse(str(error))
    except (ValueError, OSError, ImportError, ArithmeticError, RuntimeError) as error:
        if options.debug:
            raise
        message = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, OSError) and error.errno in FULL_DISK:
            message = (
                f"{error.filename or 'the output'} cannot be written: {error.strerror}; make room"
            )
            message += " or name another folder" + "; a run goes on with --resume" * entry.files
        _say(f"error: {message}")
        return 1
    except KeyboardInterrupt:
        if options.debug:
            raise
        _say("interrupted")
        return 130
    except SystemExit as stop:
        if stop.code == 143:
            _say("terminated")
        raise
    return 0


def _overview(group: str = "") -> str:
    """Return the list of all commands, or of those of a group."""
    if group:
        about, command = f"{GROUPS[group][0].upper()}{GROUPS[group][1:]}.", f"{group} COMMAND"
        entries = [entry for name, entry in REGISTRY.items() if name.startswith(f"{group} ")]
        listed = {entry.name.split()[1]: entry.summary for entry in entries}
    else:
        about, command = "Probabilistic sequence models: train, evaluate and compare.", "COMMAND"
        entries = [entry for name, entry in REGISTRY.items() if name.split()[0] not in GROUPS]
        listed = {entry.name: entry.summary for entry in entries} | GROUPS
        listed["config"] = "print settings, for --config: `probseq config COMMAND FLAGS`"
    width = max(map(len, listed))
    lines = [f"  {name.ljust(width)}  {summary}" for name, summary in listed.items()]
    head = f"usage: probseq {command} [options]\n\n{about}\n\ncommands:"
    example = next(line for entry in entries for line in entry.examples)
    foot = f"\nExample: {example}\n\n`probseq {command} --help` lists the options of a command."
    return "\n".join([head, *lines, foot])


def _say(message: str) -> None:
    print(f"probseq: {message}", file=sys.stderr)


def _refuse(message: str) -> NoReturn:
    _say(f"error: {message}")
    raise SystemExit(2)


if __name__ == "__main__":
    raise SystemExit(main())
