"""The interface between the driver and an experiment, and the folder of its results."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from probseq_apps.engine import distributed
from probseq_apps.engine.files import read_json, write_json
from probseq_apps.options import Options

Data = TypeVar("Data")
RESULTS = "results"


class Job(NamedTuple):
    """A row of the comparison (a method, a variant of a model) with a seed."""

    row: str
    seed: int

    @property
    def name(self) -> str:
        """The name of its result file."""
        return f"{self.row.replace(':', ',')}-seed{self.seed}"


Results = Mapping[Job, dict[str, Any]]


class RunFolder:
    """The folder of an experiment with the results of its jobs, each computed once.

    Under torchrun every process computes the missing results, and the main one writes them.

    Args:
        path: the folder.
        recipe: name of the recipe that the settings came from.
    """

    def __init__(self, path: Path, recipe: str) -> None:
        self.path, self.recipe = path, recipe

    def results_file(self, name: str) -> Path:
        """Return the path of the results with a name."""
        return self.path / RESULTS / f"{name}.json"

    def has(self, name: str) -> bool:
        """Return whether the main process sees these results; all processes get its answer."""
        return distributed.broadcast(distributed.is_main() and self.results_file(name).exists())

    def once(self, name: str, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """Return results; compute and store them where there are none yet."""
        file = self.results_file(name)
        if not self.has(name):
            results = make()
            if distributed.is_main():
                write_json(file, results)
            distributed.barrier()
        return distributed.broadcast(read_json(file) if distributed.is_main() else {})


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


def by_row(results: Results) -> dict[str, dict[str, Any]]:
    """Return the results by row and then by seed, as reports hold them."""
    rows: dict[str, dict[str, Any]] = {}
    for job, measured in results.items():
        rows.setdefault(job.row, {})[str(job.seed)] = measured
    return rows


def counted(methods: Sequence[str], seeds: Sequence[int]) -> str:
    """Return how many methods and seeds are compared, in words."""
    counts = (("method", len(methods)), ("seed", len(seeds)))
    return ", ".join(f"{number} {name}{'' if number == 1 else 's'}" for name, number in counts)
