"""Options of a command that change no number: files, processes, and messages."""

from pathlib import Path
from typing import Annotated

from probseq.settings import Bound, Count, NotNegative, Settings
from probseq_apps.engine.trackers import TrackerName

Executor = Annotated[
    str,
    Bound(
        "local, ray or ray:ADDRESS",
        lambda value: value in ("local", "ray") or value[:4] == "ray:" != value,
    ),
]


class Output(Settings):
    """Messages."""

    debug: bool = False
    """Show where an error came from."""
    quiet: bool = False
    """Print the result only, and errors."""


class Ray(Settings):
    """Resources of a job on a Ray cluster."""

    cpus: Count | None = None
    """Processors of a job; None: as many as it has threads."""
    gpus: NotNegative = 0.0
    """GPUs of a job, or the share of one."""


class Options(Output):
    """Files and running."""

    data_dir: Path | None = None
    """Folder that holds the data sets."""
    download: bool = False
    """Fetch a data set that is not in the data folder."""
    run_dir: Path | None = None
    """Folder of this run; None: runs/COMMAND-DATA-TIME."""
    resume: bool = False
    """Go on with the run in --run-dir where it stopped."""
    overwrite: bool = False
    """Delete the run in --run-dir first."""
    threads: Count = 1
    """CPU threads of torch; more than one pays for the models of paper size only."""
    workers: Count | None = None
    """Jobs at the same time; None: here up to 4, as many as the machine has processors, and one
    where it has a GPU; elsewhere all."""
    executor: Executor = "local"
    """Where jobs are done: local, ray (its own, on this machine), ray:auto (the cluster that runs
    here) or ray:ADDRESS."""
    ray: Ray = Ray()
    log_to: TrackerName | None = None
    """Tracker that has the curves of each training too, by accelerate: tensorboard (in the folder
    of each), trackio, mlflow or wandb (project probseq)."""

    def check(self) -> None:
        """Refuse options that don't go together."""
        if self.resume and self.overwrite:
            raise ValueError("resume and overwrite exclude each other: give one of them")
        for name in ("resume", "overwrite"):
            if getattr(self, name) and self.run_dir is None:
                raise ValueError(f"{name} needs run_dir: name the folder of the run")
