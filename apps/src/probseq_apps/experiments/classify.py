"""`probseq classify`: train methods on one data set, measure them, and compare."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probseq.corruptions import corrupt
from probseq.images import augment3, normalize, random_crop_flip, rotate
from probseq.metrics import accuracy, evaluate, evaluate_ood, matthews_correlation
from probseq.transformers.spec import AttentionConfig
from probseq_apps.baselines.laplace import laplace_model
from probseq_apps.baselines.sngp import fit_precision
from probseq_apps.data.folders import list_all
from probseq_apps.data.image_files import available_cifar_c, read_cifar_c
from probseq_apps.data.images import ImageData, load_ood_images
from probseq_apps.data.names import CORRUPTION_GROUPS, CORRUPTION_NAMES, DataError, own_path
from probseq_apps.data.parts import Part
from probseq_apps.data.sets import load_data
from probseq_apps.data.texts import EmbeddedTextData, TextData
from probseq_apps.engine import distributed
from probseq_apps.engine.config import TrainConfig, derive_seed
from probseq_apps.engine.files import load_groups, read_finished, save_groups
from probseq_apps.engine.fit import fit
from probseq_apps.engine.trainer import Batch, LossParts, Step
from probseq_apps.experiment import Experiment, Job, Results, counted
from probseq_apps.folder import RunFolder
from probseq_apps.methods.build import ComparisonSettings, build, max_tokens
from probseq_apps.methods.post_hoc import Predictions, apply_post_hoc, class_predictions
from probseq_apps.methods.predict import Predictor, TestSet
from probseq_apps.methods.warm_start import copy_kernel_weights, warm_start_config
from probseq_apps.options import Options
from probseq_apps.report.classify import MethodResult, classify_report
from probseq_apps.settings.classify import ROTATIONS, ClassifySettings, EvaluationSettings
from probseq_apps.settings.methods import METHODS, Method, parse_row, trained_methods

Data: TypeAlias = ImageData | TextData | EmbeddedTextData
# Predictions of a run, after the training, and those with the Laplace approximation.
PREDICTIONS, LAPLACE_PREDICTIONS = "predictions.npz", "predictions-kflla.npz"
# Patterns of what goes when an experiment is overwritten.
RUNS = tuple(f"{name}/seed-*" for name in METHODS)
# Corruptions made by this program, and the published files of CIFAR-10-C and CIFAR-100-C.
MADE, PUBLISHED = "shift", "cifar-c"
# The same corrupted pixels for every method, seed and run.
_CORRUPTION_SEED = 0
_ROTATION_DEGREES = 90.0
_NOT_UNDER_SHIFT = ("classwise-ece", "e-aurc")
_AUGMENTATIONS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "none": lambda images, generator: images,
    "crop-flip": random_crop_flip,
    "three-augment": augment3,
}


class Loaded(NamedTuple):
    """The data set, and what trained models predict, by name."""

    data: Data
    sets: dict[str, TestSet]


class Classify(Experiment[Loaded]):
    """Methods of classification on one data set."""

    kind = command = "classify"
    parts = RUNS

    def __init__(self, settings: ClassifySettings) -> None:
        self.settings = settings
        self.jobs = method_jobs(settings)

    def load(self, options: Options) -> Loaded:
        """Read the data, and that out of distribution."""
        settings, reading = self.settings, self.settings.reading
        distributed.join(distributed.resolve_device(settings.training.device))
        for path in filter(None, map(own_path, settings.evaluation.ood)):
            list_all(path)  # refused before the training set is read
        texts = settings.model.max_length if settings.is_text else None
        data = load_data(
            settings.data,
            data_dir=options.data_dir,
            download=options.download,
            max_length=texts,
            image_size=reading.image_size,
            split=reading.split,
            text_column=reading.text_column,
            label_column=reading.label_column,
            tokenizer=reading.tokenizer,
            embeddings=None if reading.embeddings is None else Path(reading.embeddings),
        )
        return Loaded(data, make_test_sets(data, settings.evaluation, options))

    def check(self, data: Loaded) -> None:
        """Raise if the settings don't fit the data."""
        settings, (parts, _) = self.settings, data
        if len(parts.validation) == 0:
            if settings.training.select == "best":
                raise ValueError(
                    f"select='best' needs validation data, and {parts.name!r} is split without: "
                    "use select='last'"
                )
            for name in settings.method:
                if "ts" in parse_row(name).additions:
                    raise ValueError(
                        f"method {name!r} needs validation data, and {parts.name!r} is split "
                        "without"
                    )
        for name in trained_methods(settings.method):
            build(METHODS[name], settings, parts, seed=0)

    def describe(self, data: Loaded) -> str:
        """Return the sizes of the data, and what is compared."""
        parts = data.data
        return described(parts, f"examples in {parts.num_classes} classes", self.settings)

    def run(self, job: Job, data: Loaded, at: RunFolder) -> dict[str, Any]:
        """Train a method, from where it stopped, and store its predictions."""
        settings, parts, folder = self.settings, data.data, run_folder(at, job)
        method, seed = METHODS[job.row], job.seed
        weights = derive_seed(seed, "weights")
        model = build(method, settings, parts, seed=weights)
        config = settings.training.train_config(seed=seed)
        if method.warm_start is not None and (epochs := settings.warm_epochs(job.row)):
            kernel = Method("", method.warm_start)
            source = build(kernel, settings, parts, seed=weights)
            short = warm_start_config(
                settings.training, epochs, seed=derive_seed(seed, "warm start")
            )
            name = f"{job.row} warm start"
            self._fit(source, kernel, name, short, parts, _warm_folder(folder))
            copy_kernel_weights(source, model)
            config = replace(config, epochs=config.epochs - epochs)
        self._fit(model, method, job.row, config, parts, folder)
        if distributed.is_main():
            self._predict(model, method, job, data, folder)
        return {"seconds": trained_seconds(folder)}

    def report(self, data: Loaded, results: Results, at: RunFolder) -> str:
        """Evaluate the stored predictions and write the report."""
        settings, parts = self.settings, data.data
        measured: dict[str, MethodResult] = {}
        predictions: dict[str, list[dict[str, Predictions]]] = {}
        for name in settings.method:
            row = parse_row(name)
            file = LAPLACE_PREDICTIONS if "kflla" in row.additions else PREDICTIONS
            jobs = [Job(row.base, seed) for seed in settings.seeds]
            runs = [self._stored(job, file, data, at) for job in jobs]
            predictions[name], temperatures = apply_post_hoc(row, runs)
            measured[name] = MethodResult(
                row.title,
                [evaluate_sets(sets) for sets in predictions[name]],
                [results[job]["seconds"] for job in jobs],
                temperatures,
            )
        report = classify_report(
            measured,
            predictions,
            settings=settings.to_dict(),
            data=facts(parts) | {"classes": parts.num_classes, "notes": list(parts.notes)},
            recipe=at.recipe,
        )
        return report.write(at.path)

    def _stored(self, job: Job, file: str, data: Loaded, at: RunFolder) -> dict[str, Predictions]:
        """Return stored predictions, made anew if they were deleted."""
        path = run_folder(at, job) / file
        if not path.exists():
            self.run(job, data, at)
        return {name: Predictions(**fields) for name, fields in load_groups(path).items()}

    def _predictor(self, method: Method, data: Data) -> Predictor:
        return Predictor(
            method,
            preparation(data),
            class_predictions,
            self.settings.evaluation.num_samples,
            max_tokens(self.settings, data),
        )

    def _fit(
        self,
        model: nn.Module,
        method: Method,
        name: str,
        config: TrainConfig,
        data: Data,
        folder: Path,
    ) -> None:
        settings = self.settings
        measure = matthews_correlation if data.name == "cola" else accuracy
        validated = len(data.validation) > 0
        fit(
            model,
            tensors(data.train),
            config,
            folder,
            loss=partial(
                classification_loss,
                preparation(data),
                _AUGMENTATIONS[settings.training.augment],
                penalty_of(method, settings),
            ),
            score=partial(classification_score, self._predictor(method, data), measure)
            if validated
            else None,
            held_out=tensors(data.validation) if validated else None,
            label=name,
            metadata=identity(name, method, settings),
        )

    def _predict(
        self, model: nn.Module, method: Method, job: Job, loaded: Loaded, folder: Path
    ) -> None:
        """Fit what is fitted after the training, and predict all sets."""
        settings, (data, sets), seed = self.settings, loaded, job.seed
        device = distributed.resolve_device(settings.training.device)
        predictor = self._predictor(method, data)

        def batches(part: Part) -> Iterator[tuple[Tensor, Tensor]]:
            """Yield data as the model takes them, in order and not augmented."""
            size = settings.training.batch_size
            for inputs, labels in zip(*(t.split(size) for t in tensors(part)), strict=True):
                yield predictor.prepare(inputs.to(device)), labels.to(device)

        def store(trained: nn.Module, file: str) -> None:
            found = predictor.sets(trained, sets, device=device, seed=seed)
            save_groups(folder / file, {n: Predictions(*f)._asdict() for n, f in found.items()})

        if method.baseline == "sngp":
            fit_precision(model, (inputs for inputs, _ in batches(data.train)))
        store(model, PREDICTIONS)
        rows = [row for row in map(parse_row, settings.method) if row.base == job.row]
        if any("kflla" in row.additions for row in rows):
            # The curvature of a method that draws is a mean over its samples.
            draws = method.sampled and not method.test_dropout
            laplace = laplace_model(
                model,
                batches(data.train),
                validation=batches(data.validation) if len(data.validation) else None,
                num_samples=settings.evaluation.num_samples if draws else None,
                generator=torch.Generator(device).manual_seed(derive_seed(seed, "laplace")),
            )
            store(laplace, LAPLACE_PREDICTIONS)


# -- What `regress` has too -----------------------------------------------------------------------


def method_jobs(settings: ComparisonSettings) -> list[Job]:
    """Return the jobs of a comparison of methods, seed by seed."""
    return [Job(m, seed) for seed in settings.seeds for m in trained_methods(settings.method)]


def run_folder(at: RunFolder, job: Job) -> Path:
    """Return the folder of a run inside that of the experiment."""
    return at.path / job.row / f"seed-{job.seed}"


def _warm_folder(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-warm-start")


def trained_seconds(folder: Path) -> float:
    """Return the time that a run trained, its warm start included."""
    ends = (read_finished(path) for path in (folder, _warm_folder(folder)))
    return round(sum(end["seconds"] for end in ends if end is not None), 3)


def facts(data: Any) -> dict[str, Any]:
    """Return name and sizes of a data set, as `report.json` holds them."""
    sizes = {part: len(getattr(data, part)) for part in ("train", "validation", "test")}
    return {"name": data.name, **sizes}


def described(data: Any, what: str, settings: ComparisonSettings) -> str:
    """Return notes on the data, its sizes, and what is compared."""
    sizes = f"{len(data.train):,} training, {len(data.validation):,} validation, "
    lines = [f"note: {note}" for note in data.notes]
    compared = counted(settings.method, settings.seeds)
    return "\n".join([*lines, f"{data.name}: {sizes}{len(data.test):,} test {what}; {compared}"])


def identity(name: str, method: Method, settings: ComparisonSettings) -> dict[str, object]:
    """Return what defines a run beside its training, as JSON values."""
    values = settings.to_dict()
    kept = {key: values[key] for key in ("data", "reading", "model")}
    return {"method": name, **kept, "attention": method.config(settings).to_dict()}


def penalty_of(method: Method, settings: ComparisonSettings) -> Callable[[float], float] | None:
    """Return the weight of a method's penalty by progress; None without a penalty."""
    config: AttentionConfig = method.config(settings)
    return config.penalty_weight if config.penalised or method.baseline is not None else None


# -- Training -------------------------------------------------------------------------------------


def tensors(part: Part) -> tuple[Tensor, Tensor]:
    """Return raw inputs and targets of a part of a data set."""
    return part.inputs, part.targets


def preparation(data: Data) -> Callable[[Tensor], Tensor]:
    """Return what makes a raw batch what the model takes: normalised images, padded texts."""
    if isinstance(data, ImageData):
        return partial(normalize, mean=data.mean, std=data.std)
    return data.padded if isinstance(data, EmbeddedTextData) else trim_padding


def trim_padding(tokens: Tensor) -> Tensor:
    """Cut off the columns that are padding in every text; one column stays."""
    return tokens[:, : max(1, int((tokens != 0).sum(1).max()))]


def classification_loss(
    prepare: Callable[[Tensor], Tensor],
    augment: Callable[[Tensor, torch.Generator], Tensor],
    weight: Callable[[float], float] | None,
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
    if weight is None:
        return LossParts(nll, {"nll": nll})
    penalty = output.penalty.float()
    return LossParts(nll + weight(step.progress) * penalty, {"nll": nll, "penalty": penalty})


def classification_score(
    predictor: Predictor,
    measure: Callable[[Tensor, Tensor], Tensor],
    model: nn.Module,
    batches: Iterable[Batch],
) -> float:
    """Measure the mean prediction on the whole validation set."""
    found = [(predictor.batch(model, inputs)[0], labels) for inputs, labels in batches]
    log_probs, labels = (torch.cat(parts) for parts in zip(*found, strict=True))
    return float(measure(log_probs.exp(), labels))


# -- What is predicted and measured ---------------------------------------------------------------


def make_test_sets(
    data: Data, settings: EvaluationSettings, options: Options
) -> dict[str, TestSet]:
    """List everything to predict.

    Where the data folder has the published files of CIFAR-10-C or CIFAR-100-C, they take the place
    of the corruptions that the program makes; those of the same names, if only some are asked for.
    Data out of distribution are read at once, so that a missing file is noticed before anything is
    trained.

    Raises:
        ValueError: a set is missing or damaged, or the images cannot be corrupted.
    """
    sets: dict[str, TestSet] = {}
    if len(data.validation) > 0:
        sets["validation"] = partial(tensors, data.validation)
    sets["test"] = partial(tensors, data.test)
    if not isinstance(data, ImageData):
        return sets | {name: partial(tensors, part) for name, part in data.extra_tests.items()}
    if settings.shift:
        sets |= _shifted(data, settings, options.data_dir)
    for name in settings.ood:
        if name == ROTATIONS:
            sets[f"ood/{name}"] = partial(_changed, data.test, rotate, _ROTATION_DEGREES)
        else:
            outside = load_ood_images(
                name, data, data_dir=options.data_dir, download=options.download
            )
            sets[f"ood/{name}"] = partial(tensors, outside)
    return sets


def _changed(
    part: Part, change: Callable[..., Tensor], *given: Any, **named: Any
) -> tuple[Tensor, Tensor]:
    return change(part.inputs, *given, **named), part.targets


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

        def read(name: str, severity: int) -> tuple[Tensor, Tensor]:
            return tensors(read_cifar_c(data.name, data_dir, name, severity))

        return {f"{PUBLISHED}/{n}/{s}": partial(read, n, s) for n in chosen for s in severities}
    for name in settings.corruptions:
        # Images that cannot be corrupted are refused before anything is trained.
        corrupt(data.test.inputs[:1], name, severities[0], seed=_CORRUPTION_SEED)
    return {
        f"{MADE}/{n}/{s}": partial(_changed, data.test, corrupt, n, s, seed=_CORRUPTION_SEED)
        for n in settings.corruptions
        for s in severities
    }


def evaluate_sets(sets: Mapping[str, Predictions]) -> dict[str, float | None]:
    """Compute all metrics of one model or ensemble.

    Args:
        sets: predictions by name: `test` and further labelled sets, `shift/CORRUPTION/SEVERITY`
            (or `cifar-c/...`), `ood/NAME`, and `validation`, on which detectors are fitted.

    Returns:
        Values by name; None where a metric is not defined on these predictions, as the AUROC of
        failures is without failures. Under shift, `shift/severity-3/ece` is the mean over the
        corruptions, and `shift/noise-3/ece` that over a group of them.
    """
    values: dict[str, float | None] = {}
    probs = {name: found.log_probs.double().exp() for name, found in sets.items()}
    for name, found in sets.items():
        if name == "validation" or name.startswith("ood/"):
            continue
        shifted = name.startswith((f"{MADE}/", f"{PUBLISHED}/"))
        values |= {
            f"{name}/{metric}": value
            for metric, value in evaluate(probs[name], found.labels).items()
            if not (shifted and metric in _NOT_UNDER_SHIFT)
        }
    values |= _shift_means(values)
    known = "validation" in sets
    validation = (probs["validation"], sets["validation"].labels) if known else None
    test = (probs["test"], sets["test"].energy.double())
    for name, found in sets.items():
        if name.startswith("ood/"):
            told = evaluate_ood(test, (probs[name], found.energy.double()), validation)
            values |= {f"{name}/{metric}": value for metric, value in told.items()}
    return values


def _shift_means(values: Mapping[str, float | None]) -> dict[str, float | None]:
    group_of = {name: group for group, names in CORRUPTION_GROUPS.items() for name in names}
    collected: dict[str, list[float]] = {}
    for name, value in values.items():
        if not name.startswith((f"{MADE}/", f"{PUBLISHED}/")):
            continue
        kind, corruption, severity, metric = name.split("/")
        for part in ("severity", group_of.get(corruption, "other")):
            found = collected.setdefault(f"{kind}/{part}-{severity}/{metric}", [])
            # Of failures of a model without any, nothing is known; the others still have a mean.
            found += [] if value is None else [value]
    return {name: sum(found) / len(found) if found else None for name, found in collected.items()}
