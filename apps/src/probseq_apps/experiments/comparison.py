"""Shared functions of `classify` and `regress`: trainings, predictions, and the numbers of a row.

A run has a folder `METHOD/seed-S`, with its predictions beside what `fit` writes.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from torch import Tensor, nn

from probseq.transformers import Predictor, without_attention
from probseq.transformers.prediction import has_dropout
from probseq_apps.data.names import DataError
from probseq_apps.data.parts import Part
from probseq_apps.engine import distributed, log, trainer
from probseq_apps.engine.config import TrainConfig, derive_seed
from probseq_apps.engine.files import load_groups, read_finished
from probseq_apps.engine.fit import fit
from probseq_apps.engine.trainer import Loss, LossParts, TrainStep
from probseq_apps.experiment import RESULTS, Job, Results, RunFolder, counted
from probseq_apps.methods.build import Compared, Data, build
from probseq_apps.report.classify import MethodResult
from probseq_apps.settings.methods import METHODS, MethodSettings, Row, TrainedMethod, resolve

# After the training, and with the Laplace approximation.
PREDICTIONS, LAPLACE_PREDICTIONS = "predictions.npz", "predictions-kflla.npz"
# The test set as models see it whose attention is taken out.
WITHOUT_ATTENTION = "without-attention"
FOLDERS = tuple(f"{name}{suffix}/seed-*" for name in METHODS for suffix in ("", ",*"))
LONGER = {"settings.training.epochs": (RESULTS,)}
T = TypeVar("T")
DataT = TypeVar("DataT")
Weight = Callable[[float], float]
# Made when it is needed where it is large: all corruptions of CIFAR-10 are two gigabytes.
TestSet = Part | Callable[[], Part]
# Stored predictions of a set, by the names of their fields.
Stored = Mapping[str, Tensor]


@dataclass(frozen=True)
class Loaded(Generic[DataT]):
    """The data set, the test sets by name, and the data set with all of its labels."""

    data: DataT
    sets: dict[str, TestSet]
    fully_labelled: DataT


class Objective(NamedTuple):
    """The loss that training minimises, and the metrics of validation, the score first."""

    loss: Loss
    measure: Callable[[Tensor, Tensor], Mapping[str, Tensor]]


def jobs(settings: MethodSettings) -> list[Job]:
    """Return a job for each row to train and each seed."""
    rows = settings.trained()
    return [Job(row, seed) for seed in settings.seeds for row in rows]


def check_methods(settings: Compared, loaded: Loaded[Any]) -> None:
    """Raise if a transformer does not fit the data, or lacks the dropout that it draws from."""
    for name in settings.trained():
        trained = resolve(name, settings)
        if not trained.method.estimator:
            model = build(trained, loaded.data, seed=0)
            if trained.method.test_dropout and not has_dropout(model):
                raise DataError(f"method {name!r} needs dropout above 0, to draw from")


def describe_data(settings: MethodSettings, data: Data, noun: str) -> str:
    """Return notes on the data, its sizes, and what is compared."""
    sizes = f"{len(data.train):,} training, {len(data.validation):,} validation, "
    compared = counted(settings.method, settings.seeds)
    line = f"{data.name}: {sizes}{len(data.test):,} test {noun}; {compared}"
    return "\n".join([*(f"note: {note}" for note in data.notes), line])


def run_folder(at: RunFolder, job: Job) -> Path:
    """Return the folder of a run inside that of the comparison."""
    return at.path / job.row / f"seed-{job.seed}"


def warm_folder(folder: Path) -> Path:
    """Return the folder of the training that a run's weights start from."""
    return folder.with_name(f"{folder.name}-warm-start")


def fit_method(
    model: nn.Module,
    trained: TrainedMethod[Compared],
    data: Data,
    folder: Path,
    *,
    objective: Objective,
    predictor: Predictor,
    config: TrainConfig,
    label: str,
    **identity: object,
) -> None:
    """Train a model, from where it stopped.

    The validation part selects the weights. The label names the training in the progress bar, and
    its method in the configuration, to which `identity` adds entries.
    """
    values = trained.settings.to_dict()
    held_out = (data.validation.inputs, data.validation.targets)
    validated = len(data.validation) > 0
    fit(
        model,
        (data.train.inputs, data.train.targets),
        config,
        folder,
        loss=objective.loss,
        score=partial(predictor.score, objective.measure) if validated else None,
        held_out=held_out if validated else None,
        label=label,
        metadata={
            **identity,
            "method": label,
            **{key: values[key] for key in ("data", "reading", "model")},
            "attention": trained.attention.to_dict(),
        },
    )


def penalised(
    nll: Tensor, penalty: Tensor, weight: Weight | None, step: TrainStep, **terms: Tensor
) -> LossParts:
    """Return the negative log likelihood plus the weighted penalty of methods that have one."""
    if weight is None:
        return LossParts(nll, {"nll": nll, **terms})
    penalty = penalty.float()
    loss = nll + weight(step.progress) * penalty
    return LossParts(loss, {"nll": nll, "penalty": penalty, **terms})


def predict_sets(
    model: nn.Module,
    predictor: Predictor,
    sets: Mapping[str, TestSet],
    settings: Compared,
    *,
    seed: int,
) -> dict[str, tuple[Tensor, ...]]:
    """Return a model's predictions of each set, and its targets behind them."""
    device = distributed.resolve_device(settings.training.device)
    predictions: dict[str, tuple[Tensor, ...]] = {}
    with log.bar(total=None, unit=" inputs") as bar:
        for name, test_set in sets.items():
            bar.set_description_str(f"predicting {name}")
            examples = test_set if isinstance(test_set, Part) else test_set()
            draws = derive_seed(seed, f"predict {name}")
            with without_attention(model) if name == WITHOUT_ATTENTION else nullcontext():
                outputs = predictor.predict(
                    model, examples.inputs, device=device, seed=draws, progress=bar.update
                )
            predictions[name] = (*outputs, examples.targets.cpu())
    return predictions


def job_seconds(
    model: nn.Module, loss: Loss, predictor: Predictor, loaded: Loaded[Any], config: TrainConfig
) -> float:
    """Return how long a training and its predictions of all sets will take, by a part of each."""
    data, device = loaded.data, distributed.resolve_device(config.device)
    train = data.train.inputs, data.train.targets
    training = trainer.training_seconds(model, train, config, device, loss)
    inputs, start = data.test.inputs[:64], time.perf_counter()
    predictor.predict(model.eval(), inputs, device=device, seed=0)
    seconds = time.perf_counter() - start
    # A set that is not made yet is a changed test part.
    sizes = [len(each if isinstance(each, Part) else data.test) for each in loaded.sets.values()]
    return training + seconds * sum(sizes) / len(inputs)


def training_seconds(folder: Path) -> float:
    """Return the seconds of a run's training, its warm start included."""
    ends = (read_finished(path) for path in (folder, warm_folder(folder)))
    return round(sum(end["seconds"] for end in ends if end is not None), 3)


def measured_penalty(
    model: nn.Module,
    trained: TrainedMethod[Compared],
    predictor: Predictor,
    data: Data,
    *,
    seed: int,
) -> dict[str, float]:
    """Return the penalty on the test part, in nats an example; nothing of methods without."""
    if trained.penalty_weight is None:
        return {}
    device = distributed.resolve_device(trained.settings.training.device)
    draws = derive_seed(seed, "penalty")
    inputs = data.test.inputs
    return {"penalty": predictor.penalty(model, inputs, device=device, seed=draws)}


def stored_runs(
    row: Row,
    settings: MethodSettings,
    at: RunFolder,
    *,
    loss: Callable[[Mapping[str, Stored]], float] | None = None,
) -> tuple[list[Job], list[dict[str, dict[str, Tensor]]]]:
    """Return for each seed the job that counts, and its stored predictions by set and field.

    Of several values of a setting the one of lowest loss on the validation part counts.
    """
    file = LAPLACE_PREDICTIONS if "kflla" in row.additions else PREDICTIONS
    chosen: list[Job] = []
    runs: list[dict[str, dict[str, Tensor]]] = []
    for seed in settings.seeds:
        candidates: dict[Job, dict[str, dict[str, Tensor]]] = {}
        for job in (Job(variant, seed) for variant in row.variants):
            candidates[job] = load_groups(at.made_by(job, run_folder(at, job) / file))
        best = next(iter(candidates))
        if len(candidates) > 1 and loss is not None:
            best = min(candidates, key=lambda job: loss(candidates[job]))
        chosen.append(best)
        runs.append(candidates[best])
    return chosen, runs


def ensembles(row: Row, settings: MethodSettings, runs: Sequence[T]) -> list[Sequence[T]]:
    """Return the runs that predict together: each alone, or the members of each ensemble."""
    size = (settings.ensemble_size or len(runs)) if "ensemble" in row.additions else 1
    return [runs[start : start + size] for start in range(0, len(runs), size)]


def row_result(
    row: Row,
    jobs: Sequence[Job],
    results: Results,
    metrics: Sequence[Mapping[str, float | None]],
    temperatures: Sequence[float] = (),
) -> MethodResult:
    """Return what the report has of a row, the penalties of its runs beside their metrics."""
    # Members of an ensemble have penalties of their own.
    penalties = [results[job].get("penalty") for job in jobs]
    penalties = penalties if len(metrics) == len(jobs) else [None] * len(metrics)
    pairs = zip(metrics, penalties, strict=True)
    entries = [{**entry, "test/penalty": penalty} for entry, penalty in pairs]
    seconds = [results[job]["seconds"] for job in jobs]
    chosen = [job.row for job in jobs] if len(row.variants) > 1 else []
    return MethodResult(row, entries, seconds, temperatures, chosen)


def same_metrics(results: Mapping[str, MethodResult]) -> dict[str, MethodResult]:
    """Return results with the same metrics, None where a method lacks one."""
    names = dict.fromkeys(
        m for result in results.values() for entry in result.metrics for m in entry
    )
    return {
        row: result._replace(metrics=[{m: entry.get(m) for m in names} for entry in result.metrics])
        for row, result in results.items()
    }


def report_fields(
    settings: Compared, loaded: Loaded[Any], at: RunFolder, **facts: object
) -> dict[str, Any]:
    """Return what every report has: settings, facts of the data, and the recipe."""
    data, names = loaded.data, [name.split("/", 1) for name in loaded.sets if "/" in name]
    sizes = {name: len(getattr(data, name)) for name in ("train", "validation", "test")}
    facts |= {
        "shifted": [*dict.fromkeys(n.split("/")[0] for kind, n in names if kind != "ood")],
        "unknown": [name for kind, name in names if kind == "ood"],
    }
    about_data = {"name": data.name, **sizes, **facts, "notes": list(data.notes)}
    return {"settings": settings.to_dict(), "data": about_data, "recipe": at.recipe}
