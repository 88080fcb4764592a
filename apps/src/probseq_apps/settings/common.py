"""What the settings of all commands share: flat groups, recipes, and what decides defaults."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from tyro.conf import OmitArgPrefixes

from probseq.settings import Settings
from probseq_apps.data.names import unknown_name_message
from probseq_apps.engine.files import CONFIG, DamagedFileError, ForeignFileError, read_json

# A group whose flags have no prefix: `training: Flat[Training]` has --epochs, and
# `sgpa: SGPAConfig` --sgpa.num-inducing.
Flat = OmitArgPrefixes

S = TypeVar("S")


@dataclass(frozen=True, kw_only=True)
class Pick:
    """What is named on a command line that decides the defaults of all other flags."""

    recipe: str | None = None
    data: str | None = None
    config: Path | None = None
    run_dir: Path | None = None
    resume: bool = False
    # Parts that are trained already: defaults are as in the run that they lie in.
    tokenizer: str | None = None
    # Of `generate run` the kinds to train, maybe none.
    prior: tuple[str, ...] = ()
    model: str | None = None
    samples: str | None = None
    state: str | None = None


def with_data(settings: Any, pick: Pick) -> Any:
    """Return settings of a recipe with the data set that is named."""
    same = pick.data is None or pick.data == settings.data
    return settings if same else replace(settings, data=pick.data)


@dataclass(frozen=True)
class Recipes(Generic[S]):
    """Complete settings by name.

    Attributes:
        known: makes the settings of each name.
        default: the name where neither recipe nor data are named.
        suits: name for a data set; raises a ValueError where it is unknown.
        adapt: settings of a recipe for what is named beside it.
    """

    known: Mapping[str, Callable[[], Any]]
    default: str
    suits: Callable[[str], str]
    adapt: Callable[[Any, Pick], S] = with_data

    def load(self, name: str) -> Any:
        """Return the settings of a recipe; a ValueError names the nearest known one."""
        if name not in self.known:
            raise ValueError(unknown_name_message("recipe", name, self.known))
        return self.known[name]()

    def __call__(self, pick: Pick) -> tuple[str, S]:
        """Return the recipe's name and the settings that a command has without other flags."""
        name = pick.recipe
        if name is None:
            name = self.default if pick.data is None else self.suits(pick.data)
        return name, self.adapt(self.load(name), pick)


def check_unique(name: str, values: tuple[object, ...], *, empty: bool = False) -> None:
    """Raise if a tuple has a value twice, or none."""
    if not values and not empty:
        raise ValueError(f"{name} must name at least one, got none")
    if len(set(values)) < len(values):
        raise ValueError(f"{name} must not repeat a value, got {' '.join(map(str, values))}")


def unlike_defaults(settings: Settings) -> list[str]:
    """Return the names of those settings that differ from their defaults."""
    return list(settings.differs_from(type(settings)()))


def config_values(kind: str, recipe: str, settings: Mapping[str, object]) -> dict[str, object]:
    """Return what the `config.json` of an experiment holds."""
    return {"experiment": kind, "recipe": recipe, "settings": settings}


def saved_kind(folder: Path) -> str | None:
    """Return the kind of experiment that a folder holds; None where it holds none."""
    try:
        config = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    except ForeignFileError:
        return None
    return str(config["experiment"]) if "experiment" in config else None


def saved_settings(
    folder: Path, kind: str, build: Callable[[Mapping[str, Any]], S]
) -> tuple[str, S] | None:
    """Return recipe and settings of the experiment in a folder; None where it is of no such kind.

    Raises:
        DamagedFileError: the file is damaged or from another version.
    """
    if saved_kind(folder) != kind:
        return None
    config = read_json(folder / CONFIG)
    try:
        return str(config["recipe"]), build(config["settings"])
    # What wrong contents end in, from a missing key to a comparison of a string with a number.
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DamagedFileError(
            f"{folder / CONFIG} is damaged or from another version: {type(error).__name__}: {error}"
        ) from error
