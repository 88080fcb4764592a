"""One run: train a method with one seed, predict all test sets, and keep the predictions."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from probseq.metrics import accuracy, matthews_correlation
from probseq_apps.baselines.laplace import laplace_model
from probseq_apps.baselines.sngp import fit_precision
from probseq_apps.data.images import ImageData
from probseq_apps.data.parts import Part
from probseq_apps.data.texts import EmbeddedTextData
from probseq_apps.data.transforms import augment3, normalize, random_crop_flip
from probseq_apps.engine import distributed
from probseq_apps.engine.config import TrainConfig
from probseq_apps.engine.files import read_finished
from probseq_apps.engine.fit import fit
from probseq_apps.engine.schedule import derive_seed
from probseq_apps.engine.trainer import Batch, LossParts, Step
from probseq_apps.experiments.method_settings import warm_start_epochs
from probseq_apps.experiments.methods import (
    BASE_METHODS,
    Method,
    MethodSpec,
    laplace_is_wanted,
)
from probseq_apps.experiments.models import Data, build_model, max_tokens
from probseq_apps.experiments.objectives import penalty_weight
from probseq_apps.experiments.prediction import Predictions, Predictor, save_predictions
from probseq_apps.experiments.settings import ClassifySettings
from probseq_apps.experiments.test_sets import TestSet, tensors
from probseq_apps.experiments.warm_start import copy_kernel_weights, warm_start_config

PREDICTIONS = "predictions.npz"
LAPLACE_PREDICTIONS = "predictions-kflla.npz"
Augment = Callable[[Tensor, torch.Generator], Tensor]
# Gives a raw batch (bytes of images, padded tokens) the form that the model takes.
Prepare = Callable[[Tensor], Tensor]
AUGMENTATIONS: dict[str, Augment | None] = {
    "none": None,
    "crop-flip": random_crop_flip,
    "three-augment": augment3,
}


class Experiment(NamedTuple):
    """What all runs share.

    Attributes:
        settings: all settings.
        data: the data set.
        test_sets: what to predict.
        folder: the experiment's folder.
        progress: show progress bars.
    """

    settings: ClassifySettings
    data: Data
    test_sets: Mapping[str, TestSet]
    folder: Path
    progress: bool


def run_folder(folder: Path, method: MethodSpec, seed: int) -> Path:
    """Folder of one run inside that of the experiment."""
    return folder / method.name / f"seed-{seed}"


def warm_start_folder(folder: Path, method: MethodSpec, seed: int) -> Path:
    """Folder of the kernel model that an SGPA run starts from."""
    return folder / method.name / f"seed-{seed}-warm-start"


def train_seconds(*folders: Path) -> float:
    """Return the time spent training in the run folders that hold a finished run."""
    ends = (read_finished(folder) for folder in folders)
    return round(sum(end["seconds"] for end in ends if end is not None), 3)


def is_finished(experiment: Experiment, method: MethodSpec, seed: int) -> bool:
    """Whether a run is trained and all predictions that the rows need are stored."""
    files = [PREDICTIONS]
    if laplace_is_wanted(experiment.settings.method, method):
        files.append(LAPLACE_PREDICTIONS)
    folder = run_folder(experiment.folder, method, seed)
    return all((folder / name).exists() for name in files)


def stored_predictions(folder: Path, method: Method, seed: int) -> Path:
    """File of the predictions that a row starts from."""
    name = LAPLACE_PREDICTIONS if method.laplace else PREDICTIONS
    return run_folder(folder, method.base, seed) / name


def train_and_predict(experiment: Experiment, method: MethodSpec, seed: int) -> None:
    """Do one run, from where it stopped; under torchrun the main rank predicts.

    Raises:
        ValueError: as `fit`.
        NonFiniteLossError: the loss became NaN or infinite.
        SystemExit: SIGTERM or SIGINT came, and the state is saved.
    """
    settings = experiment.settings
    predictor = make_predictor(method, settings, experiment.data)
    model = build_model(method, settings, experiment.data, seed=derive_seed(seed, "weights"))
    config = settings.training.train_config(seed=seed)
    warm = warm_start_epochs(method, settings.sgpa, settings.cgpt)
    if warm > 0:
        copy_kernel_weights(_warm_start(experiment, method, seed, warm), model)
        config = TrainConfig.from_dict({**config.to_dict(), "epochs": config.epochs - warm})
    _fit(
        experiment,
        method,
        model,
        predictor,
        config,
        run_folder(experiment.folder, method, seed),
        method.name,
    )
    if distributed.is_main():
        _finish(experiment, method, model, predictor, seed)


def make_predictor(method: MethodSpec, settings: ClassifySettings, data: Data) -> Predictor:
    """The predictor of a method on a data set."""
    return Predictor(
        method,
        prepare=preparation(data),
        num_samples=settings.evaluation.num_samples,
        tokens=max_tokens(settings.model, data),
    )


def preparation(data: Data) -> Prepare:
    """Give a raw batch the form that the model takes: normalised images, padded texts."""
    if isinstance(data, ImageData):
        return partial(normalize, mean=data.mean, std=data.std)
    return data.padded if isinstance(data, EmbeddedTextData) else trim_padding


def trim_padding(tokens: Tensor) -> Tensor:
    """Cut off the columns that are padding in every text; one column stays."""
    longest = int((tokens != 0).sum(1).max())
    return tokens[:, : max(1, longest)]


def _warm_start(experiment: Experiment, method: MethodSpec, seed: int, epochs: int) -> nn.Module:
    kernel = BASE_METHODS["kernel"]
    if method.attention != "sgpa":  # the kernel of CGPT and SCGPT is the RBF, for texts too
        kernel = replace(BASE_METHODS["kernel-asym"], kernel="rbf")
    settings, data = experiment.settings, experiment.data
    model = build_model(kernel, settings, data, seed=derive_seed(seed, "weights"))
    _fit(
        experiment,
        kernel,
        model,
        make_predictor(kernel, settings, data),
        warm_start_config(settings.training, epochs, seed=derive_seed(seed, "warm start")),
        warm_start_folder(experiment.folder, method, seed),
        f"{method.name} warm start",
    )
    return model


def _fit(
    experiment: Experiment,
    method: MethodSpec,
    model: nn.Module,
    predictor: Predictor,
    config: TrainConfig,
    folder: Path,
    label: str,
) -> None:
    settings, data = experiment.settings, experiment.data
    augment = AUGMENTATIONS[settings.training.augment]
    weight = partial(penalty_weight, method, settings) if method.has_penalty else None
    measure = matthews_correlation if data.name == "cola" else accuracy
    validated = len(data.validation) > 0
    fit(
        model,
        tensors(data.train),
        config,
        folder,
        loss=partial(classification_loss, preparation(data), augment, weight),
        score=partial(classification_score, predictor, measure) if validated else None,
        held_out=tensors(data.validation) if validated else None,
        progress=experiment.progress,
        label=label,
        metadata=_identity(method, settings),
    )


def classification_loss(
    prepare: Prepare,
    augment: Augment | None,
    weight: Callable[[float], float] | None,
    model: nn.Module,
    batch: Batch,
    step: Step,
) -> LossParts:
    """Return the cross-entropy plus the weighted penalty of methods that have one.

    For most methods that is the negative ELBO (thesis Eq. 3.18), in nats an example.
    """
    inputs, labels = batch
    if augment is not None:
        inputs = augment(inputs, step.generator)
    output = model(prepare(inputs), generator=step.generator)
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
    found = [(predictor.batch(model, inputs).log_probs, labels) for inputs, labels in batches]
    log_probs, labels = (torch.cat(parts) for parts in zip(*found, strict=True))
    return float(measure(log_probs.exp(), labels))


def _identity(method: MethodSpec, settings: ClassifySettings) -> dict[str, object]:
    """What defines a run beside the training settings."""
    values = settings.to_dict()
    keys = ("data", "reading", "model", "sgpa", "cgpt", "kepsvgp")
    return {"method": method.name, **{key: values[key] for key in keys}}


def _finish(
    experiment: Experiment, method: MethodSpec, model: nn.Module, predictor: Predictor, seed: int
) -> None:
    """Fit what is fitted after the training, and predict all test sets."""
    settings = experiment.settings
    device = distributed.resolve_device(settings.training.device)
    train, validation = experiment.data.train, experiment.data.validation
    if method.baseline == "sngp":
        fit_precision(model, (inputs for inputs, _ in _batches(experiment, train, device)))
    folder = run_folder(experiment.folder, method, seed)
    _predict(experiment, model, predictor, seed, folder / PREDICTIONS)
    if laplace_is_wanted(settings.method, method):
        # The curvature of a method that draws is a mean over its samples.
        draws = method.sampled and not method.test_dropout
        laplace = laplace_model(
            model,
            _batches(experiment, train, device),
            validation=_batches(experiment, validation, device) if len(validation) else None,
            num_samples=settings.evaluation.num_samples if draws else None,
            generator=torch.Generator(device).manual_seed(derive_seed(seed, "laplace")),
        )
        _predict(experiment, laplace, predictor, seed, folder / LAPLACE_PREDICTIONS)


def _batches(
    experiment: Experiment, split: Part, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Data as the model takes them, in order and not augmented."""
    prepare = preparation(experiment.data)
    inputs, labels = tensors(split)
    size = experiment.settings.training.batch_size
    for chunk, targets in zip(inputs.split(size), labels.split(size), strict=True):
        yield prepare(chunk.to(device)), targets.to(device)


def _predict(
    experiment: Experiment, model: nn.Module, predictor: Predictor, seed: int, file: Path
) -> None:
    device = distributed.resolve_device(experiment.settings.training.device)
    found: dict[str, Predictions] = {}
    # A bar that is wiped at its end has no place in a file: None hides it where no terminal is.
    hidden = None if experiment.progress else True
    with tqdm(total=None, unit=" inputs", leave=False, disable=hidden) as bar:
        for name, make in experiment.test_sets.items():
            bar.set_description_str(f"predicting {name}")
            inputs, labels = make()
            found[name] = predictor.predict(
                model,
                inputs,
                labels,
                device=device,
                seed=derive_seed(seed, f"predict {name}"),
                progress=bar,
            )
    save_predictions(file, found)
