"""The base of `classify` and `regress`: methods are trained, their predictions stored and measured.

A run has a folder `METHOD/seed-S`, with its predictions beside what `fit` writes.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

from torch import Tensor, nn

from probseq.transformers import Predictor, without_attention
from probseq.transformers.prediction import has_dropout
from probseq_apps.data.names import DataError
from probseq_apps.data.parts import Part
from probseq_apps.engine import distributed, log
from probseq_apps.engine.config import TrainConfig, derive_seed
from probseq_apps.engine.files import load_groups, read_finished, save_groups
from probseq_apps.engine.fit import fit
from probseq_apps.engine.trainer import Loss, LossParts, Step
from probseq_apps.experiment import Job, Results, RunFolder, counted
from probseq_apps.experiment_classes import Experiment
from probseq_apps.methods.build import Data, build
from probseq_apps.report.classify import MethodResult
from probseq_apps.report.report import Report
from probseq_apps.settings.methods import (
    METHODS,
    Method,
    Row,
    parse_row,
    settings_of,
    trained_rows,
)

# After the training, and with the Laplace approximation.
PREDICTIONS, LAPLACE_PREDICTIONS = "predictions.npz", "predictions-kflla.npz"
# The test set as models see it whose attention is taken out.
WITHOUT = "without-attention"
T = TypeVar("T")
Weight = Callable[[float], float]
# May be made when it is needed: all corruptions of CIFAR-10 are two gigabytes.
TestSet = Part | Callable[[], Part]
# Functions that reduce outputs and prepare raw inputs, and the tokens of an input.
PredictionSetup = tuple[Callable[..., Any], Callable[[Tensor], Tensor], int]
Objective = tuple[Loss, Callable[[Tensor, Tensor], Mapping[str, Tensor]]]
# Metrics and what plots show, an entry a seed or one for an ensemble, and temperatures.
Measured = tuple[list[dict[str, float | None]], Sequence[Mapping[str, Any]], Sequence[float]]


class Loaded(NamedTuple):
    """The data set, the test sets by name, and the data set with all of its labels."""

    data: Any
    sets: dict[str, TestSet]
    fully_labelled: Any = None


class Comparison(Experiment[Loaded]):
    """Methods on one data set.

    Attributes:
        prediction_type: the predictions of a set, as they are stored.
        make_report: function that makes the report.
        data_field: entry of `report.json` on the data beside name, sizes and notes, and the
            attribute of the data that it holds.
        run_identity: entries of a run's configuration beside method, data and settings.
    """

    parts = tuple(f"{name}{suffix}/seed-*" for name in METHODS for suffix in ("", ",*"))
    prediction_type: ClassVar[Callable[..., Any]]
    make_report: ClassVar[Callable[..., Report]]
    data_field: ClassVar[tuple[str, str]]
    run_identity: ClassVar[Mapping[str, object]] = {}

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        rows = trained_rows(settings.method)
        self.jobs = [Job(row, seed) for seed in settings.seeds for row in rows]

    def _prediction_setup(self, data: Any) -> PredictionSetup:
        """Return how a method's outputs and raw inputs are treated in a prediction."""
        raise NotImplementedError

    def _objective(self, method: Method, model: nn.Module, data: Any) -> Objective:
        """Return the loss, and the metrics of validation, the score first."""
        raise NotImplementedError

    def together(self, row: Row, runs: Sequence[T]) -> list[Sequence[T]]:
        """Return the runs that predict together: each alone, or the members of each ensemble."""
        size = (self.settings.ensemble_size or len(runs)) if "ensemble" in row.additions else 1
        return [runs[start : start + size] for start in range(0, len(runs), size)]

    def measure(self, row: Row, runs: Sequence[Mapping[str, Any]]) -> Measured:
        """Return metrics, predictions to plot, and temperatures of the runs of a row."""
        raise NotImplementedError

    def validation_loss(self, sets: Mapping[str, Any]) -> float:
        """Return the loss of the predictions on the validation part."""
        raise NotImplementedError

    def predictor(self, method: Method, data: Any) -> Predictor:
        """Return the predictor of a method."""
        reduce, prepare, tokens = self._prediction_setup(data)
        samples = self.settings.evaluation.num_samples if method.sampled else None
        return Predictor(reduce, prepare, samples, method.test_dropout, tokens)

    def model(self, method: Method, data: Any, seed: int) -> nn.Module:
        """Return a new model."""
        return build(method, self.settings, data, seed=derive_seed(seed, "weights"))

    def train(self, job: Job, data: Any, folder: Path) -> nn.Module:
        """Return the trained model of a run."""
        model = self.model(METHODS[job.row], data, job.seed)
        config = self.settings.training.train_config(seed=job.seed)
        self.fit(model, METHODS[job.row], job.row, config, data, folder)
        return model

    def _to_stored(self, model: nn.Module, data: Any, outputs: tuple[Tensor, ...]) -> Any:
        """Return predictions and targets as they are stored."""
        return self.prediction_type(*outputs)

    def check(self, data: Loaded) -> None:
        """Raise if the settings don't fit the data."""
        for name in trained_rows(self.settings.method):
            method = parse_row(name).method
            if not method.estimator:
                model = build(method, settings_of(name, self.settings), data.data, seed=0)
                if method.test_dropout and not has_dropout(model):
                    raise DataError(f"method {name!r} needs dropout above 0, to draw from")

    def described(self, data: Data, noun: str) -> str:
        """Return notes on the data, its sizes, and what is compared."""
        sizes = f"{len(data.train):,} training, {len(data.validation):,} validation, "
        compared = counted(self.settings.method, self.settings.seeds)
        line = f"{data.name}: {sizes}{len(data.test):,} test {noun}; {compared}"
        return "\n".join([*(f"note: {note}" for note in data.notes), line])

    def run(self, job: Job, data: Loaded, at: RunFolder) -> dict[str, Any]:
        """Train a method, from where it stopped, and store its predictions."""
        folder, method = run_folder(at, job), parse_row(job.row).method
        single = type(self)(settings_of(job.row, self.settings))
        base_job = Job(parse_row(job.row).base, job.seed)
        model = single.train(base_job, data.data, folder)
        ends = (read_finished(path) for path in (folder, warm_folder(folder)))
        seconds = round(sum(end["seconds"] for end in ends if end is not None), 3)
        result: dict[str, Any] = {"seconds": seconds}
        if distributed.is_main():
            single.predict(model, base_job, data, folder)
            if penalty_of(method, single.settings) is not None:
                device = distributed.resolve_device(single.settings.training.device)
                predictor, seed = (
                    single.predictor(method, data.data),
                    derive_seed(job.seed, "penalty"),
                )
                inputs = data.data.test.inputs
                result["penalty"] = predictor.penalty(model, inputs, device=device, seed=seed)
        return result

    def predict(self, model: nn.Module, job: Job, data: Loaded, folder: Path) -> None:
        """Predict all sets and store the predictions."""
        self.store(model, job, data, folder / PREDICTIONS)

    def store(self, model: nn.Module, job: Job, data: Loaded, file: Path) -> None:
        """Write a model's predictions of all sets to a file."""
        device = distributed.resolve_device(self.settings.training.device)
        predictor = self.predictor(METHODS[job.row], data.data)
        predictions: dict[str, dict[str, Tensor]] = {}
        with log.bar(total=None, unit=" inputs") as bar:
            for name, test_set in data.sets.items():
                bar.set_description_str(f"predicting {name}")
                part = test_set if isinstance(test_set, Part) else test_set()
                seed = derive_seed(job.seed, f"predict {name}")
                with without_attention(model) if name == WITHOUT else nullcontext():
                    outputs = predictor.predict(
                        model, part.inputs, device=device, seed=seed, progress=bar.update
                    )
                pair = (*outputs, part.targets.cpu())
                predictions[name] = self._to_stored(model, data.data, pair)._asdict()
        save_groups(file, predictions)

    def report(self, data: Loaded, results: Results, at: RunFolder) -> str:
        """Evaluate the stored predictions and write the report."""
        settings, dataset = self.settings, data.data
        measured: dict[str, MethodResult] = {}
        plotted: dict[str, Sequence[Mapping[str, Any]]] = {}
        for name in settings.method:
            row = parse_row(name)
            file = LAPLACE_PREDICTIONS if "kflla" in row.additions else PREDICTIONS
            jobs: list[Job] = []
            runs: list[dict[str, Any]] = []
            for seed in settings.seeds:
                candidates: dict[Job, dict[str, Any]] = {}
                for job in (Job(trained, seed) for trained in row.trained):
                    path = run_folder(at, job) / file
                    if not path.exists():  # deleted: made anew
                        self.run(job, data, at)
                    groups = load_groups(path).items()
                    candidates[job] = {
                        name: self.prediction_type(**fields) for name, fields in groups
                    }
                best = next(iter(candidates))
                if len(candidates) > 1:
                    best = min(candidates, key=lambda job: self.validation_loss(candidates[job]))
                jobs.append(best)
                runs.append(candidates[best])
            metrics, plotted[name], temperatures = self.measure(row, runs)
            # Members of an ensemble have penalties of their own.
            penalties = [results[job].get("penalty") for job in jobs]
            penalties = penalties if len(metrics) == len(jobs) else [None] * len(metrics)
            pairs = zip(metrics, penalties, strict=True)
            metrics = [{**entry, "test/penalty": penalty} for entry, penalty in pairs]
            seconds = [results[job]["seconds"] for job in jobs]
            chosen = [job.row for job in jobs] if row.choices else []
            measured[name] = MethodResult(row.title, metrics, seconds, temperatures, chosen)
        # A metric that a method lacks, as one without attention does that of its absence.
        names = dict.fromkeys(
            metric for result in measured.values() for entry in result.metrics for metric in entry
        )
        measured = {
            name: result._replace(
                metrics=[{m: entry.get(m) for m in names} for entry in result.metrics]
            )
            for name, result in measured.items()
        }
        sizes = {part: len(getattr(dataset, part)) for part in ("train", "validation", "test")}
        (key, attribute), notes = self.data_field, list(dataset.notes)
        facts = {"name": dataset.name, **sizes, key: getattr(dataset, attribute), "notes": notes}
        make = type(self).make_report
        report = make(measured, plotted, settings=settings.to_dict(), data=facts, recipe=at.recipe)
        return report.write(at.path)

    def fit(
        self,
        model: nn.Module,
        method: Method,
        label: str,
        config: TrainConfig,
        data: Any,
        folder: Path,
    ) -> None:
        """Train a model, from where it stopped."""
        validated, values = len(data.validation) > 0, self.settings.to_dict()
        identity = {key: values[key] for key in ("data", "reading", "model")}
        attention = method.config(self.settings).to_dict()
        loss, measure = self._objective(method, model, data)
        fit(
            model,
            tensors(data.train),
            config,
            folder,
            loss=loss,
            score=partial(self.predictor(method, data).score, measure) if validated else None,
            held_out=tensors(data.validation) if validated else None,
            label=label,
            metadata={**self.run_identity, "method": label, **identity, "attention": attention},
        )


def run_folder(at: RunFolder, job: Job) -> Path:
    """Return the folder of a run inside that of the experiment."""
    return at.path / job.row.replace(":", ",") / f"seed-{job.seed}"


def warm_folder(folder: Path) -> Path:
    """Return the folder of the training that a run's weights start from."""
    return folder.with_name(f"{folder.name}-warm-start")


def tensors(part: Part) -> tuple[Tensor, Tensor]:
    """Return raw inputs and targets of a part of a data set."""
    return part.inputs, part.targets


def penalty_of(method: Method, settings: Any) -> Weight | None:
    """Return the weight of a method's penalty by progress; None without a penalty."""
    config = method.config(settings)
    return config.penalty_weight if config.penalised or method.baseline is not None else None


def penalised(
    nll: Tensor, penalty: Tensor, weight: Weight | None, step: Step, **terms: Tensor
) -> LossParts:
    """Return the negative log likelihood plus the weighted penalty of methods that have one."""
    if weight is None:
        return LossParts(nll, {"nll": nll, **terms})
    penalty = penalty.float()
    loss = nll + weight(step.progress) * penalty
    return LossParts(loss, {"nll": nll, "penalty": penalty, **terms})
