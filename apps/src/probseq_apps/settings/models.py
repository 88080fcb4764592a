"""Settings of `probseq generate diffusion`, `hvae`, `sample` and `evaluate`."""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, get_args

from probseq.settings import Bound, Count, Index, NotNegative, Positive, Rate, Settings
from probseq_apps.data.names import check_generation_name, unknown_name_message
from probseq_apps.engine.config import Schedule
from probseq_apps.settings.common import (
    Flat,
    Pick,
    Recipes,
    check_unique,
    saved_settings,
    unlike_defaults,
)
from probseq_apps.settings.generate import (
    GENERATE,
    GENERATE_RECIPES,
    Decay,
    Evaluation,
    Features,
    GenerateSettings,
    Machine,
    Reading,
    Sampling,
    Training,
    saved_prior,
    saved_tokenizer,
)
from pseudovideo.spec import (
    AtLeastTwo,
    CorruptionKind,
    CorruptionSpec,
    DiffusionSpec,
    HVAESpec,
    PseudoVideoConfig,
    UNetSpec,
    VideoSpec,
)

GENERATE_DIFFUSION, GENERATE_HVAE = "generate-diffusion", "generate-hvae"
# Of the folder of one model.
DIFFUSION_MODEL, HVAE_MODEL = "generate-diffusion-model", "generate-hvae-model"
# What stands behind "T-frame-" and makes the frames before the image.
CORRUPTION_OF: dict[str, CorruptionKind] = {
    "first-order": "first-order-noise",
    "high-order": "high-order-noise",
    "matched": "matched-noise",
    "blur": "high-order-blur",
}
_NAME = re.compile(r"([1-9]\d*)-frame(?:-(.+))?")
# Lengths that the thesis has, for the list of names.
_LENGTHS = (4, 8)
HvaeArm = Literal["heat", "learned"]
HVAE_ARMS: tuple[HvaeArm, ...] = get_args(HvaeArm)


class DiffusionArm(NamedTuple):
    """An image model, or a model of pseudo videos.

    Attributes:
        name: in tables and folders.
        frames: T; 1 for the image alone.
        corruption: what makes the frames before the image; None for one frame.
        diffusion_steps: of an arm that has its own number; None for that of all.
    """

    name: str
    frames: int
    corruption: CorruptionKind | None
    diffusion_steps: int | None

    @property
    def is_video(self) -> bool:
        """Whether it has frames before the image."""
        return self.frames > 1


def diffusion_arm(name: str) -> DiffusionArm:
    """Return what an arm's name means.

    - ``1-frame``: the image model; ``1-frame-4000`` with 4,000 diffusion steps.
    - ``T-frame-first-order``, ``T-frame-high-order``, ``T-frame-matched`` (first-order noise at the
      levels of the high-order one), ``T-frame-blur`` (high-order blur), for any even T.
    """
    match = _NAME.fullmatch(name)
    if match is not None:
        frames, kind = int(match[1]), match[2]
        if frames == 1 and (kind is None or kind.isdecimal()):
            steps = None if kind is None else int(kind)
            if steps is not None and steps < 2:
                raise ValueError(f"arms must have at least 2 diffusion steps, got {name!r}")
            return DiffusionArm(name, 1, None, steps)
        if frames > 1 and kind in CORRUPTION_OF:
            if frames % 2:
                raise ValueError(
                    f"arms must have 1 frame or an even number, since the context is half of "
                    f"them, got {name!r}"
                )
            return DiffusionArm(name, frames, CORRUPTION_OF[kind], None)
    own = () if match is None or match[1] == "1" else (int(match[1]),)
    lengths = tuple(sorted({*_LENGTHS, *own}))
    known = ("1-frame", "1-frame-4000", *(f"{t}-frame-{k}" for t in lengths for k in CORRUPTION_OF))
    raise ValueError(unknown_name_message("arm", name, known))


class ModelTraining(Training):
    """Training: Adam, the same number of steps for all variants."""

    steps: Index = 500_000
    """Optimizer steps of each model; of diffusion 0 with --init-weights measures these as they
    are."""
    batch_size: Count = 32
    """Images or videos per step."""
    decay: Schedule = "constant"
    """Shape of the step size's way to its last: constant (it stays), linear or cosine."""
    warmup: Rate = 0.0
    """Share of the steps in which the step size rises from zero."""
    weight_decay: NotNegative = 0.0
    """Decoupled weight decay."""
    grad_clip: Positive | None = None
    """Largest norm of the gradient; None leaves it alone."""
    ema_decay: Decay | None = 0.9999
    """Decay of the moving average of the weights, which is what is stored; it is smaller in the
    first steps. None for the weights themselves."""


class DiffusionSampling(Settings):
    """Sampling of diffusion models."""

    sampling_steps: AtLeastTwo | None = None
    """Diffusion steps that are taken, evenly spread; None: all."""
    sampler: Literal["ancestral", "ddim"] = "ancestral"
    """ancestral (each step draws noise as in training), or ddim (few steps, less or no noise)."""
    eta: Annotated[float, Bound("in [0, 1]", lambda value: 0 <= value <= 1)] = 0.0
    """ddim: noise of its steps, from 0 for none to 1 for that of ancestral ones."""

    def check(self) -> None:
        """Refuse noise of a sampler that has its own."""
        if self.eta and self.sampler != "ddim":
            raise ValueError(f"eta is for sampler=ddim, got eta={self.eta} and {self.sampler}")

    @property
    def noise(self) -> float | None:
        """What the models' samplers take as eta; None for ancestral."""
        return self.eta if self.sampler == "ddim" else None

    def check_steps(self, diffusion_steps: int) -> None:
        """Raise if more steps are asked for than there are."""
        if self.sampling_steps is not None and self.sampling_steps > diffusion_steps:
            raise ValueError(
                f"sampling_steps must be at most the {diffusion_steps} diffusion steps of each "
                f"arm, got {self.sampling_steps}"
            )


class Frames(VideoSpec, CorruptionSpec):
    """Pseudo videos."""


class DiffusionTraining(ModelTraining):
    """Training: Adam, the same number of steps for all variants."""

    importance: bool = False
    """Draw diffusion steps by their past losses, instead of all alike."""


class DiffusionEvaluation(Evaluation):
    """Evaluation."""

    likelihood_images: Index = 0
    """Test images whose likelihood 1-frame arms bound, in bits per dimension; 0 for none. Each
    takes all diffusion steps."""
    frame_error_images: Index = 256
    """Test videos whose frames video arms predict from the true frames before; 0 for none."""
    frame_error_samples: AtLeastTwo = 4
    """Draws of each of these frames."""


class HvaeEvaluation(Evaluation):
    """Evaluation."""

    bound_images: Count = 10_000
    """Test images whose likelihood is bounded, fewer where there are fewer."""


class HvaeLevels(HVAESpec):
    """Latent frames."""

    learned_noise_std: Positive = 0.3
    """The learned encoder's --noise-std. With 0.02 it copies the image, and what is drawn is noise:
    the prior then asks for frames that the decoder has never seen."""


class _Models(Settings):
    """What `diffusion` and `hvae` share."""

    data: str = "digits"
    """digits, mnist, cifar10, celeba, or folder:PATH (images of one size, in it or in folders in
    it)."""
    seeds: tuple[Index, ...] = (0,)
    """Each model is trained once per seed."""
    reading: Flat[Reading] = Reading()
    unet: UNetSpec = UNetSpec()
    machine: Flat[Machine] = Machine()

    def check(self) -> None:
        """Refuse unknown data, and repeated seeds."""
        check_generation_name(self.data)
        check_unique("seeds", self.seeds)


class DiffusionSettings(_Models):
    """What is compared, and on what."""

    arms: tuple[str, ...] = ("1-frame", "4-frame-first-order", "4-frame-high-order")
    """Models to compare: 1-frame (improved DDPM), 1-frame-4000 (with 4,000 diffusion steps),
    T-frame-first-order, T-frame-high-order, T-frame-matched (first-order noise at the levels of the
    high-order one), T-frame-blur (high-order blur), for any even T."""
    init_weights: str | None = None
    """File of published improved-DDPM weights (.pt) that 1-frame arms start from; the UNet must be
    theirs: for CIFAR-10 --unet.num-res-blocks 3 --unet.dropout 0.3 --process.schedule cosine, arm
    1-frame-4000."""
    process: DiffusionSpec = DiffusionSpec()
    frames: Flat[Frames] = Frames()
    training: Flat[DiffusionTraining] = DiffusionTraining()
    sampling: Flat[DiffusionSampling] = DiffusionSampling()
    evaluation: Flat[DiffusionEvaluation] = DiffusionEvaluation()

    def check(self) -> None:
        """Refuse unknown names and settings that don't go together."""
        super().check()
        check_unique("arms", self.arms)
        for arm in map(diffusion_arm, self.arms):
            self.sampling.check_steps(self.steps_of(arm))
            if arm.is_video and self.context_of(arm) >= arm.frames:
                raise ValueError(
                    f"context must be less than the {arm.frames} frames of {arm.name}, got "
                    f"{self.context_of(arm)}: no frame would be generated from others"
                )
            if self.init_weights is not None and arm.is_video:
                raise ValueError(
                    f"init_weights are those of an image model, and {arm.name} is one of videos: "
                    "name 1-frame arms only"
                )
        if not self.training.steps and self.init_weights is None:
            raise ValueError("steps must be at least 1 without init_weights, got 0")
        if self.evaluation.likelihood_images and all(diffusion_arm(a).is_video for a in self.arms):
            raise ValueError(
                "likelihood_images is for 1-frame arms, and none is among arms="
                f"{', '.join(self.arms)}: add one, or set it to 0"
            )

    def steps_of(self, arm: DiffusionArm) -> int:
        """Return the arm's own number of diffusion steps, or that of all."""
        return arm.diffusion_steps or self.process.num_steps

    def context_of(self, arm: DiffusionArm) -> int:
        """Return the frames C that a frame is generated from; 0 for one frame."""
        return arm.frames // 2 if arm.frames == 1 else self.frames.context or arm.frames // 2

    def videos_of(self, arm: DiffusionArm) -> PseudoVideoConfig:
        """Return the pseudo videos of an arm."""
        values = {name: getattr(self.frames, name) for name in CorruptionSpec().to_dict()}
        kind = arm.corruption or "repeat"
        return PseudoVideoConfig(**values, kind=kind, num_frames=arm.frames)

    def one_model(self, arm: str, seed: int) -> "DiffusionSettings":
        """Return the settings of one model."""
        asked = self.evaluation
        if diffusion_arm(arm).is_video:
            asked = replace(asked, likelihood_images=0)
        return replace(self, arms=(arm,), seeds=(seed,), evaluation=asked)


class HvaeSettings(_Models):
    """What is compared, and on what."""

    binarize: bool = True
    """Make pixels above 127 white, all others black; for grey images."""
    arms: tuple[HvaeArm, ...] = HVAE_ARMS
    """Models to compare, with the same decoder: heat (the encoder blurs), learned (the encoder is
    trained, too)."""
    sizes: Flat[HvaeLevels] = HvaeLevels()
    training: Flat[ModelTraining] = ModelTraining()
    evaluation: Flat[HvaeEvaluation] = HvaeEvaluation()

    def check(self) -> None:
        """Refuse no arms or repeated ones, and no training."""
        super().check()
        check_unique("arms", self.arms)
        if not self.training.steps:
            raise ValueError("steps must be at least 1, got 0")

    def levels_of(self, arm: HvaeArm) -> HVAESpec:
        """Return the levels of an arm, with its own noise."""
        values = self.sizes.to_dict()
        learned = values.pop("learned_noise_std")
        return HVAESpec(**(values | ({"noise_std": learned} if arm == "learned" else {})))

    def one_model(self, arm: HvaeArm, seed: int) -> "HvaeSettings":
        """Return the settings of one model."""
        return replace(self, arms=(arm,), seeds=(seed,))


class SampleSettings(Settings):
    """Images to draw."""

    tokenizer: str = ""
    """Folder of the tokenizer."""
    prior: str = ""
    """Folder of the prior that was trained on its tokens."""
    model: str = ""
    """Folder of a model without tokens, in models/ of `generate diffusion` or `generate hvae`; in
    place of tokenizer and prior."""
    num: Count = 64
    """Images to draw."""
    seed: Index = 0
    """Of the draws: that of a run's model gives the run's own samples, from a prior where --num is
    the run's, too."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    sampling: Flat[Sampling] = Sampling()
    diffusion: Flat[DiffusionSampling] = DiffusionSampling()

    def check(self) -> None:
        """Refuse two things to draw from, and settings of the other."""
        if self.model and (self.tokenizer or self.prior):
            raise ValueError(
                "model is in place of tokenizer and prior, got both: name the model, or the others"
            )
        if self.model and (given := unlike_defaults(self.sampling)):
            raise ValueError(
                f"{given[0]} is for tokenizer and prior, and model has no tokens: leave it out"
            )
        if not self.model and (given := unlike_defaults(self.diffusion)):
            raise ValueError(
                f"{given[0]} is for model, a diffusion model, and none is named: name one, "
                "or leave it out"
            )

    def check_given(self) -> None:
        """Refuse a command line without anything to draw from."""
        for name in ("tokenizer", "prior"):
            if not self.model and not getattr(self, name):
                raise ValueError(
                    f"{name} must be given: name the folder of a trained one, or name --model"
                )


class EvaluateSettings(Settings):
    """What to measure: samples, a tokenizer's reconstructions, or both."""

    samples: str | None = None
    """File samples.npz of `generate sample`, or in samples/ of `generate run`."""
    tokenizer: str | None = None
    """Folder of a tokenizer."""
    data: str | None = None
    """Images to compare with; None: those that the tokenizer was trained on, else digits."""
    seed: Index = 0
    """Of the classifier whose features serve without Inception's; `generate run` has 0."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    num_images: AtLeastTwo | None = None
    """Test images to reconstruct; None: all."""
    reading: Flat[Reading] = Reading()
    features: Flat[Features] = Features()

    def check(self) -> None:
        """Refuse unknown data."""
        if self.data is not None:
            check_generation_name(self.data)

    def check_given(self) -> None:
        """Refuse a command line without anything to measure."""
        if self.samples is None and self.tokenizer is None:
            raise ValueError("samples or tokenizer must be named: there is nothing to measure")


def saved_diffusion(folder: Path) -> tuple[str, DiffusionSettings] | None:
    """Return recipe and settings of the diffusion model in a folder; None where it holds none."""
    return saved_settings(folder, DIFFUSION_MODEL, DiffusionSettings.from_dict)


def saved_hvae(folder: Path) -> tuple[str, HvaeSettings] | None:
    """Return recipe and settings of the HVAE in a folder; None where it holds none."""
    return saved_settings(folder, HVAE_MODEL, HvaeSettings.from_dict)


DIFFUSION_RECIPES = Recipes("diffusion", DiffusionSettings)
HVAE_RECIPES = Recipes("hvae", HvaeSettings)


def sample_defaults(pick: Pick) -> SampleSettings:
    """Return what drew the samples of the run that a prior or a model lies in."""
    if pick.model is not None:
        found = None
        with suppress(ValueError, OSError):
            found = saved_diffusion(Path(pick.model))
        sampling = DiffusionSampling() if found is None else found[1].sampling
        return SampleSettings(model=pick.model, diffusion=sampling)
    run = _made_with(Path(pick.prior[0]), saved_prior) if pick.prior else None
    return SampleSettings() if run is None else SampleSettings(sampling=run.sampling)


def evaluate_defaults(pick: Pick) -> EvaluateSettings:
    """Return the settings with the classifier of the run that is measured, or of a recipe."""
    if pick.tokenizer is not None:
        found = _made_with(Path(pick.tokenizer), saved_tokenizer)
    elif pick.samples is not None:
        found = _made_with(Path(pick.samples), _saved_run)
    else:
        return EvaluateSettings()
    if found is None:
        found = GENERATE_RECIPES(Pick(data=pick.data))[1]
    features = Features(classifier_steps=found.evaluation.features.classifier_steps)
    return EvaluateSettings(samples=pick.samples, tokenizer=pick.tokenizer, features=features)


def _saved_run(folder: Path) -> tuple[str, GenerateSettings] | None:
    return saved_settings(folder, GENERATE, GenerateSettings.from_dict)


def _made_with(
    part: Path, saved: Callable[[Path], tuple[str, object] | None]
) -> GenerateSettings | None:
    """Return the settings of the run that a part of one lies in, else of the part's recipe.

    None where nothing tells; a part that cannot be read is refused when the command runs.
    """
    with suppress(ValueError, OSError):
        run = _saved_run(part.resolve().parent.parent)
        if run is not None:
            return run[1]
        own = saved(part)
        return None if own is None else GENERATE_RECIPES.load(own[0])
    return None
