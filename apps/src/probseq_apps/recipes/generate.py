"""Settings of `probseq generate`; importable without torch.

The small recipes are for two CPU cores; those named `-fast` for minutes on a GPU. The columns of
Table 5.2 have the thesis' numbers (section 5.3, tables D.1-D.3), and both stems and the controls of
equal bits beside them. What the thesis leaves open is ours: warm-up, weight decay, the weights of
LPIPS and of the GAN, and when the latter starts.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from probseq_apps.data.names import FOLDER_PREFIX, check_generation_name
from probseq_apps.experiments.diffusion_groups import DiffusionSampling
from probseq_apps.experiments.diffusion_settings import saved_diffusion, saved_diffusion_model
from probseq_apps.experiments.generate_groups import (
    FeatureSettings,
    LossSettings,
    MachineSettings,
    ReadingSettings,
    TokenizerSettings,
    TokenizerTraining,
)
from probseq_apps.experiments.generate_prior_groups import (
    AutoregressiveSettings,
    GenerateEvaluationSettings,
    MaskedSettings,
    PriorChoice,
    PriorTraining,
    SamplingSettings,
)
from probseq_apps.experiments.generate_settings import (
    EvaluateSettings,
    GenerateSettings,
    OnePriorSettings,
    OneTokenizerSettings,
    SampleSettings,
    saved_generate,
    saved_prior,
    saved_tokenizer,
)
from probseq_apps.recipes.diffusion import DIFFUSION_RECIPES
from probseq_apps.settings.common import Pick, Recipes, share_left, with_data


def digits_small() -> GenerateSettings:
    """The default: 8x8 digits enlarged to 16x16, about three minutes of CPU time.

    Steps are small and many, codes narrow, and the warm-up is a third of the training, all of which
    the 8-frame arm needs for a sharp last frame in so short a time.
    """
    return GenerateSettings(
        tokenizer=TokenizerSettings(dim=48, num_heads=4, depth=1, codebook_size=128, code_dim=8),
        training=TokenizerTraining(
            steps=450, batch_size=8, learning_rate=2e-3, warmup_steps=150, weight_decay=0.0
        ),
        autoregressive=AutoregressiveSettings(ar_dim=64, ar_depth=2, ar_num_heads=4, ar_steps=600),
        masked=MaskedSettings(masked_dim=64, masked_depth=2, masked_num_heads=4, masked_steps=600),
        prior_training=PriorTraining(
            prior_batch_size=16, prior_learning_rate=4e-3, prior_warmup_steps=100
        ),
        sampling=SamplingSettings(temperature=0.8, num_steps=12),
        evaluation=GenerateEvaluationSettings(
            num_samples=400, features=FeatureSettings(classifier_steps=150)
        ),
    )


def mnist_small() -> GenerateSettings:
    """MNIST padded to 32x32, the arms of the default, in larger models."""
    small = digits_small()
    return replace(
        small,
        data="mnist",
        tokenizer=replace(small.tokenizer, dim=64, codebook_size=256, code_dim=16),
        training=replace(
            small.training, steps=500, batch_size=16, learning_rate=1.5e-3, warmup_steps=20
        ),
        autoregressive=replace(small.autoregressive, ar_dim=96, ar_depth=3, ar_steps=1500),
        masked=replace(small.masked, masked_dim=96, masked_depth=3, masked_steps=1500),
        prior_training=replace(
            small.prior_training,
            prior_batch_size=32,
            prior_learning_rate=3e-3,
            prior_warmup_steps=20,
        ),
        sampling=replace(small.sampling, temperature=0.9),
    )


def folder_small() -> GenerateSettings:
    """Images of one's own at their own size, which must be one: the arms of the default."""
    return replace(mnist_small(), data=f"{FOLDER_PREFIX}images")


def cifar10_small() -> GenerateSettings:
    """Reconstruction of CIFAR-10 averaged to 16x16, squared error only: what the stem decides."""
    return GenerateSettings(
        data="cifar10",
        reading=ReadingSettings(image_size=16),
        tokenizer=TokenizerSettings(dim=128, num_heads=4, depth=2, codebook_size=512),
        training=TokenizerTraining(steps=1200, batch_size=32, learning_rate=1e-3, warmup_steps=100),
        priors=PriorChoice(prior=()),
        evaluation=GenerateEvaluationSettings(num_images=2000),
    )


def paper(data: str, frames: int) -> GenerateSettings:
    """A column of Table 5.2; LPIPS and Inception's weights are named by flags."""
    return GenerateSettings(
        data=data,
        frames=(frames,),
        loss=LossSettings(perceptual_weight=0.1, adversarial_weight=0.1, adversarial_start=10_000),
        evaluation=GenerateEvaluationSettings(num_samples=50_000),
    )


def recon_cifar_fast() -> GenerateSettings:
    """Reconstruction of CIFAR-10 at full size with a short training of 6,000 steps an arm."""
    return GenerateSettings(
        data="cifar10",
        training=TokenizerTraining(steps=6000, learning_rate=3e-4, warmup_steps=500),
        priors=PriorChoice(prior=()),
        machine=MachineSettings(precision="bf16"),
    )


def prior_cifar_fast() -> GenerateSettings:
    """Both priors on CIFAR-10, 1 and 8 frames and half patches, in a short training."""
    recon = recon_cifar_fast()
    return replace(
        recon,
        stem=("plain",),
        priors=PriorChoice(),
        autoregressive=AutoregressiveSettings(ar_steps=6000),
        masked=MaskedSettings(masked_steps=6000),
        prior_training=PriorTraining(
            prior_batch_size=128, prior_learning_rate=3e-4, prior_warmup_steps=500
        ),
        evaluation=GenerateEvaluationSettings(num_samples=5000),
    )


_KNOWN: dict[str, Callable[[], GenerateSettings]] = {
    "digits-small": digits_small,
    "mnist-small": mnist_small,
    "folder-small": folder_small,
    "cifar10-small": cifar10_small,
    "cifar10-1-frame": lambda: paper("cifar10", 1),
    "cifar10-8-frame": lambda: paper("cifar10", 8),
    "cifar10-18-frame": lambda: paper("cifar10", 18),
    "celeba-1-frame": lambda: paper("celeba", 1),
    "celeba-8-frame": lambda: paper("celeba", 8),
    "celeba-18-frame": lambda: paper("celeba", 18),
    "recon-cifar-fast": recon_cifar_fast,
    "prior-cifar-fast": prior_cifar_fast,
}

_SMALL_RECIPES = {
    "digits": "digits-small",
    "mnist": "mnist-small",
    "cifar10": "cifar10-small",
    "celeba": "celeba-8-frame",
}


def _suiting(data: str) -> str:
    check_generation_name(data)
    return _SMALL_RECIPES.get(data, "folder-small")


def _for_images(settings: GenerateSettings, pick: Pick) -> GenerateSettings:
    """Return settings for other data, with warm-ups as short as the training."""
    training, priors = settings.training, settings.prior_training
    share = share_left(pick.steps, training.steps)
    prior_share = min(
        share_left(pick.ar_steps, settings.autoregressive.ar_steps),
        share_left(pick.masked_steps, settings.masked.masked_steps),
    )
    return replace(
        with_data(settings, pick),
        training=replace(training, warmup_steps=int(training.warmup_steps * share)),
        prior_training=replace(
            priors, prior_warmup_steps=int(priors.prior_warmup_steps * prior_share)
        ),
    )


def _one_tokenizer(settings: GenerateSettings, pick: Pick) -> OneTokenizerSettings:
    """Return the settings of the tokenizer of the longest videos."""
    settings = _for_images(settings, pick)
    longest = max((arm for arm in settings.arms if arm.kind == "frames"), key=lambda a: a.frames)
    return settings.one_tokenizer(longest, settings.stem[0], settings.seeds[0])


GENERATE_RECIPES = Recipes(_KNOWN, "digits-small", suits=_suiting, adapt=_for_images)
TOKENIZER_RECIPES = Recipes(_KNOWN, "digits-small", suits=_suiting, adapt=_one_tokenizer)


class _Priors(Recipes[OnePriorSettings]):
    def __call__(self, pick: Pick) -> tuple[str, OnePriorSettings]:
        """As `Recipes`; without a named recipe of that which the tokenizer was trained with."""
        name = pick.recipe
        if name is None and pick.tokenizer:
            # A folder that cannot be read is refused when the command runs.
            with suppress(ValueError, OSError):
                found = saved_tokenizer(Path(pick.tokenizer))
                name = None if found is None else found[0]
        name = name or self.default
        settings = _for_images(self.load(name), pick)
        return name, settings.one_prior(pick.tokenizer or "", "autoregressive", seed=0)


PRIOR_RECIPES = _Priors(_KNOWN, "digits-small", suits=_suiting)


def sample_defaults(pick: Pick) -> SampleSettings:
    """Return what drew the samples of the run that a prior or a model lies in."""
    if pick.model is not None:
        return SampleSettings(model=pick.model, diffusion=_drawn_with(Path(pick.model)))
    found = None if pick.prior is None else _made_with(Path(pick.prior), saved_prior)
    return SampleSettings() if found is None else SampleSettings(sampling=found.sampling)


def evaluate_defaults(pick: Pick) -> EvaluateSettings:
    """Return the settings with the classifier of the run that is measured, or of a recipe."""
    if pick.tokenizer is not None:
        found = _made_with(Path(pick.tokenizer), saved_tokenizer)
    elif pick.samples is not None:
        found = _made_with(Path(pick.samples), saved_generate)
    else:
        return EvaluateSettings()
    if found is None:
        found = GENERATE_RECIPES.load(_SMALL_RECIPES.get(pick.data or "digits", "digits-small"))
    steps = found.evaluation.features.classifier_steps
    features = FeatureSettings(classifier_steps=steps)
    return EvaluateSettings(samples=pick.samples, tokenizer=pick.tokenizer, features=features)


def _drawn_with(model: Path) -> DiffusionSampling:
    """Return how a run drew from a diffusion model of its own, else how the model's recipe does."""
    with suppress(ValueError, OSError):
        run = saved_diffusion(model.resolve().parent.parent)
        if run is not None:
            return run[1].sampling
        own = saved_diffusion_model(model)
        if own is not None:
            return DIFFUSION_RECIPES.load(own[0]).sampling
    return DiffusionSampling()


def _made_with(
    part: Path, saved: Callable[[Path], tuple[str, object] | None]
) -> GenerateSettings | None:
    """Return the settings of the run that a part of one lies in, else of the part's recipe.

    None where nothing tells; a part that cannot be read is refused when the command runs.
    """
    with suppress(ValueError, OSError):
        run = saved_generate(part.resolve().parent.parent)
        if run is not None:
            return run[1]
        own = saved(part)
        return None if own is None else GENERATE_RECIPES.load(own[0])
    return None
