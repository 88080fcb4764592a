"""The base of all commands' settings: flat groups, recipes, and the flags that choose them."""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from tyro.conf import OmitArgPrefixes

from probseq.files import DamagedFileError, ForeignFileError
from probseq.settings import Bound, Index, Settings, SettingsT
from probseq_apps.data.names import unknown_name_message
from probseq_apps.engine.files import CONFIG, read_json

# A group whose flags have no prefix: `training: Flat[Training]` has --epochs, and
# `sgpa: SGPAConfig` --sgpa.num-inducing.
Flat = OmitArgPrefixes

DISTINCT = Bound("without repetitions", lambda values: len(set(values)) == len(values))
SOME = Bound("not empty", lambda values: len(values) > 0)
Names = Annotated[tuple[str, ...], SOME, DISTINCT]
Share = Annotated[float, Bound("above 0 and below 1", lambda value: 0.0 < value < 1.0)]
Seeds = Annotated[tuple[Index, ...], SOME, DISTINCT]

S = TypeVar("S")


@dataclass(frozen=True, kw_only=True)
class DefaultSelectors:
    """Flags read first, because they choose the recipe."""

    recipe: str | None = None
    data: str | None = None
    config: Path | None = None
    run_dir: Path | None = None
    resume: bool = False
    # A folder or a file of a trained model, whose settings are the defaults.
    model: str | None = None
    state: str | None = None


def merged(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with overrides in place of equal keys, in all depths."""
    result = dict(values)
    for name, value in overrides.items():
        default = values.get(name)
        if isinstance(default, Mapping) and isinstance(value, Mapping):
            value = merged(default, value)
        result[name] = value
    return result


def with_data(settings: SettingsT, selectors: DefaultSelectors) -> SettingsT:
    """Return settings of a recipe, with the data set that the command line names."""
    return settings if selectors.data is None else replace(settings, data=selectors.data)


class Recipes(Generic[S]):
    """Complete settings by name; the first is the default.

    A file in `recipes` holds their differences from the defaults, and the data sets that they suit.
    `adapt` changes a recipe's settings for the other flags that are read first.
    """

    def __init__(
        self,
        name: str,
        settings: type[Settings],
        adapt: Callable[[Any, DefaultSelectors], S] = with_data,
    ) -> None:
        with (Path(__file__).parent / "recipes" / f"{name}.toml").open("rb") as file:
            written: dict[str, dict[str, Any]] = tomllib.load(file)

        def expanded(recipe: dict[str, Any]) -> dict[str, Any]:
            inherited: dict[str, Any] = {}
            bases = recipe.get("base", [])
            for base in [bases] if isinstance(bases, str) else bases:
                inherited = merged(inherited, expanded(written[base]))
            changes = {
                name: value for name, value in recipe.items() if name not in ("base", "suits")
            }
            return merged(inherited, changes)

        def make(recipe: dict[str, Any]) -> Settings:
            return settings.from_dict(merged(settings().to_dict(), recipe))

        values = {name: expanded(recipe) for name, recipe in written.items() if name[0] != "_"}
        self.by_name = {name: partial(make, recipe) for name, recipe in values.items()}
        self.default = next(iter(values))
        self._suited: dict[str, str] = {}
        for name, recipe in values.items():
            for data in written[name].get("suits", [recipe["data"].partition(":")[0]]):
                self._suited.setdefault(data, name)
        self._adapt = adapt

    def load(self, name: str) -> Any:
        """Return the settings of a recipe; a ValueError names the nearest known one."""
        check_name("recipe", name, self.by_name)
        return self.by_name[name]()

    def __call__(self, selectors: DefaultSelectors) -> tuple[str, S]:
        """Return the recipe's name and the settings that a command has without other flags."""
        name = selectors.recipe
        if name is None:  # what no recipe suits, the settings refuse
            name = self._suited.get((selectors.data or "").partition(":")[0], self.default)
        return name, self._adapt(self.load(name), selectors)


def require(condition: object, message: str) -> None:
    """Raise unless a condition on settings holds."""
    if not condition:
        raise ValueError(message)


def check_name(kind: str, name: str, names: Iterable[str]) -> None:
    """Raise if a name is none of those that there are."""
    if name not in names:
        raise ValueError(unknown_name_message(kind, name, names))


def saved_kind(folder: Path) -> str | None:
    """Return the kind of experiment that a folder holds; None where it holds none."""
    try:
        config = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    except ForeignFileError:
        return None
    return str(config["experiment"]) if "experiment" in config else None


def saved_settings(
    folder: Path, kind: str, settings: type[SettingsT]
) -> tuple[str, SettingsT] | None:
    """Return recipe and settings of a folder's experiment; None where it is of another kind."""
    if saved_kind(folder) != kind:
        return None
    config = read_json(folder / CONFIG)
    try:
        return (str(config["recipe"]), settings.from_dict(config["settings"]))
    # What wrong contents end in, from a missing key to a comparison of a string with a number.
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        reason = error if isinstance(error, ValueError) else repr(error)
        text = f"{folder / CONFIG} is damaged or from another version: {reason}"
        raise DamagedFileError(text) from error
