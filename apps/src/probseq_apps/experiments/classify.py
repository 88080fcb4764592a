"""`probseq classify`: train methods on one data set, measure them, and compare."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

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
from probseq.metrics.sets import LOGIT_SCORES, trusted_shares
from probseq.transformers import Predictor, copy_kernel_weights
from probseq_apps.baselines.backbone import TRAINING, with_distances, with_features
from probseq_apps.baselines.estimators import MOST_ROWS_OF_GP, fit_estimator
from probseq_apps.baselines.sngp import SNGPTransformer, fit_precision
from probseq_apps.data.image_files import available_cifar_c, read_cifar_c
from probseq_apps.data.image_folders import list_all
from probseq_apps.data.images import ImageData, load_ood_images
from probseq_apps.data.names import CORRUPTION_NAMES, DataError, user_path
from probseq_apps.data.parts import Part
from probseq_apps.data.sequences import SequenceData, corrupt_sequences
from probseq_apps.data.sets import ClassData as Data
from probseq_apps.data.sets import (
    load_data,
    unknown_classes,
    unknown_part,
    with_labels,
    without_classes,
    without_rows,
)
from probseq_apps.data.tokenizers import trim_padding
from probseq_apps.engine import distributed
from probseq_apps.engine.config import EpochTraining, TrainConfig, derive_seed
from probseq_apps.engine.files import save_groups
from probseq_apps.engine.trainer import Batch, LossParts, TrainStep
from probseq_apps.experiment import Job, Results, RunFolder, Workflow
from probseq_apps.experiments import comparison
from probseq_apps.experiments.examples import chance_of, draw_examples
from probseq_apps.methods.build import build, count_tokens
from probseq_apps.options import Options
from probseq_apps.report.classify import (
    UNKNOWN_VALIDATION,
    MethodResult,
    classify_report,
    with_chosen_scores,
)
from probseq_apps.settings.classify import ROTATIONS, ClassifySettings, EvaluationSettings
from probseq_apps.settings.methods import Row, TrainedMethod, resolve

Sets = Mapping[str, Predictions]
Sources = Mapping[str, comparison.TestSet]
MADE, PUBLISHED = SHIFTED
UNKNOWN = "ood/unknown"  # the unknown classes among the test part
# The same corrupted pixels for every method, seed and run.
_CORRUPTION_SEED, _ROTATION_DEGREES = 0, 90.0
_AUGMENTATIONS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "none": lambda images, generator: images,
    "crop-flip": random_crop_flip,
    "three-augment": augment3,
}


def load(settings: ClassifySettings, options: Options) -> comparison.Loaded[Data]:
    """Read the data set, and the sets out of distribution."""
    distributed.join(distributed.resolve_device(settings.training.device))
    for path in filter(None, map(user_path, settings.evaluation.ood)):
        list_all(path)  # refused before the training set is read
    fully_labelled = load_data(
        settings.data,
        settings.reading,
        max_length=settings.model.max_length if settings.is_text else None,
        data_dir=options.data_dir,
        download=options.download,
    )
    data = labelled(settings, fully_labelled, settings.seeds[0])
    # What is out of distribution must not be in the training rows of any seed.
    sets = make_test_sets(fully_labelled, settings, options)
    return comparison.Loaded(data, sets, fully_labelled)


def labelled(settings: ClassifySettings, fully_labelled: Data, seed: int) -> Data:
    """Return the data with the known classes and the labels of a seed."""
    reading, seed = settings.reading, shared_seed(settings, seed)
    if unknown := unknown_classes(fully_labelled, reading, seed=seed):
        fully_labelled = without_classes(fully_labelled, unknown)
        notes = (*fully_labelled.notes, f"unknown in training: {reading.unknown_text}")
        fully_labelled = replace(fully_labelled, notes=notes)
    return with_labels(fully_labelled, reading.train_size, seed=seed)


def shared_seed(settings: ClassifySettings, seed: int) -> int:
    """Return the seed that chooses classes and labels: members of an ensemble share theirs."""
    seeds = settings.seeds
    if any("ensemble" in row.additions for row in map(settings.row, settings.method)):
        size = settings.ensemble_size or len(seeds)
        return seeds[seeds.index(seed) // size * size]
    return seed


def sets_of_seed(settings: ClassifySettings, loaded: comparison.Loaded[Data], seed: int) -> Sources:
    """Return the test sets with the classes that a seed knows, and those that it does not."""
    whole, seed = loaded.fully_labelled, shared_seed(settings, seed)
    if not (unknown := unknown_classes(whole, settings.reading, seed=seed)):
        return loaded.sets
    # The targets of these are no classes of the data.
    others = {f"ood/{name}" for name in settings.evaluation.ood if name != ROTATIONS}
    sets: dict[str, comparison.TestSet] = {
        name: source if name in others else partial(_without, source, unknown)
        for name, source in loaded.sets.items()
    }
    if len(held_out := unknown_part(whole.validation, unknown)):
        sets[UNKNOWN_VALIDATION] = held_out
    return {**sets, UNKNOWN: unknown_part(whole.test, unknown)}


def _without(source: comparison.TestSet, unknown: list[int]) -> Part:
    return without_rows(source if isinstance(source, Part) else source(), unknown)


def check(settings: ClassifySettings, loaded: comparison.Loaded[Data]) -> None:
    """Raise if the settings don't fit the data."""
    data, rows = loaded.data, {name: settings.row(name) for name in settings.method}
    if len(data.validation) == 0:
        lacks = f"needs validation data, and {data.name!r} is split without"
        if settings.training.select == "best":
            raise ValueError(f"select='best' {lacks}: use select='last'")
        for name, row in rows.items():
            if "ts" in row.additions or len(row.variants) > 1:
                raise ValueError(f"method {name!r} {lacks}")
    for name, row in rows.items():
        for seed in settings.seeds if row.method.estimator else ():
            labels = labelled(settings, loaded.fully_labelled, seed).train.targets
            if len(labels.unique()) < 2:
                raise ValueError(
                    f"method {name!r} needs training examples of two classes, and seed "
                    f"{seed} has {len(labels)} of one: raise train_size, or leave it out"
                )
        if row.base == "gp" and len(data.train) > MOST_ROWS_OF_GP:
            raise ValueError(
                f"method {name!r} takes at most {MOST_ROWS_OF_GP:,} training examples, and "
                f"{data.name!r} has {len(data.train):,}: leave it out, or set train_size"
            )
        if row.base == "randconv" and not isinstance(data, SequenceData):
            raise ValueError(f"method {name!r} is for sequences, and {data.name!r} holds none")
    comparison.check_methods(settings, loaded)


def describe(settings: ClassifySettings, loaded: comparison.Loaded[Data]) -> str:
    """Return the sizes of the data, and what is compared."""
    noun = f"examples in {loaded.data.num_classes} classes"
    return comparison.describe_data(settings, loaded.data, noun)


def seconds(settings: ClassifySettings, loaded: comparison.Loaded[Data]) -> dict[Job, float]:
    """Return about how long each method trains and predicts; estimators take seconds at most."""
    of_row = dict.fromkeys(settings.trained(), 0.0)
    for name, trained in ((name, resolve(name, settings)) for name in of_row):
        if not trained.method.estimator:
            model = build(trained, loaded.data, seed=0)
            loss = make_objective(trained, loaded.data).loss
            config = trained.settings.training.train_config(seed=0)
            predictor = make_predictor(trained, loaded.data)
            of_row[name] = comparison.job_seconds(model, loss, predictor, loaded, config)
    return {job: of_row[job.row] for job in comparison.jobs(settings)}


def train_method(
    settings: ClassifySettings, loaded: comparison.Loaded[Data], job: Job, at: RunFolder
) -> dict[str, Any]:
    """Train a method, or fit an estimator, and store its predictions."""
    trained, folder = resolve(job.row, settings), comparison.run_folder(at, job)
    data = labelled(settings, loaded.fully_labelled, job.seed)
    sets = dict(sets_of_seed(settings, loaded, job.seed))
    if any(name.startswith("ood/") for name in sets):  # which are told from what was learned
        sets[TRAINING] = data.train
    if trained.method.estimator:
        return fit_and_predict(trained.base, data, sets, folder, job.seed)
    model = train_transformer(trained, data, folder, job.seed)
    result: dict[str, Any] = {"seconds": comparison.training_seconds(folder)}
    if distributed.is_main():
        predict_and_store(model, trained, data, sets, folder, job.seed)
        predictor = make_predictor(trained, data)
        result |= comparison.measured_penalty(model, trained, predictor, data, seed=job.seed)
    return result


def report(
    settings: ClassifySettings, loaded: comparison.Loaded[Data], results: Results, at: RunFolder
) -> str:
    """Evaluate the stored predictions and write the report."""
    measured: dict[str, MethodResult] = {}
    plotted: dict[str, list[Sets]] = {}
    for name in settings.method:
        row = settings.row(name)
        jobs_of_row, stored = comparison.stored_runs(row, settings, at, loss=validation_loss)
        runs: list[Sets] = [{n: Predictions(**f) for n, f in sets.items()} for sets in stored]
        runs, temperatures = post_hoc(row, settings, runs)
        rate = settings.evaluation.error_rate
        metrics = [evaluate_sets(s) | trusted_shares(s, rate) for s in runs]
        metrics, scores = with_chosen_scores(metrics)
        result = comparison.row_result(row, jobs_of_row, results, metrics, temperatures)
        measured[name] = result._replace(scores=scores)
        plotted[name] = runs
    facts = {"classes": loaded.data.num_classes, "chance": chance_of(loaded.data)}
    fields = comparison.report_fields(settings, loaded, at, **facts)
    fields["pictures"] = partial(draw_examples, loaded)
    if unknown := settings.reading.unknown_text:
        fields["data"]["unknown"].append(unknown)
    return classify_report(comparison.same_metrics(measured), plotted, **fields).write(at.path)


WORKFLOW = Workflow(
    kind="classify",
    command="classify",
    folders=comparison.FOLDERS,
    longer=comparison.LONGER,
    jobs=comparison.jobs,
    load=load,
    check=check,
    describe=describe,
    seconds=seconds,
    timed="training and predictions",
    run=train_method,
    report=report,
)


# -- Training -------------------------------------------------------------------------------------


def train_transformer(
    trained: TrainedMethod[ClassifySettings], data: Data, folder: Path, seed: int
) -> nn.Module:
    """Return the trained model of a run, which may start from kernel attention's weights."""
    training, warm = trained.settings.training, trained.settings.warm_epochs(trained.base)
    model = build(trained, data, seed=derive_seed(seed, "weights"))
    config = training.train_config(seed=seed)
    if warm:
        source = trained.warm_start()
        source_model = build(source, data, seed=derive_seed(seed, "weights"))
        short = warm_start_config(training, warm, seed=derive_seed(seed, "warm start"))
        label = f"{trained.base} warm start"
        _fit(source_model, source, data, comparison.warm_folder(folder), short, label)
        copy_kernel_weights(source_model, model)
        config = replace(config, epochs=config.epochs - warm)
    _fit(model, trained, data, folder, config, trained.base)
    return model


def _fit(
    model: nn.Module,
    trained: TrainedMethod[ClassifySettings],
    data: Data,
    folder: Path,
    config: TrainConfig,
    label: str,
) -> None:
    comparison.fit_method(
        model,
        trained,
        data,
        folder,
        objective=make_objective(trained, data),
        predictor=make_predictor(trained, data),
        config=config,
        label=label,
    )


def make_predictor(trained: TrainedMethod[ClassifySettings], data: Data) -> Predictor:
    """Return what predicts classes with a method."""
    method, settings = trained.method, trained.settings
    samples = settings.evaluation.num_samples if method.sampled else None
    tokens = count_tokens(settings, data)
    prepare = preparation(data)
    return Predictor(class_predictions, prepare, samples, method.test_dropout, tokens)


def make_objective(trained: TrainedMethod[ClassifySettings], data: Data) -> comparison.Objective:
    """Return the loss of a method, and the metrics of validation: for CoLA Matthews' first."""
    score = matthews_correlation if data.name == "cola" else accuracy
    augment = _AUGMENTATIONS[trained.settings.training.augment]

    def measure(log_probs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        probs, nll = log_probs.exp(), F.nll_loss(log_probs, labels)
        ece = expected_calibration_error(probs, labels)
        return {"score": score(probs, labels), "nll": nll, "ece": ece}

    loss = partial(classification_loss, preparation(data), augment, trained.penalty_weight)
    return comparison.Objective(loss, measure)


def warm_start_config(settings: EpochTraining, epochs: int, *, seed: int) -> TrainConfig:
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
    """Return the function that prepares raw batches: normalised images, padded texts."""
    if isinstance(data, ImageData):
        return partial(normalize, mean=data.mean, std=data.std)
    return data.prepared if isinstance(data, SequenceData) else trim_padding


def classification_loss(
    prepare: Callable[[Tensor], Tensor],
    augment: Callable[[Tensor, torch.Generator], Tensor],
    weight: comparison.Weight | None,
    model: nn.Module,
    batch: Batch,
    step: TrainStep,
) -> LossParts:
    """Return the cross-entropy plus the weighted penalty of methods that have one.

    For most methods that is the negative ELBO (thesis Eq. 3.18), in nats an example.
    """
    inputs, labels = batch
    output = model(prepare(augment(inputs, step.generator)), generator=step.generator)
    nll = F.cross_entropy(output.logits.float(), labels)
    return comparison.penalised(nll, output.penalty, weight, step)


# -- What is predicted and measured ---------------------------------------------------------------


def fit_and_predict(
    name: str, data: Data, sets: Sources, folder: Path, seed: int
) -> dict[str, Any]:
    """Fit an estimator and store its predictions, in the main process alone."""
    if not distributed.is_main():
        return {}
    started = time.perf_counter()
    predict = fit_estimator(name, data, seed=derive_seed(seed, "weights"))
    seconds = round(time.perf_counter() - started, 3)
    predictions: dict[str, tuple[Tensor, ...]] = {}
    for set_name, source in sets.items():
        if set_name != comparison.WITHOUT_ATTENTION:
            part = source if isinstance(source, Part) else source()
            log_probs, features = predict(part)
            # No logits, hence no scores of theirs to tell inputs apart by.
            scores = torch.full((len(part), LOGIT_SCORES), math.nan, dtype=torch.float64)
            predictions[set_name] = log_probs, scores, features, part.targets
    save_groups(folder / comparison.PREDICTIONS, with_distances(predictions))
    return {"seconds": seconds}


def predict_and_store(
    model: nn.Module,
    trained: TrainedMethod[ClassifySettings],
    data: Data,
    sets: Sources,
    folder: Path,
    seed: int,
) -> None:
    """Store predictions of all sets, after fitting SNGP's precision and Laplace approximations."""
    settings, method, predictor = trained.settings, trained.method, make_predictor(trained, data)
    device, prepare = distributed.resolve_device(settings.training.device), preparation(data)

    def batches(part: Part) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield prepared batches, in order and not augmented."""
        size = settings.training.batch_size
        for inputs, labels in zip(part.inputs.split(size), part.targets.split(size), strict=True):
            yield prepare(inputs.to(device)), labels.to(device)

    def store(predicting: nn.Module, file: str) -> None:
        with with_features(predicting, predictor) as deeper:
            predictions = comparison.predict_sets(predicting, deeper, sets, settings, seed=seed)
        save_groups(folder / file, with_distances(predictions))

    if isinstance(model, SNGPTransformer):
        fit_precision(model, (inputs for inputs, _ in batches(data.train)))
    store(model, comparison.PREDICTIONS)
    if any("kflla" in row.additions for row in trained.rows):
        # The curvature of a method that draws is a mean over its samples.
        draws = method.sampled and not method.test_dropout
        samples = settings.evaluation.num_samples if draws else None
        generator = torch.Generator(device).manual_seed(derive_seed(seed, "laplace"))
        laplace = laplace_model(
            model,
            batches(data.train),
            validation=batches(data.validation) if len(data.validation) else None,
            call=lambda net, inputs: net(inputs, generator=generator, num_samples=samples),
        )
        store(laplace, comparison.LAPLACE_PREDICTIONS)


def validation_loss(sets: Mapping[str, comparison.Stored]) -> float:
    """Return the negative log likelihood of the validation part."""
    predictions = sets["validation"]
    return float(F.nll_loss(predictions["log_probs"], predictions["labels"]))


def post_hoc(
    row: Row, settings: ClassifySettings, runs: Sequence[Sets]
) -> tuple[list[Sets], list[float]]:
    """Return predictions with temperatures, then by ensembles, as a row has them; and these."""
    temperatures: list[float] = []
    if "ts" in row.additions:
        validation = [sets["validation"] for sets in runs]
        temperatures = [search_temperature(p.log_probs, p.labels) for p in validation]
        pairs = zip(runs, temperatures, strict=True)
        runs = [{name: p.scaled(t) for name, p in sets.items()} for sets, t in pairs]
    if "ensemble" in row.additions:
        runs = [
            {name: ensemble([sets[name] for sets in members]) for name in members[0]}
            for members in comparison.ensembles(row, settings, runs)
        ]
    return list(runs), temperatures


def make_test_sets(
    data: Data, settings: ClassifySettings, options: Options
) -> dict[str, comparison.TestSet]:
    """Return the sets to predict, by name.

    Where the data folder has the published files of CIFAR-10-C or CIFAR-100-C, they take the place
    of the corruptions that the program makes; those of the same names, if only some are asked for.
    Data out of distribution are read at once, so that a missing file is noticed before anything is
    trained.
    """
    sets: dict[str, comparison.TestSet] = {"test": data.test}
    sets[comparison.WITHOUT_ATTENTION] = data.test
    if len(data.validation):
        sets = {"validation": data.validation, **sets}
    evaluation, shift = settings.evaluation, settings.evaluation.shift
    if isinstance(data, SequenceData) and shift:
        change = partial(corrupt_sequences, scale=data.statistics[1], seed=_CORRUPTION_SEED)
        for name, severity in product(settings.corruptions, evaluation.severities):
            sets[f"{MADE}/{name}/{severity}"] = partial(_changed, data.test, change, name, severity)
    if not isinstance(data, ImageData):
        return {**sets, **data.extra_tests}
    if shift:
        sets |= _shifted(data, evaluation, options.data_dir)
    for name in evaluation.ood:
        if name == ROTATIONS:
            sets[f"ood/{name}"] = partial(_changed, data.test, rotate, _ROTATION_DEGREES)
        else:
            sets[f"ood/{name}"] = load_ood_images(
                name, data, data_dir=options.data_dir, download=options.download
            )
    return sets


def _changed(part: Part, change: Callable[..., Tensor], *arguments: Any, **options: Any) -> Part:
    return Part(change(part.inputs, *arguments, **options), part.targets)


def _shifted(
    data: ImageData, settings: EvaluationSettings, data_dir: Path | None
) -> dict[str, comparison.TestSet]:
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
