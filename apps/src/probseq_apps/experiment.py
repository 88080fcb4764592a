"""What the driver asks of an experiment."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from probseq_apps.folder import RunFolder
from probseq_apps.options import Options

Data = TypeVar("Data")


class Job(NamedTuple):
    """A row of the comparison (a method, a variant of a model) with a seed."""

    row: str
    seed: int

    @property
    def name(self) -> str:
        """Of its files."""
        return f"{self.row}-seed{self.seed}"


Results = Mapping[Job, dict[str, Any]]


def by_row(results: Results) -> dict[str, dict[str, Any]]:
    """Return the results by row and then by seed, as reports hold them."""
    found: dict[str, dict[str, Any]] = {}
    for job, measured in results.items():
        found.setdefault(job.row, {})[str(job.seed)] = measured
    return found


def counted(methods: Sequence[str], seeds: Sequence[int]) -> str:
    """Return how many methods and seeds are compared, in words."""
    parts = (("method", len(methods)), ("seed", len(seeds)))
    return ", ".join(f"{number} {name}{'' if number == 1 else 's'}" for name, number in parts)


@runtime_checkable
class Settings(Protocol):
    """What is compared, and on which data."""

    @property
    def data(self) -> str:
        """Name of the data set."""
        ...

    def to_dict(self) -> dict[str, object]:
        """Plain values, as `config.json` holds them."""
        ...


@runtime_checkable
class Experiment(Protocol[Data]):
    """A comparison: its jobs are done one by one, and those with results are not done again."""

    @property
    def kind(self) -> str:
        """As `config.json` names it."""
        ...

    @property
    def command(self) -> str:
        """Its name on the command line."""
        ...

    @property
    def parts(self) -> Sequence[str]:
        """What it keeps in its folder beside results, as patterns."""
        ...

    @property
    def brief(self) -> bool:
        """Whether jobs take seconds: a bar tells of them, and not a line each."""
        ...

    @property
    def settings(self) -> Settings:
        """What is compared."""
        ...

    @property
    def jobs(self) -> Sequence[Job]:
        """In the order in which they are done."""
        ...

    def load(self, options: Options) -> Data:
        """Read the data."""
        ...

    def check(self, data: Data) -> None:
        """Raise if the settings don't suit the data or the machine; nothing is written yet."""
        ...

    def describe(self, data: Data) -> str:
        """Return a line about data and jobs."""
        ...

    def run(self, job: Job, data: Data, at: RunFolder) -> Mapping[str, Any]:
        """Do a job, from where it stopped, and return what was measured."""
        ...

    def report(self, data: Data, results: Results, at: RunFolder) -> str:
        """Write the report and return it as text."""
        ...
