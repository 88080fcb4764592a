"""`probseq generate diffusion` and `probseq generate hvae`: a model for each variant and seed.

The folder has `models/ARM-seedS` (runs of `fit`, with the trained model in `pretrained/`),
`classifier/`, `samples/`, `process/` and `results/`.
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from tqdm import tqdm

from probseq_apps.data.images import GenerationData, load_generation_data, to_unit
from probseq_apps.engine import distributed
from probseq_apps.engine.files import CONFIG, prepare_run_dir, read_finished, write_finished
from probseq_apps.engine.fit import fit
from probseq_apps.engine.schedule import derive_seed
from probseq_apps.engine.trainer import Batch, LossParts, Step, fork_random
from probseq_apps.experiment import Experiment, Job, Results
from probseq_apps.experiments.reference import (
    CLASSIFIER,
    SAMPLES,
    Process,
    Reference,
    Samples,
    check_features,
    collect_samples,
    to_bytes,
)
from probseq_apps.experiments.saved import config_values
from probseq_apps.experiments.tokens import (
    PRETRAINED,
    check_one_process,
    count_steps,
    describe_images,
    is_trained,
    numbered,
)
from probseq_apps.folder import RunFolder
from probseq_apps.options import Options
from probseq_apps.report.generate import Drawn, diffusion_report, hvae_report
from probseq_apps.settings.generate import DiffusionSampling
from probseq_apps.settings.models import (
    DIFFUSION_MODEL,
    GENERATE_DIFFUSION,
    GENERATE_HVAE,
    HVAE_MODEL,
    DiffusionSettings,
    HvaeArm,
    HvaeSettings,
    diffusion_arm,
    saved_diffusion,
    saved_hvae,
)
from pseudovideo.corruptions import pseudo_videos
from pseudovideo.diffusion.image import ImageDiffusion
from pseudovideo.diffusion.objective import DiffusionObjective
from pseudovideo.diffusion.published import load_improved_ddpm
from pseudovideo.diffusion.unet import build_unet
from pseudovideo.diffusion.video import VideoDiffusion
from pseudovideo.evaluation import frame_prediction, mean_bits_per_dim
from pseudovideo.hvae import HVAE, HeatHVAE, LearnedEncoderHVAE
from pseudovideo.pretrained import Pretrained, load_pretrained
from pseudovideo.spec import (
    HVAEConfig,
    ImageDiffusionConfig,
    UNetConfig,
    VideoDiffusionConfig,
    unet_values,
)

MODELS, PROCESS = "models", "process"
Watch = Callable[[int, Tensor], None]
# Samples of a film, and about how many snapshots it has; images at once; levels above are white.
_FILMED, _SNAPSHOTS, _BATCH, _THRESHOLD = 16, 24, 250, 127


@runtime_checkable
class Variant(Protocol):
    """One model of a comparison: a row with a seed."""

    kind: ClassVar[str]
    settings: Any
    name: str
    seed: int

    def config(self, image_size: int, channels: int) -> tuple[type[Pretrained], UNetConfig]:
        """Return class and settings of the model of such images."""
        ...

    def build(self, data: GenerationData) -> tuple[nn.Module, Pretrained]:
        """Return what is trained, and the new model in it; its weights depend on the seed alone."""
        ...

    def batch(self, data: GenerationData) -> Batch:
        """Return what is learned from."""
        ...

    def loss(self, model: Any, batch: Batch, step: Step) -> LossParts:
        """Return the loss of a batch."""
        ...

    def draw(
        self,
        model: Any,
        data: GenerationData | None,
        count: int,
        generator: torch.Generator,
        watch: Watch | None = None,
    ) -> Float[Tensor, "n t c h w"]:
        """Return samples, the image last."""
        ...

    def film(
        self, model: Any, data: GenerationData, num: int, generator: torch.Generator
    ) -> Process:
        """Return how the first of these samples come into being."""
        ...

    def measure(self, model: Any, data: GenerationData) -> dict[str, Any]:
        """Measure all but the samples; "generation" tells how they are drawn."""
        ...


class DiffusionVariant:
    """A diffusion model of images or of their pseudo videos."""

    kind: ClassVar[str] = DIFFUSION_MODEL

    def __init__(self, settings: DiffusionSettings) -> None:
        self.settings = settings
        self.arm, self.seed = diffusion_arm(settings.arms[0]), settings.seeds[0]
        self.name = self.arm.name
        self.videos, self.context = settings.videos_of(self.arm), settings.context_of(self.arm)

    def config(self, image_size: int, channels: int) -> tuple[type[Pretrained], UNetConfig]:
        """Return class and settings of the model of such images."""
        settings, frames = self.settings, self.settings.frames
        values: dict[str, Any] = unet_values(settings.unet, image_size, channels)
        values |= {**settings.process.to_dict(), "num_steps": settings.steps_of(self.arm)}
        if not self.arm.is_video:
            return ImageDiffusion, ImageDiffusionConfig(**values)
        values |= {"masks": frames.masks, "one_way": frames.one_way, "context": self.context}
        return VideoDiffusion, VideoDiffusionConfig(**values, num_frames=self.arm.frames)

    def sampling(self, sampling: DiffusionSampling) -> "DiffusionVariant":
        """Return the variant with another way of sampling."""
        return DiffusionVariant(replace(self.settings, sampling=sampling))

    def check(self, data: GenerationData) -> None:
        """Raise if sizes or weights don't fit the images."""
        _, config = self.config(data.image_size, data.channels)
        if self.settings.init_weights is not None:
            self._published(config)
        # Without memory for the weights, and without their initialisation, which takes seconds.
        with torch.device("meta"):
            build_unet(config, in_channels=config.channels, out_channels=2 * config.channels)
        pseudo_videos(to_unit(data.train[:1]), self.videos)

    def build(self, data: GenerationData) -> tuple[nn.Module, Pretrained]:
        """Return an objective, and the new model in it, with published weights if named."""
        kind, config = self.config(data.image_size, data.channels)
        if self.settings.init_weights is not None:
            model: Any = self._published(config)
        else:
            model = _seeded(kind, config, self.seed)
        return DiffusionObjective(model, importance=self.settings.training.importance), model

    def batch(self, data: GenerationData) -> Batch:
        """Return images and their numbers."""
        return numbered(data.train)

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> LossParts:
        """Return the hybrid loss of images and their numbers, each at a random diffusion step."""
        images, index = batch
        seed = derive_seed(self.seed, "videos")
        frames = pseudo_videos(
            to_unit(images), self.videos, seed=seed, epoch=step.epoch, index=index
        )
        return LossParts.of(model(frames, generator=step.generator))

    def draw(
        self,
        model: ImageDiffusion | VideoDiffusion,
        data: GenerationData | None,
        count: int,
        generator: torch.Generator,
        watch: Watch | None = None,
    ) -> Float[Tensor, "n t c h w"]:
        """Return samples, the image last."""
        drawn = model.sample(
            count,
            num_steps=self.settings.sampling.sampling_steps,
            eta=self.settings.sampling.noise,
            generator=generator,
            batch_size=count,
            watch=watch,
        )
        return drawn[:, None] if isinstance(model, ImageDiffusion) else drawn

    def film(
        self,
        model: ImageDiffusion | VideoDiffusion,
        data: GenerationData,
        num: int,
        generator: torch.Generator,
    ) -> Process:
        """Return what an image model takes images to be, or a video model's frames as they are."""
        steps = self.settings.sampling.sampling_steps
        diffusion = model.diffusion if steps is None else model.diffusion.respaced(steps)
        stages = len(model.stages) if isinstance(model, VideoDiffusion) else 1
        total = stages * diffusion.num_steps
        every = max(1, total // _SNAPSHOTS)
        frames: list[Tensor] = []
        done: list[int] = []

        def watch(left: int, state: Tensor) -> None:
            if left and (total - left) % every:
                return
            done.append(total - left)
            if isinstance(model, VideoDiffusion):
                shown = state.clone()
                for number, stage in enumerate(model.stages):
                    if total - left <= number * diffusion.num_steps:  # not begun: grey
                        shown[:, list(stage.latent)] = 0.0
                frames.append(shown)
            elif left == 0:
                frames.append(state[:, None])
            else:
                # What follows is step left - 1, and this is what it will head for.
                times = torch.full((len(state),), left - 1, device=state.device)
                output = model(state, diffusion.model_times(times))
                frames.append(diffusion.reverse(output, state, left - 1).x0[:, None])

        self.draw(model, data, min(num, _FILMED), generator, watch)
        return Process(to_bytes(torch.stack(frames, 1)), torch.tensor(done))

    def measure(
        self, model: ImageDiffusion | VideoDiffusion, data: GenerationData
    ) -> dict[str, Any]:
        """Measure the likelihood of images, or the errors of frames."""
        sampling, asked = self.settings.sampling, self.settings.evaluation
        steps = self.settings.steps_of(self.arm)
        taken = evaluations = sampling.sampling_steps or steps
        likelihood, errors = None, None
        if isinstance(model, VideoDiffusion):
            evaluations = model.evaluations_per_sample(sampling.sampling_steps)
            errors = self._frame_errors(model, data) if asked.frame_error_images else None
        elif asked.likelihood_images:
            images = data.test[: asked.likelihood_images]
            total = -(-len(images) // _BATCH) * steps
            likelihood = _watched(
                "likelihood",
                " steps",
                total,
                partial(
                    mean_bits_per_dim,
                    model,
                    images,
                    generator=_generator(model, derive_seed(self.seed, "likelihood")),
                    batch_size=_BATCH,
                ),
            )
        counted = min(asked.likelihood_images, len(data.test))
        return {
            "frames": self.arm.frames,
            "corruption": self.arm.corruption,
            "context": self.context or None,
            "diffusion_steps": steps,
            "bits_per_dim": likelihood,
            "num_likelihood": 0 if likelihood is None else counted,
            "frame_errors": errors,
            "generation": {
                "sampler": sampling.sampler,
                "sampling_steps": taken,
                "evaluations": evaluations,
            },
        }

    def _frame_errors(self, model: VideoDiffusion, data: GenerationData) -> dict[str, Any]:
        asked, images = (
            self.settings.evaluation,
            data.test[: self.settings.evaluation.frame_error_images],
        )
        predicted = self.arm.frames - self.context
        return _watched(
            "frame errors",
            " frames",
            predicted * len(images) * asked.frame_error_samples,
            partial(
                frame_prediction,
                model,
                self.videos,
                images,
                data.train,
                num_samples=asked.frame_error_samples,
                num_steps=self.settings.sampling.sampling_steps,
                eta=self.settings.sampling.noise,
                seed=derive_seed(self.seed, "test videos"),
                generator=_generator(model, derive_seed(self.seed, "frame errors")),
            ),
        )

    def _published(self, config: Any) -> ImageDiffusion:
        file = self.settings.init_weights or ""
        try:
            return load_improved_ddpm(file, config)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"init_weights must be a file of published weights, and {file} is none"
            ) from error
        except ValueError as error:
            raise ValueError(f"init_weights must hold weights of this UNet: {error}") from error


class HvaeVariant:
    """A hierarchical VAE whose encoder blurs, or is learned."""

    kind: ClassVar[str] = HVAE_MODEL

    def __init__(self, settings: HvaeSettings) -> None:
        self.settings = settings
        self.arm: HvaeArm = settings.arms[0]
        self.name, self.seed = str(self.arm), settings.seeds[0]

    def config(self, image_size: int, channels: int) -> tuple[type[HVAE], HVAEConfig]:
        """Return class and settings of the model of such images."""
        values: dict[str, Any] = unet_values(self.settings.unet, image_size, channels)
        values |= self.settings.levels_of(self.arm).to_dict()
        kind = HeatHVAE if self.name == "heat" else LearnedEncoderHVAE
        return kind, HVAEConfig(**values)

    def check(self, data: GenerationData) -> None:
        """Raise if sizes don't fit the images."""
        with torch.device("meta"):
            self.build(data)

    def build(self, data: GenerationData) -> tuple[nn.Module, Pretrained]:
        """Return a new model, twice."""
        model = _seeded(*self.config(data.image_size, data.channels), self.seed)
        return model, model

    def batch(self, data: GenerationData) -> Batch:
        """Return images."""
        return (data.train,)

    def loss(self, model: HVAE, batch: Batch, step: Step) -> LossParts:
        """Return the bound of a batch of images, estimated at a random level of each."""
        (images,) = batch
        return LossParts.of(model.training_losses(to_unit(images), generator=step.generator))

    def draw(
        self,
        model: HVAE,
        data: GenerationData | None,
        count: int,
        generator: torch.Generator,
        watch: Watch | None = None,
    ) -> Float[Tensor, "n t c h w"]:
        """Return samples; the training images are the prior of the heat encoder."""
        images = None if data is None else to_unit(data.train).to(generator.device)
        return model.sample(
            count, images=images, generator=generator, batch_size=count, watch=watch
        )[:, None]

    def film(
        self, model: HVAE, data: GenerationData, num: int, generator: torch.Generator
    ) -> Process:
        """Return the levels of the first of these samples."""
        frames: list[Tensor] = []
        self.draw(model, data, min(num, _FILMED), generator, lambda level, z: frames.append(z))
        return Process(to_bytes(torch.stack(frames, 1)[:, :, None]), torch.arange(len(frames)))

    def measure(self, model: HVAE, data: GenerationData) -> dict[str, Any]:
        """Measure the bound in nats per dimension; that of heat lacks its prior's constant."""
        levels, generator = (
            model.config.num_levels,
            _generator(model, derive_seed(self.seed, "bound")),
        )
        parts = data.test[: self.settings.evaluation.bound_images].split(_BATCH)
        totals = [model.bound(to_unit(p.to(generator.device)), generator).total for p in parts]
        found = torch.cat(totals).double()
        return {
            "levels": levels,
            "noise_std": model.config.noise_std,
            "bound": float(found.mean()),
            "num_bound": len(found),
            "generation": {
                "sampler": "ancestral",
                "sampling_steps": levels,
                "evaluations": levels,
            },
        }


class Models(Experiment[GenerationData]):
    """Train, draw, measure and report a model for each arm and seed."""

    parts = (SAMPLES, PROCESS, MODELS, CLASSIFIER)

    def __init__(self, settings: Any, variant: type[Any]) -> None:
        self.settings = settings
        self._variants: dict[Job, Any] = {
            Job(arm, seed): variant(settings.one_model(arm, seed))
            for seed in settings.seeds
            for arm in settings.arms
        }
        self.jobs = list(self._variants)
        self._reference: Reference | None = None

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return distributed.resolve_device(self.settings.machine.device)

    def load(self, options: Options) -> GenerationData:
        """Read the images; raise if the machine is not as the settings want it."""
        check_one_process(self.settings.machine.device)
        return load_model_images(self.settings, options)

    def check(self, data: GenerationData) -> None:
        """Raise if sizes or weights don't fit the images, or a file of weights is not there."""
        for job, variant in self._variants.items():
            if job.seed == self.settings.seeds[0]:
                variant.check(data)
        for name in ("likelihood_images", "frame_error_images"):
            asked = getattr(self.settings.evaluation, name, 0)
            if asked > len(data.test):
                print(f"{name}={asked:,}: all {len(data.test):,} test images count")
        check_features(self.settings.evaluation.features)

    def describe(self, data: GenerationData) -> str:
        """Return a line about data and jobs."""
        steps = count_steps(self.settings.training.steps)
        arms = ", ".join(self.settings.arms)
        return f"{describe_images(data)}; {arms}; {steps} each, on {self.device}"

    def run(self, job: Job, data: GenerationData, at: RunFolder) -> dict[str, Any]:
        """Train a model, draw from it, and return what was measured."""
        variant, folder = self._variants[job], at.path / MODELS / job.name
        reference = self._measure(data, at)
        train_model(variant, data, folder, recipe=at.recipe)
        self._draw_missing(job, data, at)
        model, finished = open_model(variant, folder, device=self.device)
        samples = Samples.load(at.path / SAMPLES / f"{job.name}.npz")
        found = variant.measure(model, data)
        drawn = {**reference.measure(samples.images), "seconds": samples.seconds}
        return {
            "arm": job.row,
            "seed": job.seed,
            "parameters": sum(p.numel() for p in model.parameters()),
            "steps": finished["steps"],
            "training_seconds": finished["seconds"],
            **found,
            "generation": {**drawn, **found["generation"]},
        }

    def facts(self, data: GenerationData, results: Results, at: RunFolder) -> dict[str, Any]:
        """Return what reports are made of; samples that were deleted are drawn anew."""
        real = at.once("reference", lambda: self._measure(data, at).real)
        for job in self.jobs:
            try:
                if self._draw_missing(job, data, at):
                    print(f"samples of {job.name} were not there and are drawn anew")
            except FileNotFoundError as error:
                raise FileNotFoundError(
                    f"{error}; delete {at.results_file(job.name)} and resume, so that all of this "
                    "arm is made anew"
                ) from error
        settings, seed = self.settings, self.settings.seeds[0]
        drawn = {
            arm: Drawn(
                *Samples.load(at.path / SAMPLES / f"{arm}-seed{seed}.npz")[:2],
                *Process.load(at.path / PROCESS / f"{arm}-seed{seed}.npz"),
            )
            for arm in settings.arms
        }
        logs = {
            arm: [at.path / MODELS / f"{arm}-seed{seed}" for seed in settings.seeds]
            for arm in settings.arms
        }
        return {
            "results": list(results.values()),
            "real": real,
            "settings": settings.to_dict(),
            "data": data,
            "recipe": at.recipe,
            "drawn": drawn,
            "logs": logs,
        }

    def _measure(self, data: GenerationData, at: RunFolder) -> Reference:
        if self._reference is None:
            features, machine = self.settings.evaluation.features, self.settings.machine
            self._reference = Reference.of(data, features, at, device=machine.device)
        return self._reference

    def _draw_missing(self, job: Job, data: GenerationData, at: RunFolder) -> bool:
        files = [at.path / part / f"{job.name}.npz" for part in (SAMPLES, PROCESS)]
        missing = not all(file.exists() for file in files)
        if missing:
            variant, num = self._variants[job], self.settings.evaluation.num_samples
            model, _ = open_model(variant, at.path / MODELS / job.name, device=self.device)
            seed = derive_seed(job.seed, "samples")
            draw_samples(variant, model, data, num, seed=seed, device=self.device).save(files[0])
            variant.film(model, data, num, _generator(model, seed)).save(files[1])
        return missing


class Diffusion(Models):
    """Diffusion models of images and of their pseudo videos."""

    kind, command = GENERATE_DIFFUSION, "generate diffusion"

    def __init__(self, settings: DiffusionSettings) -> None:
        super().__init__(settings, DiffusionVariant)

    def report(self, data: GenerationData, results: Results, at: RunFolder) -> str:
        """Write the report and return it as text."""
        videos = {v.name: (v.videos, v.context) for v in self._variants.values() if v.arm.is_video}
        return diffusion_report(**self.facts(data, results, at), videos=videos).write(at.path)


class Hvae(Models):
    """Hierarchical VAEs whose encoder blurs, or is learned."""

    kind, command = GENERATE_HVAE, "generate hvae"

    def __init__(self, settings: HvaeSettings) -> None:
        super().__init__(settings, HvaeVariant)

    def report(self, data: GenerationData, results: Results, at: RunFolder) -> str:
        """Write the report and return it as text."""
        return hvae_report(**self.facts(data, results, at)).write(at.path)


def load_model_images(
    settings: DiffusionSettings | HvaeSettings, options: Options
) -> GenerationData:
    """Return the images that a model learns from, black and white if so asked."""
    data = load_generation_data(
        settings.data,
        image_size=settings.reading.image_size,
        data_dir=options.data_dir,
        download=options.download,
    )
    if isinstance(settings, DiffusionSettings) or not settings.binarize:
        return data
    if data.channels != 1:
        raise ValueError(
            f"binarize is for grey images, and {data.name} has {data.channels} channels: "
            "turn it off"
        )
    parts = {
        name: (getattr(data, name) > _THRESHOLD).to(torch.uint8) * 255
        for name in ("train", "validation", "test")
    }
    note = f"{data.name}: pixels above {_THRESHOLD} white, all others black"
    return replace(data, **parts, notes=(*data.notes, note))


def train_model(variant: Variant, data: GenerationData, folder: Path, *, recipe: str) -> None:
    """Train a model, from where it stopped, and store it in `pretrained/`.

    Under bf16 the weights of convolutions lie with their channels last, where these are fastest.
    """
    settings = variant.settings
    identity = config_values(variant.kind, recipe, settings.to_dict())
    if not settings.training.steps:  # published weights as they are
        if read_finished(folder) is None:
            prepare_run_dir(folder, identity, resume=True)
            shutil.rmtree(folder / PRETRAINED, ignore_errors=True)
            variant.build(data)[1].save_pretrained(folder / PRETRAINED)
            write_finished(folder, {"steps": 0, "seconds": 0.0})
        return
    if is_trained(folder):
        return
    trained, model = variant.build(data)
    config = settings.training.train_config(settings.machine, seed=variant.seed)
    if config.precision == "bf16":
        # Typed for tensors alone, in torch's own words.
        trained.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    label = f"{variant.name}-seed{variant.seed}"
    fit(
        trained,
        variant.batch(data),
        config,
        folder,
        loss=variant.loss,
        label=label,
        metadata=identity,
    )
    model.save_pretrained(folder / PRETRAINED)


def variant_of(folder: Path) -> DiffusionVariant | HvaeVariant | None:
    """Return the variant whose model a folder holds; None where it holds none."""
    if (diffusion := saved_diffusion(folder)) is not None:
        return DiffusionVariant(diffusion[1])
    hvae = saved_hvae(folder)
    return None if hvae is None else HvaeVariant(hvae[1])


def open_model(
    variant: Variant, folder: Path, *, device: torch.device
) -> tuple[Any, Mapping[str, Any]]:
    """Read a trained model, and how its training ended.

    Raises:
        FileNotFoundError: its training isn't finished.
        ValueError: its files are damaged, or it is not the model that the folder's settings make.
    """
    finished = read_finished(folder)
    if finished is None:
        raise FileNotFoundError(
            f"model must be a trained one, and the training in {folder} is not finished: resume it"
        )
    found = load_pretrained(folder / PRETRAINED)
    size = variant.settings.reading.image_size or found.config.image_size
    kind, wanted = variant.config(size, found.config.channels)
    differing = {} if type(found.config) is not type(wanted) else wanted.differs_from(found.config)
    if type(found) is not kind or differing:
        name, (value, other) = next(
            iter(differing.items()), ("class", (kind.__name__, type(found).__name__))
        )
        raise ValueError(
            f"{folder / PRETRAINED} must hold the model that {folder / CONFIG} tells of, with "
            f"{name}={value}, and holds another one with {name}={other}: copy its own there, or "
            "train it anew"
        )
    return found.to(device), finished


def draw_samples(
    variant: Variant,
    model: Any,
    data: GenerationData | None,
    num: int,
    *,
    seed: int,
    device: torch.device,
) -> Samples:
    """Draw samples from a model on a device."""
    return collect_samples(partial(variant.draw, model, data), num, device, seed=seed)


def _seeded(kind: Any, config: UNetConfig, seed: int) -> Any:
    """Return a new model whose weights depend on the seed alone."""
    with fork_random(torch.device("cpu")):
        torch.manual_seed(derive_seed(seed, "weights"))
        return kind(config)


def _generator(model: nn.Module, seed: int) -> torch.Generator:
    return torch.Generator(next(model.parameters()).device).manual_seed(seed)


def _watched(name: str, unit: str, total: int, measure: Callable[..., Any]) -> Any:
    """Measure with a progress bar."""
    with tqdm(total=total, unit=unit, leave=False, disable=None) as bar:
        bar.set_description_str(name)
        return measure(progress=bar.update)
