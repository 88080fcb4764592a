"""Settings of `probseq generate run`; its recipes: `recipes/tokens.toml`."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any

from PIL import Image

from probseq.settings import Bound, Count, NotNegative, Positive, Rate, Settings
from probseq_apps.data.names import IMAGE_ENDINGS, check_generation_name, user_path
from probseq_apps.engine.config import Fraction, Machine, TrainConfig, Training, loop_values
from probseq_apps.settings.common import (
    DISTINCT,
    SOME,
    DefaultSelectors,
    Flat,
    Recipes,
    Seeds,
    require,
    with_data,
)
from pseudovideo.spec import (
    AtLeastTwo,
    ClassSpec,
    CorruptionKind,
    CorruptionSpec,
    ObjectiveConfig,
    PriorName,
    Stem,
    TokenizerSpec,
    TokenSampling,
    TransformerSizes,
)
from pseudovideo.variants import TokenVariant, VariantKind, token_variants

GENERATE, GENERATE_SAMPLE = "generate", "generate-sample"
# Of the folder of one model.
TOKENIZER, PRIOR = "generate-tokenizer", "generate-prior"
# The data of recipes of folders, the side of pictures that they take as they are, and how many
# pictures are worth a UNet of full width.
_FOLDER, _LARGEST, _MANY = "folder:images", 48, 1000
# Of labels, where nothing else is said.
_HIDDEN = 0.1
# Tokens span two frames.
Frames = Annotated[int, Bound("1 or even", lambda n: n == 1 or (n > 0 and n % 2 == 0))]


class Reading(Settings):
    """Data."""

    image_size: Count | None = None
    """Side in pixels to bring the images to; None: 16 for digits, 8 for gaussian-digits, 32 for
    mnist and cifar10, 64 for celeba, the files' own for a folder. The thesis has 32 for cifar10, 64
    for celeba."""
    skip_unreadable: bool = False
    """Leave out files of a folder that cannot be read, instead of refusing the folder."""


class Features(Settings):
    """Features that distances between sets of images are measured in."""

    inception_weights: str | None = None
    """File of Inception's weights (pt_inception-2015-12-05-6726825d.pth) for FID and IS. None: a
    classifier trained on the data's labels, or without labels a random convolution beside a
    classifier that tells images from noise, and the distance is called FD."""
    classifier_steps: Count = 300
    """Optimizer steps of such a classifier."""


class StepTraining(Training):
    """Training: AdamW, the same number of steps for all variants."""

    steps: Count = 100_000
    """Optimizer steps of each model."""
    learning_rate: Positive = 1e-4
    final_learning_rate: NotNegative = 0.0
    warmup: Rate = 0.01
    """Share of the steps in which the step size rises from zero."""
    weight_decay: NotNegative = 0.01
    grad_clip: Positive | None = 1.0

    def check(self) -> None:
        """Refuse what `TrainConfig` refuses."""
        self.train_config(Machine(), seed=0)

    def train_config(self, machine: Machine, *, seed: int) -> TrainConfig:
        """Return the settings of the training loop for one model."""
        values = loop_values(self) | machine.to_dict()
        # Whole where it is but for round-off.
        values["warmup_steps"] = int(self.steps * self.warmup + 1e-6)
        values["schedule"] = getattr(self, "decay", "cosine")
        return TrainConfig(**values, select="last", checkpoint_every=None, seed=seed)


class Videos(CorruptionSpec):
    """Pseudo videos."""

    corruption: CorruptionKind = "blur"
    """What makes the frames before the image: blur (recursive), high-order-blur (of the mean of all
    cleaner frames), first-order-noise, high-order-noise, matched-noise (first-order noise at the
    levels of high-order-noise), or repeat (identical frames)."""


class ClassSettings(Settings):
    """Classes."""

    labels: bool = False
    """Learn with the images' classes, of a folder the names of its sub-folders, so that samples may
    be of a class."""
    label_dropout: Rate | None = None
    """Share of the labels that training hides, which guidance needs; None: 0.1 with --labels."""
    guidance: NotNegative = 1.0
    """How far samples are led to their classes: 1 as learned, more makes them more typical and less
    varied, 0 leaves the class out; others than these two take twice the evaluations."""

    def check(self) -> None:
        """Refuse what needs labels without them, and guidance of what was not learned."""
        for name, default in (("label_dropout", None), ("guidance", 1.0)):
            value = getattr(self, name)
            useful = value == default or self.labels
            require(useful, f"{name} needs labels, got {value} without them")
        require(
            self.guidance == 1.0 or self.label_dropout != 0,
            f"guidance needs label_dropout above 0, got {self.guidance} and label_dropout=0",
        )

    def spec(self, counts: Mapping[str, int]) -> ClassSpec:
        """Return what a model is told of classes, whose training images these are."""
        if not self.labels:
            return ClassSpec()
        hidden = _HIDDEN if self.label_dropout is None else self.label_dropout
        names, numbers = tuple(counts), tuple(counts.values())
        classes: dict[str, Any] = {"class_names": names, "class_counts": numbers}
        return ClassSpec(num_classes=len(names), label_dropout=hidden, **classes)

    @property
    def passes(self) -> int:
        """Evaluations where there would be one: with the class and without, where guided."""
        return 1 if self.guidance in (0.0, 1.0) else 2


class PriorTraining(TransformerSizes, StepTraining):
    """Sizes and training of a prior."""

    ema_decay: Fraction | None = None
    """Decay of a moving average of the weights, which then is what is stored."""


class PriorChoice(Settings):
    """Priors of `generate run`."""

    prior: Annotated[tuple[PriorName, ...], DISTINCT] = ("autoregressive", "masked")
    """Priors to train; none for reconstruction only."""
    prior_variants: Annotated[tuple[VariantKind, ...], DISTINCT] = ("frames", "patch")
    """Tokenizers to train them on, where the run has them: frames (those of --frames), patch (the
    control with half patches), repeat (the control with identical frames)."""
    prior_stem: Annotated[tuple[Stem, ...], DISTINCT] = ("plain",)
    """Stems of those tokenizers, among --stem."""


class Evaluation(Settings):
    """Evaluation."""

    num_samples: AtLeastTwo = 10_000
    """Images drawn from each model."""
    features: Flat[Features] = Features()


class TokensEvaluation(Evaluation):
    """Evaluation."""

    num_images: AtLeastTwo | None = None
    """Test images to reconstruct; None: all."""


class OnImages(Settings):
    """Images, and the machine."""

    data: str = "digits"
    """digits, gaussian-digits (Gaussian images with the digits' covariance), mnist, cifar10,
    celeba, or folder:PATH (images of one size, in it or deeper)."""
    reading: Flat[Reading] = Reading()
    machine: Flat[Machine] = Machine()

    def check(self) -> None:
        """Refuse unknown data."""
        check_generation_name(self.data)


class GenerateSettings(OnImages):
    """Comparison."""

    frames: Annotated[tuple[Frames, ...], SOME, DISTINCT] = (1, 8)
    """Lengths of the pseudo videos; 1 for the image alone, others even."""
    controls: bool = True
    """Also the controls of equal bits: as many identical frames, and one frame in half patches."""
    stem: Annotated[tuple[Stem, ...], SOME, DISTINCT] = ("plain", "layernorm")
    """plain projects raw patches linearly; layernorm normalises them, which erases each patch's
    brightness and contrast."""
    seeds: Seeds = (0,)
    """Each tokenizer and prior is trained once per seed."""
    lpips_weights: str | None = None
    """File of torchvision's VGG-16 weights (vgg16-397923af.pth), the trunk of LPIPS; needed where
    --loss.perceptual-weight is above 0."""
    videos: Flat[Videos] = Videos()
    tokenizer: TokenizerSpec = TokenizerSpec()
    loss: ObjectiveConfig = ObjectiveConfig(perceptual_weight=0.0, adversarial_weight=0.0)
    training: Flat[StepTraining] = StepTraining()
    priors: Flat[PriorChoice] = PriorChoice()
    autoregressive: PriorTraining = PriorTraining(dim=144, depth=8, num_heads=4)
    """ImageGPT and VideoGPT."""
    masked: PriorTraining = PriorTraining(
        dim=512, depth=6, num_heads=8, steps=200_000, warmup=0.005
    )
    """MaskGIT and Phenaki."""
    classes: Flat[ClassSettings] = ClassSettings()
    sampling: Flat[TokenSampling] = TokenSampling()
    evaluation: Flat[TokensEvaluation] = TokensEvaluation()

    def check(self) -> None:
        """Refuse settings that don't go together, and priors on tokenizers that aren't trained."""
        size, side = self.tokenizer.codebook_size, self.tokenizer.patch_size
        require(size <= 2**15, f"codebook_size must be at most 32768, got {size}")  # of 16 bits
        halved = self.controls and max(self.frames) > 1
        even = not halved or side % 2 == 0
        require(even, f"patch_size must be even for the control with half patches, got {side}")
        kinds = tuple(dict.fromkeys(variant.kind for variant in self.variants))
        for name, asked, names in (
            ("prior_stem", self.priors.prior_stem, self.stem),
            ("prior_variants", self.priors.prior_variants, kinds),
        ):
            # Variants that the run lacks may be named beside those that it has.
            includes = name != "prior_stem" or set(asked) <= set(names)
            require(
                not self.priors.prior or (includes and set(asked) & set(names)),
                f"{name} must be of this run ({', '.join(names)}), "
                f"got {', '.join(asked) or 'none'}",
            )

    @property
    def variants(self) -> tuple[TokenVariant, ...]:
        """All variants, in the order of the tables."""
        video = (self.tokenizer.patch_size, self.videos.corruption)
        return token_variants(self.frames, *video, controls=self.controls)

    def has_priors(self, variant: TokenVariant, stem: str) -> bool:
        """Return whether priors are trained on the tokens of a variant."""
        return variant.kind in self.priors.prior_variants and stem in self.priors.prior_stem

    def prior_training(self, prior: PriorName) -> PriorTraining:
        """Return sizes and training of a kind of prior."""
        return self.autoregressive if prior == "autoregressive" else self.masked


def for_pictures(settings: Any, selectors: DefaultSelectors) -> Any:
    """Return a recipe's settings with the data set that the command line names.

    Recipes of folders take pictures as they are where these are small squares, else at 32 pixels,
    and have half as wide a UNet for less than a thousand of them.
    """
    named = with_data(settings, selectors)
    root = user_path(named.data)
    if settings.data != _FOLDER or root is None:
        return named
    paths = [path for path in root.rglob("*") if path.suffix.lower() in IMAGE_ENDINGS]
    if not paths:
        return named
    is_small = False
    with suppress(OSError), Image.open(min(paths)) as picture:
        is_small = picture.width == picture.height <= _LARGEST and picture.width % 4 == 0
    named = replace(named, reading=replace(named.reading, image_size=None if is_small else 32))
    if len(paths) < _MANY and hasattr(named, "unet"):
        half = replace(named.unet, base_channels=named.unet.base_channels // 2)
        named = replace(named, unet=half)
    return named


GENERATE_RECIPES = Recipes("tokens", GenerateSettings, for_pictures)
