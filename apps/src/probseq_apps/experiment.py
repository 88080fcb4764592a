"""The interface between the driver and a workflow, and the folder of its results."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from probseq.files import sole_use
from probseq.settings import Settings
from probseq_apps.engine import distributed, log
from probseq_apps.engine.files import read_json, write_json
from probseq_apps.options import Options

S = TypeVar("S", bound=Settings)
Data = TypeVar("Data")
RESULTS = "results"


class Job(NamedTuple):
    """A row of the comparison (a method, a variant of a model) with a seed."""

    row: str
    seed: int

    @property
    def name(self) -> str:
        """The name of its result file."""
        return f"{self.row}-seed{self.seed}"


Results = Mapping[Job, dict[str, Any]]


class RunFolder:
    """The folder of an experiment with the results of its jobs, each computed once.

    Under torchrun every process computes the missing results, and the main one writes them.
    """

    def __init__(self, path: Path, recipe: str) -> None:
        self.path, self.recipe = path, recipe

    def results_file(self, name: str) -> Path:
        """Return the path of the results with a name."""
        return self.path / RESULTS / f"{name}.json"

    def made_by(self, job: Job, file: Path) -> Path:
        """Return a file that a job has written; raise if it was deleted since."""
        if not file.is_file():
            results = self.results_file(job.name)
            raise FileNotFoundError(f"{file} is not there: delete {results} too, and resume")
        return file

    def has(self, name: str) -> bool:
        """Return whether the main process sees these results; all processes get its answer."""
        return distributed.broadcast(distributed.is_main() and self.results_file(name).exists())

    def once(self, name: str, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """Return results; compute and store them where there are none yet.

        A process that computes them, such as one whose driver was killed, is waited for.
        """
        file = self.results_file(name)
        if not self.has(name):
            waiting = partial(log.say, f"{name} is at work in another process: waiting for its end")
            lock = sole_use(self.path, name, wait=waiting) if distributed.is_main() else None
            with lock or nullcontext():
                if not self.has(name):
                    results = make()
                    if distributed.is_main():
                        write_json(file, results)
                    distributed.barrier()
        return distributed.broadcast(read_json(file) if distributed.is_main() else {})


def _nothing(*_: object) -> None:
    return None


def _no_values(*_: object) -> dict[Any, Any]:
    return {}


def _named_data(settings: Settings, data: object) -> str:
    return str(getattr(settings, "data", ""))


def _settings_alone(settings: Settings, data: object) -> dict[str, Any]:
    return {"settings": settings.to_dict()}


@dataclass(frozen=True, kw_only=True)
class Workflow(Generic[S, Data]):
    """The functions of a command, which `run.run` calls from `load` to `report`.

    Those of a workflow with jobs stand at a module's level: processes that share the jobs import
    them by their names. A job that has results is not done again.
    """

    kind: str  # as `config.json` names it
    command: str  # its name on the command line
    folders: Sequence[str] = ()  # patterns of the files in its folder beside the results
    single_process: str = ""  # why processes of torchrun cannot share a training; "" where they do
    # Whether jobs take seconds: they are done here in one process, unless asked otherwise
    brief: bool = False
    # Lists the jobs in the order in which they are done; none where the report alone takes time
    jobs: Callable[[S], Collection[Job]] = _no_values
    load: Callable[[S, Options], Data]  # reads the data
    # Names the data set, for the name of a new folder
    data_name: Callable[[S, Data], str] = _named_data
    # Gives the contents of `config.json` beside kind and recipe
    config: Callable[[S, Data], Mapping[str, Any]] = _settings_alone
    # Raises if settings don't suit the data or the machine; nothing is written yet
    check: Callable[[S, Data], None] = _nothing
    # Gives a line about data and jobs; None where only the report is to be seen
    describe: Callable[[S, Data], str | None] = _nothing
    # Measures a few steps, and gives the seconds that each job takes
    seconds: Callable[[S, Data], Mapping[Job, float]] = _no_values
    timed: str = "training"  # what these are of
    # Makes the files that jobs share, before several processes do them
    prepare: Callable[[S, Data, RunFolder], None] = _nothing
    # Lengths of training that may grow on resumption, with patterns of what is then made again
    longer: Mapping[str, Sequence[str]] = field(
        default_factory=dict[str, Sequence[str]], hash=False
    )
    # Does a job, from where it stopped, and returns its results
    run: Callable[[S, Data, Job, RunFolder], Mapping[str, Any]] = _no_values
    report: Callable[[S, Data, Results, RunFolder], str]  # writes the report and returns it as text


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
