"""The commands of `probseq`, listed in `commands.toml`; importable without torch.

Modules are named as text, and imported when a command is asked for.
"""

import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """A command."""

    name: str  # one word, or two
    summary: str  # its line in `probseq --help`
    # "module:name" of `settings.common.Recipes`, of a function of `DefaultSelectors` that returns
    # settings, or of their class, whose defaults they then are.
    settings: str
    # "module:name" of an `experiment.Workflow`, driven by `run.run`; or of a function of settings.
    run: str
    files: bool = True  # it takes `Options` of files and running, and not only of what is shown
    about: str = ""  # what its own --help says; without it the summary
    examples: tuple[str, ...] = ()  # command lines, for its --help

    @property
    def kind(self) -> str:
        """Its experiment in `config.json`; "" where it has no run to resume."""
        recipes = self.settings.endswith("RECIPES")
        return self.name.replace(" ", "-").removesuffix("-run") if recipes else ""


def load(name: str) -> Any:
    """Import the attribute "module:name" of this package."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(f"probseq_apps.{module}"), attribute)


_LISTED = tomllib.loads(Path(__file__).with_name("commands.toml").read_text("utf-8"))
GROUPS: dict[str, str] = _LISTED["groups"]
REGISTRY = {name: Entry(name, **fields) for name, fields in _LISTED["commands"].items()}
