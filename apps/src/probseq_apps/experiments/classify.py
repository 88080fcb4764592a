"""`probseq classify`: train methods on one data set, measure them, and compare."""

import contextlib
import re
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path

import torch

from probseq_apps.data.sets import load_data
from probseq_apps.experiments.methods import BASE_METHODS, base_methods, parse_method
from probseq_apps.experiments.models import Data, build_model
from probseq_apps.experiments.runs import Experiment, is_finished, train_and_predict
from probseq_apps.experiments.saved import config_of, saved_command
from probseq_apps.experiments.settings import ClassifySettings, RunOptions
from probseq_apps.experiments.test_sets import make_test_sets
from probseq_apps.report.report import write_report
from probseq_apps.training import distributed
from probseq_apps.training.runs import RunExistsError, prepare_run_dir, sole_use


def classify(settings: ClassifySettings, options: RunOptions, *, recipe: str) -> Path:
    """Run the experiment and write its report.

    Everything that can be refused is refused before anything is written.

    Args:
        settings: what to compare.
        options: files and running.
        recipe: name of the recipe that the settings came from, for the report.

    Returns:
        The experiment's folder.

    Raises:
        ValueError: data, settings and folder don't go together.
        OSError: a file cannot be read or written.
    """
    torch.set_num_threads(options.threads)
    distributed.join(distributed.resolve_device(settings.training.device))
    if options.run_dir is not None and distributed.is_main():
        _check_folder(options.run_dir, options)
    data = _load(settings, options)
    _check(settings, data)
    test_sets = make_test_sets(data, settings.evaluation, options.data_dir, options.download)
    main = distributed.is_main()
    folder = distributed.broadcast(options.run_dir or default_folder(settings.data))
    with contextlib.ExitStack() as stack:
        if main:
            _prepare_folder(folder, config_of(recipe, settings), options)
            stack.enter_context(sole_use(folder))
            _announce(settings, data, folder)
        distributed.barrier()
        _run(Experiment(settings, data, test_sets, folder, progress=main))
        if main:
            print(write_report(folder, settings, data, recipe=recipe))
    return folder


def _run(experiment: Experiment) -> None:
    """Train and predict what is not finished yet."""
    folder, settings, main = experiment.folder, experiment.settings, distributed.is_main()
    jobs = [(spec, seed) for seed in settings.seeds for spec in base_methods(settings.method)]
    for number, (spec, seed) in enumerate(jobs, 1):
        finished = distributed.broadcast(main and is_finished(folder, spec, seed))
        if main:
            state = ": finished before" if finished else ""
            print(f"[{number}/{len(jobs)}] {spec.name}, seed {seed}{state}", flush=True)
        if not finished:
            try:
                train_and_predict(experiment, spec, seed)
            except (SystemExit, KeyboardInterrupt):
                if main:
                    print(
                        f"stopped; go on with: probseq classify --resume --run-dir {folder}",
                        file=sys.stderr,
                    )
                raise


def default_folder(data: str) -> Path:
    """`runs/classify-DATA-TIME`, with the time in UTC."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", data.rpartition("/")[2]).strip("-")
    return Path("runs") / f"classify-{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"


def _load(settings: ClassifySettings, options: RunOptions) -> Data:
    reading = settings.reading
    return load_data(
        settings.data,
        data_dir=options.data_dir,
        download=options.download,
        max_length=settings.model.max_length if settings.is_text else None,
        image_size=reading.image_size,
        split=reading.split,
        text_column=reading.text_column,
        label_column=reading.label_column,
    )


def _check(settings: ClassifySettings, data: Data) -> None:
    """Refuse settings that don't fit the data.

    Raises:
        ValueError: says which.
    """
    if len(data.validation) == 0:
        if settings.training.select == "best":
            raise ValueError(
                f"select='best' needs validation data, and {data.name!r} is split without: "
                "use select='last'"
            )
        for name in settings.method:
            if parse_method(name).temperature:
                raise ValueError(
                    f"method {name!r} needs validation data, and {data.name!r} is split without"
                )
    for spec in base_methods(settings.method):
        build_model(spec, settings, data, seed=0)


def _check_folder(folder: Path, options: RunOptions) -> None:
    """Refuse to resume or to delete what is no experiment of this program.

    Raises:
        FileNotFoundError: there is nothing to resume.
        RunExistsError: what would be overwritten belongs to somebody else.
    """
    if not (options.resume or options.overwrite) or saved_command(folder) is not None:
        return
    if options.resume:
        raise FileNotFoundError(
            f"{folder} holds no experiment to resume: name its folder, or start without resume"
        )
    if folder.is_dir() and any(folder.iterdir()):
        raise RunExistsError(
            f"{folder} holds files, but no experiment to overwrite: choose an empty or a new folder"
        )


def _prepare_folder(folder: Path, config: dict[str, object], options: RunOptions) -> None:
    if options.overwrite and saved_command(folder) is not None:
        with sole_use(folder):  # nobody loses the files that he is working with
            for name in BASE_METHODS:
                for run in (folder / name).glob("seed-*"):
                    shutil.rmtree(run)
            (folder / "report.md").unlink(missing_ok=True)
    prepare_run_dir(folder, config, resume=options.resume, overwrite=options.overwrite)


def _announce(settings: ClassifySettings, data: Data, folder: Path) -> None:
    sizes = ", ".join(
        f"{len(split):,} {name}"
        for name, split in (
            ("training", data.train),
            ("validation", data.validation),
            ("test", data.test),
        )
    )
    print(f"{data.name}: {sizes} examples in {data.num_classes} classes")
    for note in data.notes:
        print(f"note: {note}")
    print(f"methods: {' '.join(settings.method)}; seeds: {' '.join(map(str, settings.seeds))}")
    print(f"folder: {folder}", flush=True)
