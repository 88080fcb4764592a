"""The folder of an experiment and the runs in it, whatever the experiment is about."""

import re
import shutil
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from probseq_apps.experiments.methods import BASE_METHODS, MethodSpec
from probseq_apps.experiments.saved import held_experiment, holds_experiment
from probseq_apps.experiments.settings import RunOptions
from probseq_apps.training import distributed
from probseq_apps.training.runs import RunExistsError, prepare_run_dir, sole_use


def default_folder(experiment: str, data: str) -> Path:
    """`runs/EXPERIMENT-DATA-TIME`, with the time in UTC."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", data.rpartition("/")[2]).strip("-")
    return Path("runs") / f"{experiment}-{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"


def check_folder(folder: Path, options: RunOptions, *, experiment: str) -> None:
    """Refuse to resume or to delete what is no experiment of this kind.

    Raises:
        FileNotFoundError: there is nothing to resume.
        RunExistsError: what would be overwritten belongs to somebody else.
        ValueError: the folder's configuration is damaged.
    """
    if not (options.resume or options.overwrite) or holds_experiment(folder, experiment):
        return
    if options.resume:
        kind = held_experiment(folder)
        if kind is not None:
            raise FileNotFoundError(
                f"{folder} holds an experiment of kind {kind}, and none of kind {experiment} to "
                "resume: name another folder, or start without resume"
            )
        raise FileNotFoundError(
            f"{folder} holds no experiment to resume: name its folder, or start without resume"
        )
    if folder.is_dir() and any(folder.iterdir()):
        raise RunExistsError(
            f"{folder} holds files, but no experiment to overwrite: choose an empty or a new folder"
        )


def prepare_folder(
    folder: Path, config: dict[str, object], options: RunOptions, *, experiment: str
) -> None:
    """Make a folder ready for an experiment; with `overwrite`, delete the one that it holds.

    Args:
        folder: the experiment's folder.
        config: what its `config.json` shall hold.
        options: whether to resume or to overwrite.
        experiment: name of the experiment's kind.

    Raises:
        ValueError: the experiment to resume has other settings.
        OSError: the folder is not empty, or cannot be written to.
    """
    if options.overwrite and holds_experiment(folder, experiment):
        with sole_use(folder):  # nobody loses the files that he is working with
            for name in BASE_METHODS:
                for run in (folder / name).glob("seed-*"):
                    shutil.rmtree(run)
            (folder / "report.md").unlink(missing_ok=True)
    prepare_run_dir(folder, config, resume=options.resume, overwrite=options.overwrite)


def run_all(
    methods: Sequence[MethodSpec],
    seeds: Sequence[int],
    *,
    is_finished: Callable[[MethodSpec, int], bool],
    run: Callable[[MethodSpec, int], None],
    hint: str,
) -> None:
    """Do the runs that are not finished yet, seed by seed.

    Args:
        methods: what to train.
        seeds: each method is trained once per seed.
        is_finished: whether a method with a seed is trained and its predictions are stored.
        run: trains a method with a seed and stores its predictions.
        hint: the command that goes on where a stopped experiment was.
    """
    main = distributed.is_main()
    jobs = [(spec, seed) for seed in seeds for spec in methods]
    for number, (spec, seed) in enumerate(jobs, 1):
        finished = distributed.broadcast(main and is_finished(spec, seed))
        if main:
            state = ": finished before" if finished else ""
            print(f"[{number}/{len(jobs)}] {spec.name}, seed {seed}{state}", flush=True)
        if not finished:
            try:
                run(spec, seed)
            except (SystemExit, KeyboardInterrupt):
                if main:
                    print(f"stopped; go on with: {hint}", file=sys.stderr)
                raise
