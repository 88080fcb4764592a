"""The base of workflows that are classes, and the workflow that such a class is."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Generic

from probseq_apps.experiment import Data, Job, Results, RunFolder, Workflow
from probseq_apps.options import Options


class Experiment(Generic[Data]):
    """A comparison: its jobs are done one by one, and those with results are not done again.

    Attributes:
        kind: as `config.json` names it.
        command: its name on the command line.
        parts: patterns of the files in its folder beside the results.
        brief: whether jobs take seconds: they share a progress bar instead of a line each.
        settings: of the comparison.
        jobs: in the order in which they are done; none where the report alone takes time.
        data_name: name of the data set, once it is loaded; it enters a new folder's name.
        config: contents of `config.json` beside kind and recipe.
    """

    kind: ClassVar[str]
    command: ClassVar[str]
    parts: ClassVar[Sequence[str]] = ()
    brief: ClassVar[bool] = False

    def __init__(self, settings: Any) -> None:
        self.settings = settings
        self.jobs: Sequence[Job] = ()
        self.data_name: str = getattr(settings, "data", "")
        self.config: dict[str, Any] = {"settings": settings.to_dict()}

    def load(self, options: Options) -> Data:
        """Read the data."""
        raise NotImplementedError

    def check(self, data: Data) -> None:
        """Raise if the settings don't suit the data or the machine; nothing is written yet."""

    def describe(self, data: Data) -> str:
        """Return a line about data and jobs; none where only the report is to be seen."""
        return ""

    def seconds(self, jobs: Sequence[Job], data: Data) -> float:
        """Return about how long the trainings of jobs take one after the other; 0: not known."""
        return 0.0

    def prepare(self, data: Data, at: RunFolder) -> None:
        """Make the files that jobs share, before several processes do them."""

    def run(self, job: Job, data: Data, at: RunFolder) -> Mapping[str, Any]:
        """Do a job, from where it stopped, and return its results."""
        raise NotImplementedError

    def report(self, data: Data, results: Results, at: RunFolder) -> str:
        """Write the report and return it as text."""
        raise NotImplementedError


class _Made:
    """Calls a method of the one experiment of a class and of settings."""

    def __init__(self, kind: type[Experiment[Any]], name: str) -> None:
        self.kind, self.name = kind, name

    def __call__(self, settings: Any, *rest: Any) -> Any:
        experiment = _made(self.kind, _Same(settings))
        if self.name in ("jobs", "data_name", "config"):
            return getattr(experiment, self.name)
        if self.name == "load":
            return experiment.load(*rest)
        if self.name in ("run", "seconds"):
            data, job, *at = rest
            return getattr(experiment, self.name)(job, data, *at)
        return getattr(experiment, self.name)(*rest)


class _Same:
    def __init__(self, settings: Any) -> None:
        self.settings = settings

    def __hash__(self) -> int:
        return id(self.settings)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.settings is self.settings


@cache
def _made(kind: type[Experiment[Any]], same: _Same) -> Experiment[Any]:
    return kind(same.settings)


def workflow_of(kind: type[Experiment[Any]]) -> Workflow[Any, Any]:
    """Return the workflow that a class is."""
    names = ("jobs", "load", "data_name", "config", "check", "describe", "seconds", "prepare")
    calls: dict[str, Any] = {name: _Made(kind, name) for name in (*names, "run", "report")}
    place = {"folders": kind.parts, "brief": kind.brief}
    return Workflow(kind=kind.kind, command=kind.command, **place, **calls)
