"""What `generate diffusion` and `generate hvae` share: one model for each arm and seed.

The folder has `models/ARM-seedS` (runs of `fit`, with the trained model in `pretrained/`),
`classifier/`, `samples/`, `process/` and `results/`; an arm whose results are there is finished.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from torch import nn

from probseq_apps.data.generation import GenerationData
from probseq_apps.experiments.diffusion_arms import model_name
from probseq_apps.experiments.diffusion_groups import UNetSettings
from probseq_apps.experiments.folders import check_folder, default_folder
from probseq_apps.experiments.generate_evaluation import evaluate_generation
from probseq_apps.experiments.generate_files import (
    MODEL_PARTS,
    model_samples_file,
    process_file,
    read_result,
    reference_file,
    write_result,
)
from probseq_apps.experiments.generate_groups import FeatureSettings, MachineSettings
from probseq_apps.experiments.generate_ruler import Ruler, check_features, make_ruler
from probseq_apps.experiments.generate_sample import Samples
from probseq_apps.experiments.generate_stop import tell_how_to_resume
from probseq_apps.experiments.generate_tokenizer import PRETRAINED
from probseq_apps.experiments.settings import RunOptions
from probseq_apps.experiments.task_runs import make_parts, prepare_folder, results_file
from probseq_apps.training import distributed
from probseq_apps.training.config import TrainConfig
from probseq_apps.training.loop import fit
from probseq_apps.training.runs import CONFIG, read_finished, sole_use
from probseq_apps.training.task import Batch, Loss
from pseudovideo.diffusion.unet import UNetConfig, channel_multipliers_for
from pseudovideo.pretrained import Pretrained

Model = TypeVar("Model", bound=Pretrained)


class ModelJob(NamedTuple):
    """An arm of a comparison with a seed."""

    arm: str
    seed: int


class Trained(NamedTuple):
    """How a model's training ended.

    Attributes:
        steps: optimizer steps.
        seconds: that they took.
    """

    steps: int
    seconds: float


@runtime_checkable
class Sized(Protocol):
    """Square images of one size, or what is made for such."""

    @property
    def image_size(self) -> int:
        """Height and width in pixels."""
        ...

    @property
    def channels(self) -> int:
        """1 for grey images, 3 for colour."""
        ...


@runtime_checkable
class Comparison(Protocol):
    """Models of several arms: what differs between kinds of models."""

    @property
    def kind(self) -> str:
        """Of experiment, in `config.json`."""
        ...

    @property
    def step(self) -> str:
        """Its name on the command line, behind `probseq generate`."""
        ...

    @property
    def jobs(self) -> Sequence[ModelJob]:
        """All arms with all seeds."""
        ...

    @property
    def machine(self) -> MachineSettings:
        """Where it runs."""
        ...

    @property
    def features(self) -> FeatureSettings:
        """What distances are measured in."""
        ...

    @property
    def length(self) -> str:
        """How long each model is trained, in words."""
        ...

    def config(self, recipe: str) -> dict[str, object]:
        """What `config.json` holds."""
        ...

    def load(self, options: RunOptions) -> GenerationData:
        """The images."""
        ...

    def check(self, data: GenerationData) -> None:
        """Refuse what would fail after hours."""
        ...

    def train(self, job: ModelJob, data: GenerationData, folder: Path, recipe: str) -> None:
        """Train a model, from where it stopped, and store it."""
        ...

    def draw(self, job: ModelJob, data: GenerationData, folder: Path) -> None:
        """Draw samples from a trained model, and how a few of them come into being."""
        ...

    def measure(self, job: ModelJob, data: GenerationData, folder: Path) -> dict[str, Any]:
        """All results but for those of the samples themselves."""
        ...

    def report(
        self,
        folder: Path,
        results: Sequence[Mapping[str, Any]],
        real: Mapping[str, Any],
        data: GenerationData,
        recipe: str,
    ) -> str:
        """Write the report; gives it as text."""
        ...


def run_models(comparison: Comparison, data_name: str, options: RunOptions, recipe: str) -> Path:
    """Train, draw, measure and report; all that can be refused is refused before it writes.

    Args:
        comparison: what to compare.
        data_name: of the images, for the folder's name.
        options: files and running.
        recipe: name of the recipe that the settings came from.

    Returns:
        The experiment's folder.

    Raises:
        ValueError: data, settings and folder don't go together.
        OSError: a file cannot be read or written.
        NonFiniteLossError: a loss became NaN or infinite.
        SystemExit: SIGTERM or SIGINT came, and the state is saved.
    """
    torch.set_num_threads(options.threads)
    if options.run_dir is not None:
        check_folder(options.run_dir, options, experiment=comparison.kind)
    distributed.resolve_device(comparison.machine.device)
    if distributed.world_size() > 1:
        raise ValueError("generate runs in one process, and torchrun started several")
    data = comparison.load(options)
    comparison.check(data)
    check_features(comparison.features)
    folder = options.run_dir or default_folder(comparison.kind, data_name)
    config = comparison.config(recipe)
    prepare_folder(folder, config, options, experiment=comparison.kind, parts=MODEL_PARTS)
    with sole_use(folder):
        make_parts(folder, MODEL_PARTS)
        _announce(comparison, data, folder)
        with tell_how_to_resume(comparison.step, folder, options):
            _run_jobs(comparison, data, folder, recipe)
            _restore(comparison, data, folder)
            results = [read_result(results_file(folder, *job)) for job in comparison.jobs]
            real = read_result(reference_file(folder))
            print(comparison.report(folder, results, real, data, recipe))
    return folder


def _run_jobs(comparison: Comparison, data: GenerationData, folder: Path, recipe: str) -> None:
    """All arms of all seeds that have no results yet."""
    jobs = comparison.jobs
    files = [results_file(folder, *job) for job in jobs]
    if all(file.exists() for file in [*files, reference_file(folder)]):
        print("all arms were finished before", flush=True)
        return
    device = comparison.machine.device
    ruler = make_ruler(data, comparison.features, folder, device=device)
    for number, (job, file) in enumerate(zip(jobs, files, strict=True), 1):
        state = ": finished before" if file.exists() else ""
        print(f"[{number}/{len(jobs)}] {model_name(*job)}{state}", flush=True)
        if not file.exists():
            comparison.train(job, data, folder, recipe)
            _draw_missing(comparison, job, data, folder)
            found = comparison.measure(job, data, folder)
            drawn = _measured(folder, job, ruler)
            write_result(file, {**found, "generation": {**drawn, **found["generation"]}})


def _measured(folder: Path, job: ModelJob, ruler: Ruler) -> dict[str, Any]:
    samples = Samples.load(model_samples_file(folder, *job))
    found = evaluate_generation(samples.images[:, None], ruler.reference, ruler.extractor)
    return {**found, "seconds": samples.seconds}


def _restore(comparison: Comparison, data: GenerationData, folder: Path) -> None:
    """Draw anew what the report needs and was deleted; it has the same seed.

    Raises:
        FileNotFoundError: the model is gone, too.
    """
    for job in comparison.jobs:
        try:
            if _draw_missing(comparison, job, data, folder):
                print(f"samples of {model_name(*job)} were not there and are drawn anew")
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{error}; delete {results_file(folder, *job)} and resume, so that all of this "
                "arm is made anew"
            ) from error


def _draw_missing(
    comparison: Comparison, job: ModelJob, data: GenerationData, folder: Path
) -> bool:
    files = (model_samples_file(folder, *job), process_file(folder, *job))
    missing = not all(file.exists() for file in files)
    if missing:
        comparison.draw(job, data, folder)
    return missing


def fit_model(
    folder: Path,
    make: Callable[[], tuple[nn.Module, Pretrained]],
    train: Batch,
    config: TrainConfig,
    *,
    loss: Loss,
    identity: Mapping[str, object],
    label: str,
) -> None:
    """Train a model, from where it stopped, and store it in `pretrained/`.

    Under bf16 the weights of convolutions lie with their channels last, where these are fastest.

    Args:
        folder: of its run.
        make: gives what is trained, and the new model in it.
        train: what is learned from.
        config: of the training.
        loss: what is minimised.
        identity: what defines the run beside `config`.
        label: what the progress bar calls the run.

    Raises:
        NonFiniteLossError: the loss became NaN or infinite.
        SystemExit: SIGTERM or SIGINT came, and the state is saved.
    """
    if read_finished(folder) is not None and (folder / PRETRAINED / "config.json").is_file():
        return
    trained, model = make()
    if config.precision == "bf16":
        channels_last(trained)
    fit(trained, train, config, folder, loss=loss, label=label, metadata=identity)
    model.save_pretrained(folder / PRETRAINED)


def open_model(
    folder: Path,
    load: Callable[[Path], Model],
    described: Callable[[UNetConfig], tuple[type[Pretrained], UNetConfig]],
    *,
    image_size: int | None,
    device: torch.device,
) -> tuple[Model, Trained]:
    """Read a trained model.

    Args:
        folder: in `models/` of an experiment.
        load: reads what `pretrained/` holds.
        described: class and sizes that the settings of the folder make of images like the model's.
        image_size: side that the settings bring images to; None for one that the data decide.
        device: where the model is wanted.

    Raises:
        FileNotFoundError: its training isn't finished.
        ValueError: its files are damaged, or `pretrained/` is of another model.
    """
    finished = read_finished(folder)
    if finished is None:
        raise FileNotFoundError(
            f"model must be a trained one, and the training in {folder} is not finished: resume it"
        )
    model = load(folder / PRETRAINED)
    kind, config = described(model.config)
    wanted: dict[str, Any] = {"class": kind.__name__, **asdict(config)}
    _check_described(folder, model, wanted | ({"image_size": image_size} if image_size else {}))
    return model.to(device), Trained(finished["steps"], finished["seconds"])


def _check_described(folder: Path, model: Pretrained, wanted: Mapping[str, Any]) -> None:
    """Refuse a model that belongs into another folder; seeds leave no trace in it.

    Raises:
        ValueError: the first difference.
    """
    found: dict[str, Any] = {"class": type(model).__name__, **asdict(model.config)}
    # The class comes first: models of others may lack the settings that follow.
    for name, value in wanted.items():
        if found[name] != value:
            raise ValueError(
                f"{folder / PRETRAINED} must hold the model that {folder / CONFIG} tells of, with "
                f"{name}={value}, and holds another one with {name}={found[name]}: copy its own "
                "there, or train it anew"
            )


def told_steps(steps: int) -> str:
    """How long a training is, in words."""
    return f"{steps:,} step{'' if steps == 1 else 's'}"


def channels_last(module: nn.Module) -> None:
    """Lay the weights of 2-D convolutions with their channels last."""
    # Typed for tensors alone, in torch's own words.
    module.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


def unet_config(settings: UNetSettings, images: Sized) -> UNetConfig:
    """Sizes of a UNet for images.

    Args:
        settings: all but the images' sizes.
        images: a data set, or the sizes of a model of such images.

    Raises:
        ValueError: the UNet cannot have the images' size, or its settings don't go together.
    """
    sizes = {"image_size": images.image_size, "channels": images.channels}
    values: dict[str, Any] = {**asdict(settings), **sizes}
    if settings.channel_multipliers is None:
        values["channel_multipliers"] = channel_multipliers_for(images.image_size)
    return UNetConfig(**values)


def _announce(comparison: Comparison, data: GenerationData, folder: Path) -> None:
    device = distributed.resolve_device(comparison.machine.device)
    arms = ", ".join(dict.fromkeys(job.arm for job in comparison.jobs))
    print(
        f"{data.name}: {len(data.train):,} training and {len(data.test):,} test images of "
        f"{data.channels}x{data.image_size}x{data.image_size}; {arms}; {comparison.length} each, "
        f"on {device} -> {folder}",
        flush=True,
    )
