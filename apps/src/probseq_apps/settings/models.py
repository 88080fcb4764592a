"""Settings of `probseq generate diffusion`, `hvae`, `sample` and `export`."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from probseq.settings import Count, Index, NotNegative, Positive, Rate, Settings, Share
from probseq_apps.engine.config import Device, Fraction, Schedule
from probseq_apps.settings import generate
from probseq_apps.settings.common import (
    DISTINCT,
    SOME,
    DefaultSelectors,
    Flat,
    Names,
    Recipes,
    Seeds,
    require,
    saved_settings,
)
from pseudovideo import spec
from pseudovideo.variants import DiffusionVariant

GENERATE_DIFFUSION, GENERATE_HVAE = "generate-diffusion", "generate-hvae"
# Of the folder of one model.
DIFFUSION_MODEL, HVAE_MODEL = "generate-diffusion-model", "generate-hvae-model"
HvaeVariant = Literal["heat", "learned"]


class ModelTraining(generate.StepTraining):
    """Training: Adam, the same number of steps for all variants."""

    steps: Count = 500_000
    batch_size: Count = 32
    decay: Schedule = "constant"
    """Shape of the step size's way to its last: constant (it stays), linear or cosine."""
    warmup: Rate = 0.0
    weight_decay: NotNegative = 0.0
    grad_clip: Positive | None = None
    ema_decay: Fraction | None = 0.9999
    """Decay of the moving average of the weights, which is what is stored; it is smaller in the
    first steps. None for the weights themselves."""


class DiffusionSampling(Settings):
    """Sampling of diffusion models."""

    sampling_steps: spec.AtLeastTwo | None = None
    """Diffusion steps that are taken, evenly spread; None: all."""
    sampler: Literal["ancestral", "ddim"] = "ancestral"
    """ancestral (each step draws noise as in training), or ddim (less noise or none). With few
    steps images of both vary too little: of pixels of spread .3 on a linear schedule 10 leave .18,
    50 .29 (ancestral) and .28 (ddim)."""
    eta: Share = 0.0
    """ddim: noise of its steps, from 0 for none to 1 for that of ancestral ones."""

    def check(self) -> None:
        """Refuse noise of a sampler that has its own."""
        allowed = not self.eta or self.sampler == "ddim"
        require(allowed, f"eta is for sampler=ddim, got {self.eta} and {self.sampler}")

    def options(self) -> dict[str, Any]:
        """Return the arguments of the models' `sample`; eta for ddim alone."""
        eta = self.eta if self.sampler == "ddim" else None
        return {"num_steps": self.sampling_steps, "eta": eta}

    def check_steps(self, diffusion_steps: int) -> None:
        """Raise if more steps are asked for than there are."""
        steps = self.sampling_steps or 0
        most = f"at most the {diffusion_steps} diffusion steps of each variant"
        require(steps <= diffusion_steps, f"sampling_steps must be {most}, got {steps}")


class Frames(spec.VideoSpec, spec.CorruptionSpec):
    """Pseudo videos."""


class DiffusionEvaluation(generate.Evaluation):
    """Evaluation."""

    likelihood_images: Index = 0
    """Test images, 0 for none, whose bits per dimension 1-frame variants bound, in all steps."""
    frame_error_images: Index = 256
    """Test videos whose frames video variants predict from the true frames before; 0 for none."""
    frame_error_samples: spec.AtLeastTwo = 4
    """Draws of each of these frames."""


class HvaeEvaluation(generate.Evaluation):
    """Evaluation."""

    bound_images: Count = 10_000
    """Test images whose likelihood is bounded, fewer where there are fewer."""


class HvaeLevels(spec.HVAESpec):
    """Latent frames."""

    learned_noise_std: Positive = 0.3
    """The learned encoder's --noise-std. With 0.02 it copies the image, and what is drawn is noise:
    the prior then asks for frames that the decoder has never seen."""


class _Models(generate.OnImages):
    seeds: Seeds = (0,)
    """Each model is trained once per seed."""
    unet: spec.UNetSpec = spec.UNetSpec()
    classes: Flat[generate.ClassSettings] = generate.ClassSettings()


class DiffusionSettings(_Models):
    """Comparison."""

    variants: Names = ("1-frame", "4-frame-first-order", "4-frame-high-order")
    """Models to compare: 1-frame (improved DDPM), 1-frame-4000 (with 4,000 diffusion steps),
    T-frame-first-order, T-frame-high-order, T-frame-matched (first-order noise at the levels of the
    high-order one), T-frame-blur (high-order blur) or T-frame-first-order-blur, for any even T."""
    process: spec.DiffusionSpec = spec.DiffusionSpec()
    frames: Flat[Frames] = Frames()
    training: Flat[ModelTraining] = ModelTraining()
    sampling: Flat[DiffusionSampling] = DiffusionSampling()
    evaluation: Flat[DiffusionEvaluation] = DiffusionEvaluation()

    def check(self) -> None:
        """Refuse unknown names and settings that don't go together."""
        variants = [DiffusionVariant.parse(name) for name in self.variants]
        videos = all(variant.is_video for variant in variants)
        for variant in variants:
            self.sampling.check_steps(variant.diffusion_steps or self.process.num_steps)
            allowed = not variant.is_video or variant.context(self.frames) < variant.frames
            require(
                allowed, f"context must be less than the {variant.frames} frames of {variant.name}"
            )
        require(
            not (self.evaluation.likelihood_images and videos),
            f"likelihood_images is for 1-frame variants, got variants {', '.join(self.variants)}",
        )

    def model_settings(self, variant: str, seed: int) -> "DiffusionSettings":
        """Return the settings of one model."""
        evaluation = self.evaluation
        if DiffusionVariant.parse(variant).is_video:
            evaluation = replace(evaluation, likelihood_images=0)
        return replace(self, variants=(variant,), seeds=(seed,), evaluation=evaluation)


class HvaeSettings(_Models):
    """Comparison."""

    binarize: bool = True
    """Make pixels above 127 white, all others black; for grey images."""
    variants: Annotated[tuple[HvaeVariant, ...], SOME, DISTINCT] = ("heat", "learned")
    """Models to compare: heat (the encoder blurs), learned (it is trained as the decoder is)."""
    sizes: Flat[HvaeLevels] = HvaeLevels()
    training: Flat[ModelTraining] = ModelTraining()
    evaluation: Flat[HvaeEvaluation] = HvaeEvaluation()

    def levels_of(self, variant: HvaeVariant) -> spec.HVAESpec:
        """Return the levels of a variant, with its own noise."""
        values = self.sizes.to_dict()
        learned = values.pop("learned_noise_std")
        return spec.HVAESpec(**(values | ({"noise_std": learned} if variant == "learned" else {})))

    def model_settings(self, variant: HvaeVariant, seed: int) -> "HvaeSettings":
        """Return the settings of one model."""
        return replace(self, variants=(variant,), seeds=(seed,))


class SampleSettings(Settings):
    """Images to draw."""

    model: str = ""
    """Folder in models/ of `generate diffusion` or `generate hvae`, or in priors/ of a run of
    `generate run`, which has its tokenizer."""
    num: Count = 64
    """Images to draw."""
    png: str = ""
    """Folder into which each image is also written as a PNG of its own."""
    seed: Index = 0
    """Of the draws: that of a run's model gives the run's own samples, from a prior where --num is
    the run's, too."""
    labels: tuple[str, ...] = ()
    """Classes to draw in turn, by name, or by number where no name is a number; none: all, with the
    training images' shares."""
    guidance: NotNegative = 1.0
    """How far samples are led to their classes, as of `generate run` and `diffusion`."""
    device: Device = "auto"
    """auto, cpu, cuda or cuda:N."""
    sampling: Flat[spec.TokenSampling] = spec.TokenSampling()
    diffusion: Flat[DiffusionSampling] = DiffusionSampling()

    def check_complete(self) -> None:
        """Refuse a command line without anything to draw from."""
        require(self.model, "model must be given: name the folder of a trained one")


class ExportSettings(Settings):
    """Pipeline to write."""

    model: str = ""
    """Folder in models/ of `generate diffusion`."""
    pipeline: str = ""
    """Folder of the pipeline; new or empty."""
    trained_on: str | None = None
    """For the model card; None: the name of the data."""
    license: str | None = None
    """For the model card, such as mit; None: unknown."""

    def check_complete(self) -> None:
        """Refuse a command line that lacks one of the folders."""
        for name in ("model", "pipeline"):
            require(getattr(self, name), f"{name} must be given: name a folder")


DIFFUSION_RECIPES = Recipes("diffusion", DiffusionSettings, generate.for_pictures)
HVAE_RECIPES = Recipes("hvae", HvaeSettings, generate.for_pictures)


def sample_defaults(selectors: DefaultSelectors) -> SampleSettings:
    """Return the sampling settings of the run that made a model."""
    if selectors.model is None:
        return SampleSettings()
    folder, settings = Path(selectors.model), SampleSettings(model=selectors.model)
    with suppress(ValueError, OSError):  # such a folder is refused when the command runs
        if prior := saved_settings(folder, generate.PRIOR, generate.GenerateSettings):
            made = prior[1]
            return replace(settings, sampling=made.sampling, guidance=made.classes.guidance)
        if diffusion := saved_settings(folder, DIFFUSION_MODEL, DiffusionSettings):
            made = diffusion[1]
            return replace(settings, diffusion=made.sampling, guidance=made.classes.guidance)
        if hvae := saved_settings(folder, HVAE_MODEL, HvaeSettings):
            return replace(settings, guidance=hvae[1].classes.guidance)
    return settings
