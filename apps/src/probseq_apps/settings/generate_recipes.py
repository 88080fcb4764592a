"""Recipes of `probseq generate`.

The small ones are for two CPU cores, those named `-fast` for minutes on a GPU, those named for a
data set and a length or for a table have the thesis' numbers (sections 5.2-5.4, tables D.1-D.4).
What the thesis leaves open is ours: of tokenizers warm-up, weight decay, the weights of LPIPS and
of the GAN, and when the latter starts; of diffusion Adam without warm-up, decay or clipping and a
moving average of .9999, as in improved DDPM; of HVAEs the numbers of Rissanen et al. (2023) for
MNIST where they have any. The learned encoder has more noise than the heat equation's: with as
little of it, the model draws noise.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from probseq_apps.data.names import FOLDER_PREFIX, check_generation_name
from probseq_apps.settings.common import Pick, Recipes, saved_settings, with_data
from probseq_apps.settings.generate import (
    GENERATE,
    Features,
    GenerateSettings,
    Machine,
    PriorChoice,
    PriorSettings,
    PriorSizes,
    PriorTraining,
    Reading,
    Sampling,
    TokenizerSettings,
    TokensEvaluation,
    Training,
    saved_prior,
    saved_tokenizer,
)
from probseq_apps.settings.models import (
    DiffusionEvaluation,
    DiffusionSampling,
    DiffusionSettings,
    DiffusionTraining,
    EvaluateSettings,
    HvaeEvaluation,
    HvaeLevels,
    HvaeSettings,
    ModelTraining,
    SampleSettings,
    saved_diffusion,
)
from pseudovideo.spec import DiffusionSpec, ObjectiveConfig, TokenizerSpec, UNetSpec

_FOUR_FRAMES = ("4-frame-first-order", "4-frame-high-order")


def digits_small() -> GenerateSettings:
    """The default: 8x8 digits enlarged to 16x16, about three minutes of CPU time.

    Steps are small and many, codes narrow, and the warm-up is a third of the training, all of which
    the 8-frame arm needs for a sharp last frame in so short a time.
    """
    prior = PriorSizes(dim=64, depth=2, num_heads=4, steps=600, warmup=1 / 6)
    return GenerateSettings(
        tokenizer=TokenizerSpec(dim=48, num_heads=4, depth=1, codebook_size=128, code_dim=8),
        training=Training(
            steps=450, batch_size=8, learning_rate=2e-3, warmup=1 / 3, weight_decay=0.0
        ),
        autoregressive=prior,
        masked=prior,
        prior_training=PriorTraining(batch_size=16, learning_rate=4e-3),
        sampling=Sampling(temperature=0.8, num_steps=12),
        evaluation=TokensEvaluation(num_samples=400, features=Features(classifier_steps=150)),
    )


def mnist_small() -> GenerateSettings:
    """MNIST padded to 32x32, the arms of the default, in larger models."""
    small = digits_small()
    prior = PriorSizes(dim=96, depth=3, num_heads=4, steps=1500, warmup=1 / 75)
    return replace(
        small,
        data="mnist",
        tokenizer=replace(small.tokenizer, dim=64, codebook_size=256, code_dim=16),
        training=replace(
            small.training, steps=500, batch_size=16, learning_rate=1.5e-3, warmup=0.04
        ),
        autoregressive=prior,
        masked=prior,
        prior_training=PriorTraining(batch_size=32, learning_rate=3e-3),
        sampling=replace(small.sampling, temperature=0.9),
    )


def cifar10_small() -> GenerateSettings:
    """Reconstruction of CIFAR-10 averaged to 16x16, squared error only: what the stem decides."""
    return GenerateSettings(
        data="cifar10",
        reading=Reading(image_size=16),
        tokenizer=TokenizerSpec(dim=128, num_heads=4, depth=2, codebook_size=512),
        training=Training(steps=1200, batch_size=32, learning_rate=1e-3, warmup=1 / 12),
        priors=PriorChoice(prior=()),
        evaluation=TokensEvaluation(num_images=2000),
    )


def table_5_2(data: str, frames: int) -> GenerateSettings:
    """A column of Table 5.2; LPIPS and Inception's weights are named by flags."""
    return GenerateSettings(
        data=data,
        frames=(frames,),
        loss=ObjectiveConfig(),
        evaluation=TokensEvaluation(num_samples=50_000),
    )


def recon_cifar_fast() -> GenerateSettings:
    """Reconstruction of CIFAR-10 at full size with a short training of 6,000 steps an arm."""
    return GenerateSettings(
        data="cifar10",
        training=Training(steps=6000, learning_rate=3e-4, warmup=1 / 12),
        priors=PriorChoice(prior=()),
        machine=Machine(precision="bf16"),
    )


def prior_cifar_fast() -> GenerateSettings:
    """Both priors on CIFAR-10, 1 and 8 frames and half patches, in a short training."""
    recon = recon_cifar_fast()
    return replace(
        recon,
        stem=("plain",),
        priors=PriorChoice(),
        autoregressive=replace(recon.autoregressive, steps=6000, warmup=1 / 12),
        masked=replace(recon.masked, steps=6000, warmup=1 / 12),
        prior_training=PriorTraining(batch_size=128, learning_rate=3e-4),
        evaluation=TokensEvaluation(num_samples=5000),
    )


_TOKENS: dict[str, Callable[[], GenerateSettings]] = {
    "digits-small": digits_small,
    "mnist-small": mnist_small,
    # Images of one's own at their own size, which must be one.
    "folder-small": lambda: replace(mnist_small(), data=f"{FOLDER_PREFIX}images"),
    "cifar10-small": cifar10_small,
    "cifar10-1-frame": lambda: table_5_2("cifar10", 1),
    "cifar10-8-frame": lambda: table_5_2("cifar10", 8),
    "cifar10-18-frame": lambda: table_5_2("cifar10", 18),
    "celeba-1-frame": lambda: table_5_2("celeba", 1),
    "celeba-8-frame": lambda: table_5_2("celeba", 8),
    "celeba-18-frame": lambda: table_5_2("celeba", 18),
    "recon-cifar-fast": recon_cifar_fast,
    "prior-cifar-fast": prior_cifar_fast,
}


def digits_diffusion() -> DiffusionSettings:
    """The default: 8x8 digits enlarged to 16x16.

    Noise grows by the cosine schedule: so small images are nothing but noise for long stretches of
    the linear one.
    """
    return DiffusionSettings(
        unet=UNetSpec(
            base_channels=16,
            channel_multipliers=(1, 2, 4),
            num_res_blocks=1,
            attention_sizes=(4,),
            num_groups=8,
        ),
        process=DiffusionSpec(schedule="cosine"),
        training=DiffusionTraining(
            steps=500,
            batch_size=12,
            learning_rate=2e-3,
            decay="cosine",
            warmup=0.1,
            grad_clip=1.0,
            ema_decay=0.99,
        ),
        sampling=DiffusionSampling(sampling_steps=20),
        evaluation=DiffusionEvaluation(
            num_samples=150,
            frame_error_images=50,
            frame_error_samples=2,
            features=Features(classifier_steps=150),
        ),
    )


def mnist_diffusion() -> DiffusionSettings:
    """MNIST padded to 32x32, the arms of the default, in larger models."""
    small = digits_diffusion()
    return replace(
        small,
        data="mnist",
        unet=replace(
            small.unet, base_channels=32, channel_multipliers=(1, 2, 2, 2), attention_sizes=(8,)
        ),
        training=replace(
            small.training, steps=3000, batch_size=32, learning_rate=1e-3, warmup=1 / 60
        ),
        sampling=replace(small.sampling, sampling_steps=50),
    )


def folder_diffusion() -> DiffusionSettings:
    """Images of one's own at their own size, which must be one: the arms of the default."""
    mnist = mnist_diffusion()
    unet = replace(mnist.unet, channel_multipliers=None)
    return replace(mnist, data=f"{FOLDER_PREFIX}images", unet=unet)


def ddpm_fast() -> DiffusionSettings:
    """CIFAR-10 with half the channels and 20,000 steps an arm."""
    return DiffusionSettings(
        data="cifar10",
        unet=UNetSpec(base_channels=64),
        training=DiffusionTraining(
            steps=20_000, batch_size=64, learning_rate=3e-4, warmup=0.025, ema_decay=0.999
        ),
        sampling=DiffusionSampling(sampling_steps=50, sampler="ddim"),
        evaluation=DiffusionEvaluation(num_samples=5000),
        machine=Machine(precision="bf16"),
    )


def _compare(data: str, *arms: str) -> Callable[[], DiffusionSettings]:
    """Return the thesis' numbers; Inception's weights are named by a flag."""
    return lambda: DiffusionSettings(data=data, arms=arms)


_EIGHT_FRAMES = tuple(arm.replace("4", "8") for arm in _FOUR_FRAMES)
_DIFFUSION: dict[str, Callable[[], DiffusionSettings]] = {
    "digits-diffusion": digits_diffusion,
    "mnist-diffusion": mnist_diffusion,
    "folder-diffusion": folder_diffusion,
    "ddpm-fast": ddpm_fast,
    # Images, and videos of 4 and 8 frames with either noise.
    "table-5.3-cifar10": _compare("cifar10", "1-frame", *_FOUR_FRAMES, *_EIGHT_FRAMES),
    "table-5.3-celeba": _compare("celeba", "1-frame", *_FOUR_FRAMES, *_EIGHT_FRAMES),
    # Images with 1,000 and with 4,000 steps, beside videos with 3,000 in all.
    "table-5.4-cifar10": _compare("cifar10", "1-frame", "1-frame-4000", "4-frame-high-order"),
    "table-5.4-celeba": _compare("celeba", "1-frame", "1-frame-4000", "4-frame-high-order"),
    # Videos of noise and of blur.
    "table-5.5-cifar10": _compare(
        "cifar10", "4-frame-high-order", "4-frame-blur", "8-frame-high-order", "8-frame-blur"
    ),
    # First-order noise at the levels of high-order noise, beside both: an ablation.
    "matched-noise-cifar10": _compare(
        "cifar10", "4-frame-first-order", "4-frame-matched", "4-frame-high-order"
    ),
}


def digits_hvae() -> HvaeSettings:
    """The default: 8x8 digits enlarged to 16x16 and binarised.

    The largest blur damps digits of 16 pixels as the thesis' 20 damps those of 28 or 32.
    """
    return HvaeSettings(
        unet=UNetSpec(
            base_channels=16,
            channel_multipliers=(1, 2, 2),
            num_res_blocks=1,
            attention_sizes=(4,),
            num_groups=8,
        ),
        sizes=HvaeLevels(sigma_max=10.0),
        training=ModelTraining(
            steps=500,
            batch_size=32,
            learning_rate=2e-3,
            decay="cosine",
            warmup=0.05,
            grad_clip=1.0,
            ema_decay=0.98,
        ),
        evaluation=HvaeEvaluation(num_samples=1000, features=Features(classifier_steps=150)),
    )


def mnist_hvae() -> HvaeSettings:
    """Binarised MNIST padded to 32x32, in larger models than the default's."""
    small = digits_hvae()
    return replace(
        small,
        data="mnist",
        unet=replace(
            small.unet, base_channels=32, channel_multipliers=(1, 2, 2, 2), attention_sizes=(8,)
        ),
        sizes=HvaeLevels(),
        training=replace(
            small.training, steps=3000, learning_rate=1e-3, warmup=1 / 120, ema_decay=0.99
        ),
    )


def table_5_1() -> HvaeSettings:
    """Binarised MNIST at its own 28x28 pixels, full size: the thesis' comparison of section 5.2."""
    return HvaeSettings(
        data="mnist",
        reading=Reading(image_size=28),
        unet=UNetSpec(channel_multipliers=(1, 2, 2), attention_sizes=(14, 7)),
        training=ModelTraining(steps=100_000, batch_size=128, learning_rate=2e-4, grad_clip=1.0),
        machine=Machine(precision="bf16"),
    )


def hvae_mnist_fast() -> HvaeSettings:
    """Binarised MNIST with 48 channels and 10,000 steps an arm."""
    full = table_5_1()
    return replace(
        full,
        unet=replace(full.unet, base_channels=48, num_groups=16),
        training=replace(full.training, steps=10_000, ema_decay=0.999, warmup=0.05),
    )


_HVAE: dict[str, Callable[[], HvaeSettings]] = {
    "digits-hvae": digits_hvae,
    "mnist-hvae": mnist_hvae,
    "table-5.1": table_5_1,
    "hvae-mnist-fast": hvae_mnist_fast,
}


def _suiting(known: dict[str, str], other: str) -> Callable[[str], str]:
    """Return what names the recipe that suits a data set."""

    def suits(data: str) -> str:
        check_generation_name(data)
        return known.get(data, other)

    return suits


_SMALL = {
    "digits": "digits-small",
    "mnist": "mnist-small",
    "cifar10": "cifar10-small",
    "celeba": "celeba-8-frame",
}
_OF_TOKENS = _suiting(_SMALL, "folder-small")
_OF_DIFFUSION = {
    "digits": "digits-diffusion",
    "mnist": "mnist-diffusion",
    "cifar10": "ddpm-fast",
    "celeba": "table-5.3-celeba",
}


def _one_tokenizer(settings: GenerateSettings, pick: Pick) -> TokenizerSettings:
    """Return the settings of the tokenizer of the longest videos."""
    settings = with_data(settings, pick)
    longest = max((arm for arm in settings.arms if arm.kind == "frames"), key=lambda a: a.frames)
    return settings.one_tokenizer(longest, settings.stem[0], settings.seeds[0])


class _Priors(Recipes[PriorSettings]):
    def __call__(self, pick: Pick) -> tuple[str, PriorSettings]:
        """As `Recipes`; without a named recipe of that which the tokenizer was trained with."""
        name = pick.recipe
        if name is None and pick.tokenizer:
            # A folder that cannot be read is refused when the command runs.
            with suppress(ValueError, OSError):
                found = saved_tokenizer(Path(pick.tokenizer))
                name = None if found is None else found[0]
        name = name or self.default
        return name, self.load(name).one_prior(pick.tokenizer or "", "autoregressive", seed=0)


GENERATE_RECIPES = Recipes(_TOKENS, "digits-small", suits=_OF_TOKENS)
TOKENIZER_RECIPES = Recipes(_TOKENS, "digits-small", suits=_OF_TOKENS, adapt=_one_tokenizer)
PRIOR_RECIPES = _Priors(_TOKENS, "digits-small", suits=_OF_TOKENS)
DIFFUSION_RECIPES = Recipes(
    _DIFFUSION, "digits-diffusion", suits=_suiting(_OF_DIFFUSION, "folder-diffusion")
)
HVAE_RECIPES = Recipes(
    _HVAE, "digits-hvae", suits=_suiting({"digits": "digits-hvae"}, "mnist-hvae")
)


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
        found = GENERATE_RECIPES.load(_SMALL.get(pick.data or "digits", "digits-small"))
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
