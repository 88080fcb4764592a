"""`probseq classify`: train methods on one data set, measure them, and compare."""

import contextlib
from functools import partial
from pathlib import Path

import torch

from probseq_apps.data.folders import list_all
from probseq_apps.data.names import own_path
from probseq_apps.data.sets import load_data
from probseq_apps.engine import distributed
from probseq_apps.engine.files import sole_use
from probseq_apps.experiments.evaluation import evaluate
from probseq_apps.experiments.folders import PARTS, run_all
from probseq_apps.experiments.methods import base_methods, parse_method
from probseq_apps.experiments.models import Data, build_model
from probseq_apps.experiments.prediction import load_predictions
from probseq_apps.experiments.rows import make_row
from probseq_apps.experiments.runs import (
    Experiment,
    is_finished,
    run_folder,
    stored_predictions,
    train_and_predict,
    train_seconds,
    warm_start_folder,
)
from probseq_apps.experiments.saved import config_values
from probseq_apps.experiments.settings import ClassifySettings
from probseq_apps.experiments.test_sets import make_test_sets
from probseq_apps.folder import check_folder, default_folder, prepare_folder
from probseq_apps.options import Options
from probseq_apps.report.classify import MethodResult, classify_report
from probseq_apps.report.report import Report

CLASSIFY = "classify"


def classify(settings: ClassifySettings, options: Options, *, recipe: str) -> Path:
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
        check_folder(options.run_dir, options, experiment=CLASSIFY)
    for path in filter(None, map(own_path, settings.evaluation.ood)):
        list_all(path)  # refused before the training set is read
    data = _load(settings, options)
    _check(settings, data)
    test_sets = make_test_sets(data, settings.evaluation, options.data_dir, options.download)
    main = distributed.is_main()
    folder = distributed.broadcast(options.run_dir or default_folder(CLASSIFY, settings.data))
    with contextlib.ExitStack() as stack:
        if main:
            config = config_values(CLASSIFY, recipe, settings.to_dict())
            prepare_folder(folder, config, options, experiment=CLASSIFY, parts=PARTS)
            stack.enter_context(sole_use(folder))
            _announce(settings, data, folder)
        distributed.barrier()
        experiment = Experiment(settings, data, test_sets, folder, progress=main)
        run_all(
            base_methods(settings.method),
            settings.seeds,
            is_finished=partial(is_finished, experiment),
            run=partial(train_and_predict, experiment),
            hint=f"probseq classify --resume --run-dir {folder}",
        )
        if main:
            print(_report(folder, settings, data, recipe).write(folder))
    return folder


def _load(settings: ClassifySettings, options: Options) -> Data:
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
        tokenizer=reading.tokenizer,
        embeddings=None if reading.embeddings is None else Path(reading.embeddings),
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


def _report(folder: Path, settings: ClassifySettings, data: Data, recipe: str) -> Report:
    """Evaluate the stored predictions."""
    methods = {name: parse_method(name) for name in settings.method}
    rows = {
        name: make_row(
            method,
            [load_predictions(stored_predictions(folder, method, s)) for s in settings.seeds],
        )
        for name, method in methods.items()
    }
    measured = {
        name: MethodResult(
            method.title,
            [evaluate(sets) for sets in rows[name].predictions],
            [
                train_seconds(
                    run_folder(folder, method.base, seed),
                    warm_start_folder(folder, method.base, seed),
                )
                for seed in settings.seeds
            ],
            rows[name].temperatures,
        )
        for name, method in methods.items()
    }
    return classify_report(
        measured,
        {name: row.predictions for name, row in rows.items()},
        settings=settings.to_dict(),
        data={
            "name": data.name,
            "train": len(data.train),
            "validation": len(data.validation),
            "test": len(data.test),
            "classes": data.num_classes,
            "notes": list(data.notes),
        },
        recipe=recipe,
    )


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
