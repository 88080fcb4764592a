"""`probseq classify`: train methods on one data set, measure them, and compare."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probseq.corruptions import corrupt
from probseq.images import augment3, normalize, random_crop_flip, rotate
from probseq.laplace import laplace_model
from probseq.metrics import (
    SHIFTED,
    Predictions,
    accuracy,
    class_predictions,
    ensemble,
    evaluate_sets,
    expected_calibration_error,
    matthews_correlation,
)
from probseq.metrics.post_hoc import search_temperature
from probseq.transformers import copy_kernel_weights
from probseq_apps.baselines.estimators import MOST_ROWS_OF_GP, fit_estimator
from probseq_apps.baselines.sngp import fit_precision
from probseq_apps.data.image_files import available_cifar_c, read_cifar_c
from probseq_apps.data.image_folders import list_all
from probseq_apps.data.images import ImageData, load_ood_images
from probseq_apps.data.names import CORRUPTION_GROUPS, CORRUPTION_NAMES, DataError, own_path
from probseq_apps.data.parts import Part
from probseq_apps.data.sets import load_data, with_labels
from probseq_apps.data.texts import EmbeddedTextData, TextData
from probseq_apps.data.tokenizers import trim_padding
from probseq_apps.engine import distributed
from probseq_apps.engine.config import TrainConfig, derive_seed
from probseq_apps.engine.files import save_groups
from probseq_apps.engine.trainer import Batch, LossParts, Step
from probseq_apps.experiment import Job, RunFolder
from probseq_apps.experiments.comparison import (
    LAPLACE_PREDICTIONS,
    PREDICTIONS,
    WITHOUT,
    Comparison,
    Loaded,
    Measured,
    Objective,
    PredictionSetup,
    TestSet,
    Weight,
    penalised,
    penalty_of,
    run_folder,
    tensors,
    warm_folder,
)
from probseq_apps.methods.build import count_tokens
from probseq_apps.options import Options
from probseq_apps.report.classify import classify_report
from probseq_apps.settings.classify import ROTATIONS, EvaluationSettings
from probseq_apps.settings.methods import METHODS, Method, Row, TrainingSettings, parse_row

Data: TypeAlias = ImageData | TextData | EmbeddedTextData
Sets = Mapping[str, Predictions]
MADE, PUBLISHED = SHIFTED
# The same corrupted pixels for every method, seed and run.
_CORRUPTION_SEED = 0
_ROTATION_DEGREES = 90.0
_AUGMENTATIONS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "none": lambda images, generator: images,
    "crop-flip": random_crop_flip,
    "three-augment": augment3,
}


class Classify(Comparison):
    """Methods of classification on one data set."""

    kind = command = "classify"
    data_field = ("classes", "num_classes")
    prediction_type, make_report = Predictions, staticmethod(classify_report)

    def load(self, options: Options) -> Loaded:
        """Read the data set, and the sets out of distribution."""
        settings, reading = self.settings, self.settings.reading
        distributed.join(distributed.resolve_device(settings.training.device))
        for path in filter(None, map(own_path, settings.evaluation.ood)):
            list_all(path)  # refused before the training set is read
        arguments = reading.to_dict()
        arguments["embeddings"] = None if reading.embeddings is None else Path(reading.embeddings)
        arguments["max_length"] = settings.model.max_length if settings.is_text else None
        source: Any = {"data_dir": options.data_dir, "download": options.download}
        arguments |= {"train_size": None, "label_noise": 0.0}
        fully_labelled = load_data(settings.data, **source, **arguments)
        data = self._labelled(fully_labelled, settings.seeds[0])
        # What is out of distribution must not be in the training rows of any seed.
        every = replace(data, train=fully_labelled.train)
        return Loaded(data, make_test_sets(every, settings.evaluation, options), fully_labelled)

    def _labelled(self, fully_labelled: Data, seed: int) -> Data:
        """Return the data with the labels of a seed; members of an ensemble share theirs."""
        settings, reading = self.settings, self.settings.reading
        if any("ensemble" in parse_row(name).additions for name in settings.method):
            seeds = settings.seeds
            size = settings.ensemble_size or len(seeds)
            seed = seeds[seeds.index(seed) // size * size]
        return with_labels(fully_labelled, reading.train_size, reading.label_noise, seed=seed)

    def check(self, data: Loaded) -> None:
        """Raise if the settings don't fit the data."""
        settings, name = self.settings, data.data.name
        if len(data.data.validation) == 0:
            lacks = f"needs validation data, and {name!r} is split without"
            if settings.training.select == "best":
                raise ValueError(f"select='best' {lacks}: use select='last'")
            for method, row in ((name, parse_row(name)) for name in settings.method):
                if "ts" in row.additions or len(row.trained) > 1:
                    raise ValueError(f"method {method!r} {lacks}")
        for method in (each for each in settings.method if parse_row(each).method.estimator):
            for seed in settings.seeds:
                labels = self._labelled(data.fully_labelled, seed).train.targets
                if len(labels.unique()) < 2:
                    raise ValueError(
                        f"method {method!r} needs training examples of two classes, and seed "
                        f"{seed} has {len(labels)} of one: raise train_size, or leave it out"
                    )
        if len(data.data.train) > MOST_ROWS_OF_GP:
            for method in (each for each in settings.method if parse_row(each).base == "gp"):
                raise ValueError(
                    f"method {method!r} takes at most {MOST_ROWS_OF_GP:,} training examples, and "
                    f"{name!r} has {len(data.data.train):,}: leave it out, or set train_size"
                )
        super().check(data)

    def describe(self, data: Loaded) -> str:
        """Return the sizes of the data, and what is compared."""
        return self.described(data.data, f"examples in {data.data.num_classes} classes")

    def _prediction_setup(self, data: Any) -> PredictionSetup:
        return class_predictions, preparation(data), count_tokens(self.settings, data)

    def _objective(self, method: Method, model: nn.Module, data: Any) -> Objective:
        chosen = matthews_correlation if data.name == "cola" else accuracy
        augment = _AUGMENTATIONS[self.settings.training.augment]
        weight = penalty_of(method, self.settings)
        loss = partial(classification_loss, preparation(data), augment, weight)

        def measure(log_probs: Tensor, labels: Tensor) -> dict[str, Tensor]:
            probs, nll = log_probs.exp(), F.nll_loss(log_probs, labels)
            score = chosen(probs, labels)
            return {"score": score, "nll": nll, "ece": expected_calibration_error(probs, labels)}

        return loss, measure

    def train(self, job: Job, data: Any, folder: Path) -> nn.Module:
        """Return the trained model of a run, which may start from kernel attention's weights."""
        training, method = self.settings.training, METHODS[job.row]
        epochs = self.settings.warm_epochs(job.row)
        if method.warm_start is None or not epochs:
            return super().train(job, data, folder)
        kernel, seed = Method("", method.warm_start), derive_seed(job.seed, "warm start")
        source, model = (self.model(each, data, job.seed) for each in (kernel, method))
        short = warm_start_config(training, epochs, seed=seed)
        self.fit(source, kernel, f"{job.row} warm start", short, data, warm_folder(folder))
        copy_kernel_weights(source, model)
        config = training.train_config(seed=job.seed)
        rest = replace(config, epochs=config.epochs - epochs)
        self.fit(model, method, job.row, rest, data, folder)
        return model

    def validation_loss(self, sets: Sets) -> float:
        """Return the negative log likelihood of the validation part."""
        predictions = sets["validation"]
        return float(F.nll_loss(predictions.log_probs, predictions.labels))

    def measure(self, row: Row, runs: Sequence[Sets]) -> Measured:
        """Return metrics and predictions, an entry a seed or one, and temperatures."""
        temperatures: list[float] = []
        if "ts" in row.additions:
            known = [sets["validation"] for sets in runs]
            temperatures = [search_temperature(p.log_probs, p.labels) for p in known]
            pairs = zip(runs, temperatures, strict=True)
            runs = [{name: p.scaled(t) for name, p in sets.items()} for sets, t in pairs]
        if "ensemble" in row.additions:
            groups = self.together(row, runs)
            runs = [
                {n: ensemble([sets[n] for sets in members]) for n in members[0]}
                for members in groups
            ]
        return [evaluate_sets(sets, CORRUPTION_GROUPS) for sets in runs], runs, temperatures

    def run(self, job: Job, data: Loaded, at: RunFolder) -> dict[str, Any]:
        """Train a method, or fit an estimator, and store its predictions."""
        data = data._replace(data=self._labelled(data.fully_labelled, job.seed))
        if not METHODS[parse_row(job.row).base].estimator:
            return super().run(job, data, at)
        if not distributed.is_main():
            return {}
        started = time.perf_counter()
        predict = fit_estimator(job.row, data.data, seed=derive_seed(job.seed, "weights"))
        seconds = round(time.perf_counter() - started, 3)
        sets: dict[str, dict[str, Tensor]] = {}
        for name, source in data.sets.items():
            if name != WITHOUT:
                part = source if isinstance(source, Part) else source()
                log_probs = predict(part)
                # No logits, hence no energy to tell inputs apart by.
                energy = torch.full_like(log_probs[:, 0], math.nan)
                sets[name] = Predictions(log_probs, energy, part.targets)._asdict()
        save_groups(run_folder(at, job) / PREDICTIONS, sets)
        return {"seconds": seconds}

    def predict(self, model: nn.Module, job: Job, data: Loaded, folder: Path) -> None:
        """Fit SNGP's precision and Laplace approximations, and predict all sets."""
        settings, dataset, method = self.settings, data.data, METHODS[job.row]
        device, prepare = distributed.resolve_device(settings.training.device), preparation(dataset)

        def batches(part: Part) -> Iterator[tuple[Tensor, Tensor]]:
            """Yield prepared batches, in order and not augmented."""
            size = settings.training.batch_size
            for inputs, labels in zip(*(t.split(size) for t in tensors(part)), strict=True):
                yield prepare(inputs.to(device)), labels.to(device)

        if method.baseline == "sngp":
            fit_precision(model, (inputs for inputs, _ in batches(dataset.train)))
        super().predict(model, job, data, folder)
        rows = [row for row in map(parse_row, settings.method) if row.base == job.row]
        if any("kflla" in row.additions for row in rows):
            # The curvature of a method that draws is a mean over its samples.
            draws = method.sampled and not method.test_dropout
            samples = settings.evaluation.num_samples if draws else None
            generator = torch.Generator(device).manual_seed(derive_seed(job.seed, "laplace"))
            laplace = laplace_model(
                model,
                batches(dataset.train),
                validation=batches(dataset.validation) if len(dataset.validation) else None,
                call=lambda net, inputs: net(inputs, generator=generator, num_samples=samples),
            )
            self.store(laplace, job, data, folder / LAPLACE_PREDICTIONS)


def warm_start_config(settings: TrainingSettings, epochs: int, *, seed: int) -> TrainConfig:
    """Return the first epochs of the kernel method's own training: its schedule, cut off."""
    full = settings.train_config(seed=seed)
    warmup = min(full.warmup_epochs, epochs - 1)
    done = (epochs - warmup) / max(1, full.epochs - full.warmup_epochs)
    peak, end = full.learning_rate, full.final_learning_rate
    if full.schedule == "cosine":
        done = 0.5 * (1.0 - math.cos(math.pi * done))
    last = peak + done * (end - peak)
    short = {"epochs": epochs, "warmup_epochs": warmup, "final_learning_rate": last}
    return replace(full, **short, select="last")


def preparation(data: Data) -> Callable[[Tensor], Tensor]:
    """Return the function that prepares raw batches: it normalises images and pads texts."""
    if isinstance(data, ImageData):
        return partial(normalize, mean=data.mean, std=data.std)
    return data.padded if isinstance(data, EmbeddedTextData) else trim_padding


def classification_loss(
    prepare: Callable[[Tensor], Tensor],
    augment: Callable[[Tensor, torch.Generator], Tensor],
    weight: Weight | None,
    model: nn.Module,
    batch: Batch,
    step: Step,
) -> LossParts:
    """Return the cross-entropy plus the weighted penalty of methods that have one.

    For most methods that is the negative ELBO (thesis Eq. 3.18), in nats an example.
    """
    inputs, labels = batch
    output = model(prepare(augment(inputs, step.generator)), generator=step.generator)
    nll = F.cross_entropy(output.logits.float(), labels)
    return penalised(nll, output.penalty, weight, step)


# -- What is predicted and measured ---------------------------------------------------------------


def make_test_sets(
    data: Data, settings: EvaluationSettings, options: Options
) -> dict[str, TestSet]:
    """Return the sets to predict, by name.

    Where the data folder has the published files of CIFAR-10-C or CIFAR-100-C, they take the place
    of the corruptions that the program makes; those of the same names, if only some are asked for.
    Data out of distribution are read at once, so that a missing file is noticed before anything is
    trained.

    Raises:
        ValueError: a set is missing or damaged, or the images cannot be corrupted.
    """
    sets: dict[str, TestSet] = {"validation": data.validation} if len(data.validation) else {}
    sets |= {"test": data.test, WITHOUT: data.test}
    if not isinstance(data, ImageData):
        return {**sets, **data.extra_tests}
    if settings.shift:
        sets |= _shifted(data, settings, options.data_dir)
    for name in settings.ood:
        if name == ROTATIONS:
            sets[f"ood/{name}"] = partial(_changed, data.test, rotate, _ROTATION_DEGREES)
        else:
            source: Any = {"data_dir": options.data_dir, "download": options.download}
            sets[f"ood/{name}"] = load_ood_images(name, data, **source)
    return sets


def _changed(part: Part, change: Callable[..., Tensor], *arguments: Any, **options: Any) -> Part:
    return Part(change(part.inputs, *arguments, **options), part.targets)


def _shifted(
    data: ImageData, settings: EvaluationSettings, data_dir: Path | None
) -> dict[str, TestSet]:
    severities = settings.severities
    if data_dir is not None and (published := available_cifar_c(data.name, data_dir)):
        # The full list stands for all there are: the published families are a few more.
        every = set(settings.corruptions) == set(CORRUPTION_NAMES)
        chosen = [name for name in published if every or name in settings.corruptions]
        if not chosen:
            raise DataError(
                f"none of the corruptions {', '.join(settings.corruptions)} is among the published "
                f"files of {data.name!r} under {data_dir}, which are {', '.join(published)}"
            )
        read = partial(read_cifar_c, data.name, data_dir)
        return {f"{PUBLISHED}/{n}/{s}": partial(read, n, s) for n in chosen for s in severities}
    for name in settings.corruptions:
        # Images that cannot be corrupted are refused before anything is trained.
        corrupt(data.test.inputs[:1], name, severities[0], seed=_CORRUPTION_SEED)
    return {
        f"{MADE}/{n}/{s}": partial(_changed, data.test, corrupt, n, s, seed=_CORRUPTION_SEED)
        for n in settings.corruptions
        for s in severities
    }
