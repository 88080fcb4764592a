"""Where jobs are done: in processes of this machine, on a Ray cluster, or by SLURM.

Each place is an `Executor` of `concurrent.futures`. A job is a function of the settings and of the
run's folder; from where that folder is not seen, its files are brought back.
"""

import io
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock, Thread
from types import FrameType
from typing import Any, Generic, NamedTuple

import torch

from probseq.errors import require
from probseq_apps.engine import distributed, log
from probseq_apps.engine.files import CONFIG
from probseq_apps.engine.signals import exit_on_sigterm, handling
from probseq_apps.experiment import RESULTS, Data, Job, RunFolder, S, Workflow
from probseq_apps.options import Options

_RETRIES = 3  # of a job whose process or machine was lost
_SLURM = "slurm"  # the cluster of submitit


class Outcome(NamedTuple):
    """How a job ended.

    Attributes:
        error: that ended it, of a kind that every process can read.
        stopped: number of the signal after which it saved its state; 0 of a finished job.
        text: what it printed.
        files: contents by path, where the run's folder is not seen.
    """

    error: Exception | None = None
    stopped: int = 0
    text: str = ""
    files: dict[str, bytes] = {}  # noqa: RUF012


class LostJobError(RuntimeError):
    """The process of a job ended without an outcome."""


@dataclass(frozen=True)
class Work(Generic[S, Data]):
    """Does jobs of a run in another process, from where they stopped."""

    workflow: Workflow[S, Data]  # whose jobs they are
    settings: S  # of the workflow
    options: Options  # of the run
    at: RunFolder  # the run's folder
    directory: Path  # that relative paths start from
    # Contents and time of the folder's `config.json`: who finds them sees the folder
    stamp: tuple[bytes, int]

    def __call__(self, job: Job) -> Outcome:
        """Do a job, and store its results; SIGTERM, SIGINT or SIGUSR2 saves its state."""
        caught: list[int] = []

        def out_of_time(signum: int, frame: FrameType | None) -> None:
            caught.append(signum)
            signal.raise_signal(signal.SIGTERM)

        text, outcome = io.StringIO(), Outcome()
        before, log.quiet = log.quiet, True  # bars of several processes would tear each other
        try:
            with (
                exit_on_sigterm(),
                handling(out_of_time, signal.SIGUSR2),
                redirect_stdout(text),
                redirect_stderr(text),
            ):
                outcome = Outcome(files=self._do(job))
        except (SystemExit, KeyboardInterrupt):
            outcome = Outcome(stopped=caught[0] if caught else signal.SIGTERM)
        except (ValueError, OSError, ImportError, ArithmeticError, RuntimeError) as error:
            if self.options.debug:
                raise
            if isinstance(error, OSError) and error.errno is not None:
                outcome = Outcome(OSError(error.errno, error.strerror, error.filename))
            else:
                outcome = Outcome(RuntimeError(str(error)))
        finally:
            log.quiet = before
        return outcome._replace(text=text.getvalue())

    def _do(self, job: Job) -> dict[str, bytes]:
        with suppress(OSError):
            os.chdir(self.directory)
        torch.set_num_threads(self.options.threads)
        flow, settings = self.workflow, self.settings
        data = _load(flow, settings, self.options)
        shared = False
        with suppress(OSError):
            shared = stamp_of(self.at) == self.stamp
        if shared:
            self.at.once(job.name, partial(flow.run, settings, data, job, self.at))
            return {}
        with TemporaryDirectory() as folder:
            at = RunFolder(Path(folder), self.at.recipe)
            flow.prepare(settings, data, at)
            at.once(job.name, partial(flow.run, settings, data, job, at))
            paths = [path for path in at.path.rglob("*") if path.is_file()]
            return {path.relative_to(at.path).as_posix(): path.read_bytes() for path in paths}


@lru_cache(maxsize=1)  # the jobs of a process share the data
def _load(workflow: Workflow[S, Data], settings: S, options: Options) -> Data:
    return workflow.load(settings, options)


def stamp_of(at: RunFolder) -> tuple[bytes, int]:
    """Return contents and time of a run's `config.json`, equal on all machines that see it."""
    file = at.path / CONFIG
    return file.read_bytes(), file.stat().st_mtime_ns


def do_in_parallel(
    work: Work[Any, Any], jobs: Sequence[Job], count: int, done: Callable[[], object]
) -> None:
    """Do jobs where the options say; their results are files.

    The first error ends them all; those that train save their state.

    After each job `done` is called.
    """
    executor = open_executor(work.options, work.at.path, count)
    try:
        pending = {executor.submit(work, job) for job in jobs}
        while pending:
            finished, pending = wait(pending, timeout=1.0, return_when="FIRST_COMPLETED")
            for future in finished:
                _take(future.result(), work.at)
                done()
    except BaseException as error:
        executor.shutdown(cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            raise RuntimeError("a process ended before its job was done") from error
        raise
    executor.shutdown()


def _take(outcome: Outcome, at: RunFolder) -> None:
    """Store the files of a job, its results last, and show what it printed."""
    if outcome.text.strip():
        log.say(outcome.text.strip())
    if outcome.error is not None:
        raise outcome.error
    if outcome.stopped:
        raise RuntimeError("a process was stopped before its job was done; its state is saved")
    for name in sorted(outcome.files, key=lambda name: name.startswith(f"{RESULTS}/")):
        path = at.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(outcome.files[name])


def check_executor(options: Options) -> None:
    """Raise if the executor's library or program is missing, or several processes train a model."""
    if options.executor == "local":
        return
    if distributed.world_size() > 1:
        raise ValueError(
            f"executor must be 'local' under torchrun, got {options.executor!r}: start one process"
        )
    if options.executor != "slurm":
        require("ray", extra="cluster", distribution="probseq-apps")
        return
    require("submitit", extra="cluster", distribution="probseq-apps")
    if _SLURM == "slurm" and shutil.which("srun") is None:
        raise ValueError("executor 'slurm' needs the program srun: start it where SLURM is")


def open_executor(options: Options, folder: Path, count: int) -> Executor:
    """Return the executor of the options."""
    if options.executor == "local":
        return LocalExecutor(count)
    if options.executor == "slurm":
        return SlurmExecutor(options, folder, count)
    return RayExecutor(options, count)


class LocalExecutor(ProcessPoolExecutor):
    """Processes of this machine; a lost one ends the run."""

    def __init__(self, count: int) -> None:
        super().__init__(count, multiprocessing.get_context("spawn"), _start_process)

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Submit a job."""
        return super().submit(_call_or_end, fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes; with `cancel_futures` at once: those that train save their state."""
        if cancel_futures:
            for process in multiprocessing.active_children():
                process.terminate()
        super().shutdown(wait, cancel_futures=cancel_futures)


def _call_or_end(work: Callable[..., Outcome], job: Job) -> Outcome:
    outcome = work(job)
    if outcome.stopped:
        os._exit(1)  # else the pool gives this process the next job
    return outcome


def _start_process() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the parent, which ends them all
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    wait_for([parent.sentinel] if parent else [])
    os._exit(1)


class _ClusterExecutor(ThreadPoolExecutor):
    """Jobs on other machines: a thread waits for each."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._running: set[Any] = set()
        self._stopping, self._lock = False, Lock()

    def start(self, work: Callable[..., Outcome], job: Job) -> Any:
        """Start a job, or queue it, and return the cluster's handle."""
        raise NotImplementedError

    def result(self, handle: Any) -> Outcome:
        """Wait for a job; a `LostJobError` says that it has no outcome."""
        raise NotImplementedError

    def cancel(self, handle: Any) -> None:
        """Take a job out of the queue, or ask it to save its state and end."""
        raise NotImplementedError

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Submit a job, which is started again where it was lost."""
        return super().submit(self._follow, fn, *args, **kwargs)

    def _follow(self, work: Callable[..., Outcome], job: Job) -> Outcome:
        losses = 0
        while True:
            with self._lock:
                if self._stopping:
                    return Outcome(stopped=signal.SIGTERM)
                handle = self.start(work, job)
                self._running.add(handle)
            try:
                outcome = self.result(handle)
                if outcome.stopped != signal.SIGUSR2:  # else its time was up: it goes on
                    return outcome
            except LostJobError:
                losses += 1
                if losses > _RETRIES:
                    raise
            finally:
                self._running.discard(handle)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for all jobs; with `cancel_futures` ask those that run to save and end."""
        if cancel_futures:
            with self._lock:
                self._stopping = True
                for handle in list(self._running):
                    self.cancel(handle)
        super().shutdown(wait, cancel_futures=cancel_futures)


class RayExecutor(_ClusterExecutor):
    """Tasks of Ray, which places them and starts those of a lost worker again."""

    def __init__(self, options: Options, count: int) -> None:
        super().__init__(count)
        # Workers are to use this environment as it is, and not to build one as `uv run` does.
        os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        self._ray: Any = require("ray", extra="cluster", distribution="probseq-apps")
        before = signal.getsignal(signal.SIGTERM)
        self._ray.init(
            address=options.executor.partition(":")[2] or None,
            log_to_driver=False,
            logging_level="ERROR",
        )
        with suppress(ValueError):  # outside the main thread
            signal.signal(signal.SIGTERM, before)  # Ray has put one of its own
        resources = {"num_cpus": options.ray.cpus or options.threads, "num_gpus": options.ray.gpus}
        self._task = self._ray.remote(max_retries=_RETRIES, **resources)(_call)

    def start(self, work: Callable[..., Outcome], job: Job) -> Any:
        """Queue a task."""
        return self._task.remote(work, job)

    def result(self, handle: Any) -> Outcome:
        """Wait for a task."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(handle)
        except errors.TaskCancelledError:
            return Outcome(stopped=signal.SIGTERM)
        except (errors.WorkerCrashedError, errors.NodeDiedError) as error:
            # No `LostJobError`, after which a job is started again: Ray has done so.
            raise RuntimeError(f"Ray lost {_RETRIES + 1} workers of a job") from error

    def cancel(self, handle: Any) -> None:
        """Cancel a task; one that runs is interrupted as by Ctrl-C."""
        self._ray.cancel(handle, force=False)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for the tasks, and leave the cluster."""
        super().shutdown(wait, cancel_futures=cancel_futures)
        self._ray.shutdown()


def _call(work: Callable[..., Outcome], job: Job) -> Outcome:
    return work(job)


class SlurmExecutor(_ClusterExecutor):
    """Jobs of SLURM, by submitit; one that is lost or out of time is submitted again."""

    def __init__(self, options: Options, folder: Path, count: int) -> None:
        super().__init__(count)
        submitit: Any = require("submitit", extra="cluster", distribution="probseq-apps")
        self._errors = submitit.core.utils
        self._slurm = submitit.AutoExecutor(folder=folder.resolve() / "slurm", cluster=_SLURM)
        partition = options.slurm.partition
        self._slurm.update_parameters(
            name="probseq",
            timeout_min=options.slurm.minutes,
            cpus_per_task=options.threads,
            gpus_per_node=options.slurm.gpus,
            **({} if partition is None else {"slurm_partition": partition}),
        )

    def start(self, work: Callable[..., Outcome], job: Job) -> Any:
        """Submit a job."""
        return self._slurm.submit(work, job)

    def result(self, handle: Any) -> Outcome:
        """Wait for a job; an error of its own keeps its traceback."""
        try:
            return handle.result()
        except self._errors.FailedJobError:
            raise
        except self._errors.UncompletedJobError as error:
            raise LostJobError(" ".join(str(error).split())) from error

    def cancel(self, handle: Any) -> None:
        """Cancel a job; one that runs gets SIGTERM."""
        handle.cancel()
