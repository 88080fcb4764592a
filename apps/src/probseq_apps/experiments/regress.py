"""`probseq regress`: predict a property of molecules, measure how sure and how right, compare."""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from tqdm import tqdm

from probseq.metrics import mae
from probseq_apps.data.molecules import (
    GraphData,
    TokenLayout,
    flip_signs,
    load_molecules,
    trim_tokens,
)
from probseq_apps.data.parts import Part
from probseq_apps.engine import distributed
from probseq_apps.engine.files import sole_use
from probseq_apps.engine.fit import fit
from probseq_apps.engine.schedule import derive_seed
from probseq_apps.engine.trainer import Batch, LossParts, Step
from probseq_apps.experiments.folders import PARTS, run_all
from probseq_apps.experiments.methods import MethodSpec, base_methods
from probseq_apps.experiments.objectives import penalty_weight
from probseq_apps.experiments.regress_evaluation import evaluate_numbers, make_entries, predicted
from probseq_apps.experiments.regress_model import RegressionModel, build_regression_model
from probseq_apps.experiments.regress_prediction import (
    NumberPredictions,
    NumberPredictor,
    load_number_predictions,
    save_number_predictions,
)
from probseq_apps.experiments.regress_settings import (
    REGRESS,
    RegressEvaluationSettings,
    RegressSettings,
    parse_regression_method,
    regress_config,
)
from probseq_apps.experiments.runs import PREDICTIONS, run_folder, train_seconds
from probseq_apps.folder import check_folder, default_folder, prepare_folder
from probseq_apps.options import Options
from probseq_apps.report.classify import MethodResult
from probseq_apps.report.regress import regress_report
from probseq_apps.report.report import Report
from sgpa import LaplaceLikelihood

SWAPPED = "ood/swapped-edges"


class RegressExperiment(NamedTuple):
    """What all runs share.

    Attributes:
        settings: all settings.
        data: the molecules.
        folder: the experiment's folder.
        progress: show progress bars.
    """

    settings: RegressSettings
    data: GraphData
    folder: Path
    progress: bool


def regress(settings: RegressSettings, options: Options, *, recipe: str) -> Path:
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
        MissingExtraError: RDKit is not installed.
    """
    torch.set_num_threads(options.threads)
    distributed.join(distributed.resolve_device(settings.training.device))
    if options.run_dir is not None and distributed.is_main():
        check_folder(options.run_dir, options, experiment=REGRESS)
    if options.download:
        raise ValueError("download must be off: molecules are read from files of one's own")
    reading = settings.reading
    data = load_molecules(
        settings.data,
        data_dir=options.data_dir,
        smiles_column=reading.smiles_column,
        target_column=reading.target_column,
        validation_size=reading.validation_size,
        test_size=reading.test_size,
        max_atoms=reading.max_atoms,
    )
    methods = base_methods(settings.method)
    for spec in methods:
        build_regression_model(spec, settings, data, seed=0)
    main = distributed.is_main()
    folder = distributed.broadcast(options.run_dir or default_folder(REGRESS, settings.data))
    with contextlib.ExitStack() as stack:
        if main:
            config = regress_config(recipe, settings)
            prepare_folder(folder, config, options, experiment=REGRESS, parts=PARTS)
            stack.enter_context(sole_use(folder))
            _announce(settings, data, folder)
        distributed.barrier()
        experiment = RegressExperiment(settings, data, folder, progress=main)
        run_all(
            methods,
            settings.seeds,
            is_finished=lambda method, seed: predictions_file(folder, method, seed).exists(),
            run=partial(train_and_predict, experiment),
            hint=f"probseq regress --resume --run-dir {folder}",
        )
        if main:
            print(_report(folder, settings, data, recipe).write(folder))
    return folder


def predictions_file(folder: Path, method: MethodSpec, seed: int) -> Path:
    """File of a run's predictions; it is there once the run is finished."""
    return run_folder(folder, method, seed) / PREDICTIONS


def train_and_predict(experiment: RegressExperiment, method: MethodSpec, seed: int) -> None:
    """Do one run, from where it stopped; under torchrun the main rank predicts.

    Raises:
        ValueError: as `fit`.
        NonFiniteLossError: the loss became NaN or infinite.
        SystemExit: SIGTERM or SIGINT came, and the state is saved.
    """
    settings, data = experiment.settings, experiment.data
    mean, std = (float(value) for value in (data.train.targets.mean(), data.train.targets.std()))
    model = build_regression_model(method, settings, data, seed=derive_seed(seed, "weights"))
    predictor = NumberPredictor(
        method,
        num_samples=settings.evaluation.num_samples,
        tokens=data.max_tokens,
        mean=mean,
        std=std,
    )
    weight = partial(penalty_weight, method, settings) if method.has_penalty else None
    fit(
        model,
        _tensors(data.train),
        settings.training.train_config(seed=seed),
        run_folder(experiment.folder, method, seed),
        loss=partial(regression_loss, data.layout, (mean, std), model.likelihood, weight),
        score=partial(regression_score, predictor),
        held_out=_tensors(data.validation),
        progress=experiment.progress,
        label=method.name,
        metadata=_identity(method, settings),
    )
    if distributed.is_main():
        found = _predict(experiment, model, predictor, seed)
        save_number_predictions(predictions_file(experiment.folder, method, seed), found)


def regression_loss(
    layout: TokenLayout,
    mean_std: tuple[float, float],
    likelihood: LaplaceLikelihood,
    weight: Callable[[float], float] | None,
    model: nn.Module,
    batch: Batch,
    step: Step,
) -> LossParts:
    """Return the negative log likelihood of the standardised targets plus the weighted penalty.

    The eigenvectors in the tokens get new signs in each training batch, see
    `graph_tokens.flip_signs`; validation and test have them as they come.
    """
    tokens, targets = batch
    mean, std = mean_std
    tokens = flip_signs(trim_tokens(tokens), layout, step.generator)
    output = model(tokens, generator=step.generator)
    standardised = ((targets - mean) / std).to(output.logits.dtype)
    nll = -likelihood.log_prob(output.logits, standardised).mean()
    scale = std * likelihood.scale
    if weight is None:
        return LossParts(nll, {"nll": nll, "scale": scale})
    penalty = output.penalty.float()
    loss = nll + weight(step.progress) * penalty
    return LossParts(loss, {"nll": nll, "penalty": penalty, "scale": scale})


def regression_score(
    predictor: NumberPredictor, model: RegressionModel, batches: Iterable[Batch]
) -> float:
    """Return the negative mean absolute error of the mean prediction.

    The thesis selects by "validation accuracy", which regression has not.
    """
    found = [(predictor.batch(model, tokens).mean(0), targets) for tokens, targets in batches]
    means, targets = (torch.cat(parts) for parts in zip(*found, strict=True))
    return -float(mae(means, targets))


def sets_to_predict(data: GraphData, settings: RegressEvaluationSettings) -> Mapping[str, Part]:
    """What a trained model predicts, by name."""
    swapped = data.extra_tests.get("swapped")  # of molecules
    return {"test": data.test} | ({SWAPPED: swapped} if settings.ood and swapped else {})


def _predict(
    experiment: RegressExperiment, model: RegressionModel, predictor: NumberPredictor, seed: int
) -> dict[str, NumberPredictions]:
    settings = experiment.settings
    device = distributed.resolve_device(settings.training.device)
    found: dict[str, NumberPredictions] = {}
    # A bar that is wiped at its end has no place in a file: None hides it where no terminal is.
    hidden = None if experiment.progress else True
    with tqdm(total=None, unit=" inputs", leave=False, disable=hidden) as bar:
        for name, split in sets_to_predict(experiment.data, settings.evaluation).items():
            bar.set_description_str(f"predicting {name}")
            found[name] = predictor.predict(
                model,
                *_tensors(split),
                device=device,
                seed=derive_seed(seed, f"predict {name}"),
                progress=bar,
            )
    return found


def _identity(method: MethodSpec, settings: RegressSettings) -> dict[str, object]:
    """What defines a run beside the training settings."""
    values = settings.to_dict()
    keys = ("data", "reading", "model", "sgpa", "cgpt", "kepsvgp")
    return {"experiment": REGRESS, "method": method.name, **{key: values[key] for key in keys}}


def _tensors(split: Part) -> tuple[Tensor, Tensor]:
    return split.inputs, split.targets


def _report(folder: Path, settings: RegressSettings, data: GraphData, recipe: str) -> Report:
    """Evaluate the stored predictions."""
    methods = {name: parse_regression_method(name) for name in settings.method}
    files = {
        name: [predictions_file(folder, method.base, seed) for seed in settings.seeds]
        for name, method in methods.items()
    }
    rows = {
        name: make_entries(method, [load_number_predictions(file) for file in files[name]])
        for name, method in methods.items()
    }
    measured = {
        name: MethodResult(
            method.title,
            [evaluate_numbers(entry) for entry in rows[name]],
            [train_seconds(file.parent) for file in files[name]],
        )
        for name, method in methods.items()
    }
    return regress_report(
        measured,
        {
            name: [{part: predicted(found) for part, found in entry.items()} for entry in entries]
            for name, entries in rows.items()
        },
        settings=settings.to_dict(),
        data={
            "name": data.name,
            "train": len(data.train),
            "validation": len(data.validation),
            "test": len(data.test),
            "target": data.target,
            "notes": list(data.notes),
        },
        recipe=recipe,
    )


def _announce(settings: RegressSettings, data: GraphData, folder: Path) -> None:
    sizes = ", ".join(
        f"{len(split):,} {name}"
        for name, split in (
            ("training", data.train),
            ("validation", data.validation),
            ("test", data.test),
        )
    )
    print(f"{data.name}: {sizes} molecules, target {data.target!r}")
    for note in data.notes:
        print(f"note: {note}")
    print(f"methods: {' '.join(settings.method)}; seeds: {' '.join(map(str, settings.seeds))}")
    print(f"folder: {folder}", flush=True)
