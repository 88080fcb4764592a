"""Jobs in several processes of this machine, or on a Ray cluster.

Both are an `Executor` of `concurrent.futures`. A job is a function of the settings and of the run's
folder; from where that folder is not seen, its files are brought back.
"""

import io
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from multiprocessing.connection import wait as wait_for
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock, Thread
from typing import Any, Generic, NamedTuple

import torch

from probseq.errors import require
from probseq_apps.engine import distributed, log, trackers
from probseq_apps.engine.files import CONFIG
from probseq_apps.engine.signals import exit_on_sigterm
from probseq_apps.experiment import RESULTS, Data, Job, RunFolder, S, Workflow
from probseq_apps.options import Options

_RETRIES = 3  # of a job whose process or machine was lost


class LostJobError(RuntimeError):
    """A process ended before its job was done; the run can go on."""


class Outcome(NamedTuple):
    """The end of a job."""

    error: Exception | None = None  # of a kind that every process can read
    stopped: bool = False  # by a signal, after which its state was saved
    text: str = ""  # printed by it
    files: dict[str, bytes] = {}  # noqa: RUF012  # by path, where the run's folder is not seen


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
        """Do a job, and store its results; SIGTERM or SIGINT saves its state."""
        text, outcome = io.StringIO(), Outcome()
        before, log.quiet = log.quiet, True  # bars of several processes would tear each other
        try:
            with exit_on_sigterm(), redirect_stdout(text), redirect_stderr(text):
                outcome = Outcome(files=self._do(job))
        except (SystemExit, KeyboardInterrupt):
            outcome = Outcome(stopped=True)
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
        trackers.chosen = self.options.log_to
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
            paths = [path for path in at.path.rglob("[!.]*") if path.is_file()]
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
    """Do jobs where the options say, and call `done` after each; their results are files.

    The first error ends them all; those that train save their state.
    """
    executor, processes = open_executor(work.options, count), list[BaseProcess]()
    try:
        pending = {executor.submit(work, job) for job in jobs}
        processes = multiprocessing.active_children()
        while pending:
            finished, pending = wait(pending, timeout=1.0, return_when="FIRST_COMPLETED")
            for future in finished:
                _take(future.result(), work.at)
                done()
    except BaseException as error:
        executor.shutdown(cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            # The others were ended by SIGTERM.
            codes = [-process.exitcode for process in processes if process.exitcode]
            code = next((code for code in codes if code != signal.SIGTERM), signal.SIGTERM)
            reason = f"by {signal.Signals(code).name}" if code > 0 else "after a signal"
            undone = [job.name for job in jobs if not work.at.has(job.name)][:count]
            raise LostJobError(
                f"a process ended {reason} before its job was done: {' or '.join(undone)}; what it "
                f"had saved is in {work.at.path}"
            ) from error
        raise
    executor.shutdown()


def _take(outcome: Outcome, at: RunFolder) -> None:
    """Store the files of a job, its results last, and show what it printed."""
    if outcome.text.strip():
        log.say(outcome.text.strip())
    if outcome.error is not None:
        raise outcome.error
    if outcome.stopped:
        raise LostJobError("a process was stopped before its job was done; its state is saved")
    for name in sorted(outcome.files, key=lambda name: name.startswith(f"{RESULTS}/")):
        path = at.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(outcome.files[name])


def check_executor(options: Options) -> None:
    """Raise if Ray is missing, or several processes train a model."""
    if options.executor == "local":
        return
    if distributed.world_size() > 1:
        raise ValueError(
            f"executor must be 'local' under torchrun, got {options.executor!r}: start one process"
        )
    require("ray", extra="cluster", distribution="probseq-apps")


def open_executor(options: Options, count: int) -> Executor:
    """Return the executor of the options."""
    return LocalExecutor(count) if options.executor == "local" else RayExecutor(options, count)


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


class RayExecutor(ThreadPoolExecutor):
    """Tasks of Ray, which places them and starts those of a lost worker again; a thread each."""

    def __init__(self, options: Options, count: int) -> None:
        super().__init__(count)
        # Workers are to use this environment as it is, and not to build one as `uv run` does.
        os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        starts = options.executor == "ray"
        if starts:  # else it listens to the whole network
            os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        self._ray: Any = require("ray", extra="cluster", distribution="probseq-apps")
        before = signal.getsignal(signal.SIGTERM)
        self._ray.init(
            address="local" if starts else options.executor.partition(":")[2],
            log_to_driver=False,
            logging_level="ERROR",
        )
        with suppress(ValueError):  # outside the main thread
            signal.signal(signal.SIGTERM, before)  # Ray has put one of its own
        resources = {"num_cpus": options.ray.cpus or options.threads, "num_gpus": options.ray.gpus}
        self._task = self._ray.remote(max_retries=_RETRIES, **resources)(_call)
        self._running: set[Any] = set()
        self._stopping, self._lock = False, Lock()

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Submit a job."""
        return super().submit(self._follow, fn, *args, **kwargs)

    def _follow(self, work: Callable[..., Outcome], job: Job) -> Outcome:
        """Queue a task, and wait for it."""
        with self._lock:
            if self._stopping:
                return Outcome(stopped=True)
            task = self._task.remote(work, job)
            self._running.add(task)
        errors = self._ray.exceptions
        try:
            return self._ray.get(task)
        except errors.TaskCancelledError:
            return Outcome(stopped=True)
        except (errors.WorkerCrashedError, errors.NodeDiedError) as error:
            raise RuntimeError(f"Ray lost {_RETRIES + 1} workers of a job") from error
        finally:
            self._running.discard(task)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for the tasks and leave the cluster; with `cancel_futures` they save and end."""
        if cancel_futures:
            with self._lock:
                self._stopping = True
                for task in list(self._running):
                    self._ray.cancel(task, force=False)  # interrupts it as Ctrl-C does
        super().shutdown(wait, cancel_futures=cancel_futures)
        self._ray.shutdown()


def _call(work: Callable[..., Outcome], job: Job) -> Outcome:
    return work(job)
