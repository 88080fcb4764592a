"""Settings of `probseq classify`, and its recipes."""

from dataclasses import replace
from typing import Annotated, Literal

from cgpt.spec import CGPTConfig, SCGPTConfig
from kepsvgp.spec import KEPSVGPConfig
from probseq.settings import Bound, Count, Index, Settings
from probseq_apps.data.names import (
    CORRUPTION_NAMES,
    IMAGE_NAMES,
    WORDS,
    data_kind,
    tokenizer_choice,
    unknown_name_message,
)
from probseq_apps.settings.common import Flat, Pick, Recipes, check_unique
from probseq_apps.settings.methods import (
    METHODS,
    BackboneSettings,
    MethodSettings,
    TrainingSettings,
    trained_methods,
)
from sgpa.spec import SGPAConfig

ROTATIONS = "rotations"
Severity = Annotated[int, Bound("from 1 to 5", lambda value: 1 <= value <= 5)]


class ImageAndTextSettings(BackboneSettings):
    """Transformer."""

    patch_size: Count = 4
    """Side of an image patch; must divide the image's side."""
    max_length: Count = 512
    """Texts: most tokens of a sequence, the rest is cut."""


class ImageTrainingSettings(TrainingSettings):
    """Training."""

    augment: Literal["none", "crop-flip", "three-augment"] = "none"
    """Images: augmentation of the training batches."""


class EvaluationSettings(Settings):
    """Evaluation."""

    num_samples: Count = 10
    """Monte Carlo samples of a prediction, for the methods that sample."""
    shift: bool = False
    """Images: evaluate under corruptions of the test images, at each severity."""
    corruptions: tuple[str, ...] = CORRUPTION_NAMES
    """Corruptions to use with --shift."""
    severities: tuple[Severity, ...] = (1, 2, 3, 4, 5)
    """Severities to use with --shift."""
    ood: tuple[str, ...] = ()
    """Images: sets to tell apart from the test set, e.g. fashion-mnist; `rotations` is the test set
    turned by 90 degrees."""

    def check(self) -> None:
        """Refuse unknown names, repetitions, and a shift of nothing."""
        for name in self.corruptions:
            if name not in CORRUPTION_NAMES:
                raise ValueError(unknown_name_message("corruption", name, CORRUPTION_NAMES))
        for name in self.ood:
            if name != ROTATIONS and data_kind(name) != "image":
                known = (*IMAGE_NAMES, ROTATIONS)
                raise ValueError(f"ood must name image sets ({', '.join(known)}), got {name!r}")
        for name in ("corruptions", "severities"):
            check_unique(name, getattr(self, name), empty=not self.shift)
        check_unique("ood", self.ood, empty=True)


class DataSettings(Settings):
    """Data."""

    split: Literal["thesis", "official"] = "thesis"
    """cola, imdb: the thesis' split of all labelled texts, or the published one."""
    image_size: Count | None = None
    """folder: side to crop and resize the images to."""
    text_column: str = "text"
    """csv: column of the texts."""
    label_column: str = "label"
    """csv: column of the labels."""
    tokenizer: str = WORDS
    """Texts: words, bpe:SIZE (byte pairs), both learned from the training texts, or the path of a
    pretrained tokenizer.json."""
    embeddings: str | None = None
    """Texts: file or folder of precomputed contextual embeddings, in place of the tokenizer."""

    def check(self) -> None:
        """Refuse unknown tokenizers."""
        tokenizer_choice(self.tokenizer)


class WarmStart(Settings):
    """Epochs of a method, of its training's, that are spent on kernel attention first."""

    sgpa: Index = 0
    """Of SGPA, on symmetric kernel attention."""
    cgpt: Index = 0
    """Of CGPT, on asymmetric RBF kernel attention."""
    scgpt: Index = 0
    """Of SCGPT, the same."""


class ClassifySettings(MethodSettings):
    """What is compared, and on what."""

    data: str = "digits"
    """digits, mnist, fashion-mnist, cifar10, cifar100, svhn, cola, imdb; or a set of one's own:
    folder:PATH (images in one folder per class) or csv:PATH (texts and labels, CSV or TSV)."""
    reading: Flat[DataSettings] = DataSettings()
    model: Flat[ImageAndTextSettings] = ImageAndTextSettings()
    warm_start: WarmStart = WarmStart()
    training: Flat[ImageTrainingSettings] = ImageTrainingSettings()
    evaluation: Flat[EvaluationSettings] = EvaluationSettings()

    def check(self) -> None:
        """Refuse unknown data, and settings that don't go together."""
        is_text = self.is_text
        super().check()
        used = {
            "shift": self.evaluation.shift,
            "ood": self.evaluation.ood,
            "augment": self.training.augment != "none",
        }
        if is_text and (wrong := [name for name, given in used.items() if given]):
            raise ValueError(f"{wrong[0]} is for images, and {self.data!r} holds texts")
        for name in trained_methods(self.method):
            warm = self.warm_epochs(name)
            if warm and self.training.epochs - warm <= self.training.warmup_epochs:
                raise ValueError(
                    f"warm_start.{name} must leave more than warmup_epochs="
                    f"{self.training.warmup_epochs} of epochs={self.training.epochs}, got {warm}"
                )

    @property
    def is_text(self) -> bool:
        """Whether the data are texts."""
        return data_kind(self.data) == "text"

    def warm_epochs(self, method: str) -> int:
        """Return the epochs of a method that are spent on kernel attention first."""
        return getattr(self.warm_start, method, 0) if METHODS[method].warm_start else 0


# -- Recipes that two CPU cores finish; the first is the default ----------------------------------

# One corruption of each kind, at the ends and the middle of the scale.
_FEW = EvaluationSettings(
    shift=True,
    corruptions=("gaussian_noise", "gaussian_blur", "contrast", "pixelate"),
    severities=(1, 3, 5),
)
# Adam moves a logarithm by about the learning rate a step. The authors' unit prior variance is unit
# noise on every head, and their random posterior tens of thousands of nats: a short training ends
# before either has come down.
_LITTLE_NOISE = 0.02
# The square of a sum over tokens starts in the hundreds: at the paper's weights it, and not the
# cross-entropy, is what a short training brings down.
_LITTLE_SVD = 0.1
# Thousands of nats for a sequence of 16 tokens: at the paper's weight 1, and still at 0.1, a short
# training makes the attention certain and useless.
_LITTLE_DENSITY = 1e-4
# Every method of the three papers, and their baselines.
ALL_METHODS = (
    *("mle", "mle+ts", "mle+kflla", "mcd-softmax", "svdkl"),
    *("kernel", "kernel+ts", "kernel+kflla", "kernel-asym", "mcd", "mfvi", "sngp"),
    *("sgpa", "cgpt", "scgpt", "kepsvgp", "kepsvgp+ts", "kepsvgp+kflla"),
    *("kernel+ensemble", "sgpa+ensemble", "kepsvgp+ensemble"),
)


def digits_small() -> ClassifySettings:
    """The 8x8 digits of scikit-learn, three methods, three seeds, two minutes."""
    return ClassifySettings(
        data="digits",
        model=ImageAndTextSettings(dim=32, hidden_dim=64, initial_variance=_LITTLE_NOISE),
        sgpa=SGPAConfig(num_inducing=8, initial_posterior="prior"),
        # Four tokens: neither rank nor inducing inputs can be more. At weight 1 the regulariser,
        # hundreds of nats, outweighs the cross-entropy of so short a training.
        cgpt=CGPTConfig(alpha=0.1),
        scgpt=SCGPTConfig(num_inducing=4, alpha=0.1),
        kepsvgp=KEPSVGPConfig(rank=4, eta=_LITTLE_SVD),
        training=ImageTrainingSettings(
            epochs=50, batch_size=128, learning_rate=1e-2, validate_every=10
        ),
        evaluation=replace(_FEW, ood=(ROTATIONS,)),
    )


def mnist_small() -> ClassifySettings:
    """MNIST with 7x7 patches; Fashion-MNIST and rotated test images are the unknown."""
    return ClassifySettings(
        data="mnist",
        model=ImageAndTextSettings(patch_size=7, initial_variance=_LITTLE_NOISE),
        sgpa=SGPAConfig(initial_posterior="prior"),
        cgpt=CGPTConfig(alpha=_LITTLE_DENSITY),
        scgpt=SCGPTConfig(num_inducing=8, alpha=_LITTLE_DENSITY),
        kepsvgp=KEPSVGPConfig(rank=8, eta=_LITTLE_SVD),
        training=ImageTrainingSettings(epochs=5, batch_size=128, checkpoint_every=1),
        evaluation=EvaluationSettings(ood=("fashion-mnist", ROTATIONS)),
    )


def cifar10_small() -> ClassifySettings:
    """CIFAR-10 with 8x8 patches, a few epochs: a look, not a result."""
    return ClassifySettings(
        data="cifar10",
        seeds=(0,),
        model=ImageAndTextSettings(
            depth=3, pooling="sequence", patch_size=8, initial_variance=_LITTLE_NOISE
        ),
        sgpa=SGPAConfig(initial_posterior="prior"),
        cgpt=CGPTConfig(alpha=_LITTLE_DENSITY),
        scgpt=SCGPTConfig(num_inducing=8, alpha=_LITTLE_DENSITY),
        kepsvgp=KEPSVGPConfig(rank=8, eta=_LITTLE_SVD),
        warm_start=WarmStart(sgpa=2, cgpt=2, scgpt=2),
        training=ImageTrainingSettings(epochs=8, batch_size=100, checkpoint_every=1),
        evaluation=_FEW,
    )


def cola_small() -> ClassifySettings:
    """CoLA with short sequences and a few epochs."""
    return ClassifySettings(
        data="cola",
        seeds=(0,),
        model=ImageAndTextSettings(max_length=32),
        sgpa=SGPAConfig(num_inducing=5, kl_anneal=0.0, initial_posterior="prior"),
        cgpt=CGPTConfig(alpha=_LITTLE_DENSITY),
        scgpt=SCGPTConfig(noise=0.5, num_inducing=5, alpha=_LITTLE_DENSITY),
        kepsvgp=KEPSVGPConfig(rank=5, eta=_LITTLE_SVD),
        training=ImageTrainingSettings(epochs=10, learning_rate=5e-4, select="last"),
    )


# -- Recipes of the thesis (app. B.4) -------------------------------------------------------------
#
# Deviations of all papers' recipes: the runs of a recipe share one split of the data, which makes
# ensembles of them possible, where the papers draw one for each run; CoLA has a learned embedding
# in place of ELMo unless `--embeddings` names a file. The thesis pools by the mean; its authors'
# code for images, and the recipes, by learned weights.

_FIVE, _THREE = (0, 1, 2, 3, 4), (0, 1, 2)
_OTHER = {"cifar10": "cifar100", "cifar100": "cifar10"}
_THESIS = (
    *("mle", "kernel", "kernel+ts", "mfvi", "mcd", "kernel+kflla", "sngp", "sgpa"),
    *("kernel+ensemble", "sgpa+ensemble"),
)


def _thesis_cifar(data: str, depth: int, dim: int, *, augment: bool = False) -> ClassifySettings:
    return ClassifySettings(
        data=data,
        method=_THESIS,
        seeds=_FIVE,
        model=ImageAndTextSettings(
            depth=depth, dim=dim, hidden_dim=dim, pooling="sequence", shared_norm=True
        ),
        sgpa=SGPAConfig(num_inducing=32),
        warm_start=WarmStart(sgpa=100),
        training=ImageTrainingSettings(
            epochs=600,
            batch_size=100,
            learning_rate=5e-4,
            warmup_epochs=5,
            augment="three-augment" if augment else "none",
            validate_every=10,
        ),
        evaluation=EvaluationSettings(shift=True, ood=("svhn", _OTHER[data])),
    )


def sgpa_cifar10() -> ClassifySettings:
    """Table B.6: CIFAR-10 without augmentation, ViT with 5 layers of width 128."""
    return _thesis_cifar("cifar10", 5, 128)


def sgpa_imdb() -> ClassifySettings:
    """Table B.4: IMDB, one layer with 8 heads of width 128 in all."""
    return ClassifySettings(
        data="imdb",
        method=_THESIS,
        seeds=_FIVE,
        model=ImageAndTextSettings(depth=1, dim=128, num_heads=8, hidden_dim=128),
        sgpa=SGPAConfig(num_inducing=50, kl_anneal=0.0),
        training=ImageTrainingSettings(
            epochs=20, batch_size=32, final_learning_rate=1e-4, checkpoint_every=1
        ),
    )


def sgpa_cola() -> ClassifySettings:
    """Table B.5: CoLA, 2 layers with 4 heads, width 128, hidden width 256."""
    return ClassifySettings(
        data="cola",
        # Every row that is not for testing trains: nothing to fit a temperature on.
        method=tuple(name for name in _THESIS if name != "kernel+ts"),
        seeds=_FIVE,
        model=ImageAndTextSettings(depth=2, dim=128, hidden_dim=256, max_length=64),
        sgpa=SGPAConfig(num_inducing=5, kl_anneal=0.0),
        training=ImageTrainingSettings(epochs=50, batch_size=32, learning_rate=5e-4, select="last"),
    )


# -- Recipes of CGPT's paper; detection is on Textures, LSUN, TinyImageNet: folders with --ood ----

_CORRELATED = ("kernel", "kernel-asym", "sgpa", "cgpt", "scgpt")


def cgpt_cifar10() -> ClassifySettings:
    """Tables II and III: CIFAR-10, ViT with 5 layers of width 128."""
    return replace(
        sgpa_cifar10(),
        method=_CORRELATED,
        seeds=_THREE,
        warm_start=WarmStart(sgpa=100, cgpt=200, scgpt=200),
    )


def cgpt_cifar10_fixed_alpha() -> ClassifySettings:
    """Table IV: the weight of the regulariser fixed at 0.7."""
    return replace(
        cgpt_cifar10(),
        method=("sgpa", "cgpt"),
        cgpt=CGPTConfig(alpha_start=0.7, alpha=0.7),
        scgpt=SCGPTConfig(alpha_start=0.7, alpha=0.7),
    )


def cgpt_cola() -> ClassifySettings:
    """Table I: CoLA, 2 layers with 4 heads, width 128, hidden width 256."""
    return replace(
        sgpa_cola(),
        method=_CORRELATED,
        seeds=_THREE,
        scgpt=SCGPTConfig(noise=0.5, num_inducing=5),
    )


# -- Recipes of KEP-SVGP's paper (app. D.1); LSUN is a folder with --ood --------------------------

_EIGEN_PAIR = (
    *("mle", "mle+ts", "mcd-softmax", "mle+kflla", "svdkl", "kepsvgp", "mle+ensemble"),
    "kepsvgp+ensemble",
)


def _eigen_pair_cifar(data: str) -> ClassifySettings:
    """Tables 1, 2 and 3: ViT with 7 layers of width 384."""
    return ClassifySettings(
        data=data,
        method=_EIGEN_PAIR,
        seeds=_FIVE,
        model=ImageAndTextSettings(depth=7, dim=384, num_heads=12, hidden_dim=384),
        training=ImageTrainingSettings(
            epochs=300, batch_size=128, warmup_epochs=5, schedule="cosine", augment="crop-flip"
        ),
        evaluation=EvaluationSettings(shift=True, ood=("svhn", _OTHER[data])),
    )


def kepsvgp_imdb() -> ClassifySettings:
    """Tables 1, 4 and 7: IMDB, one layer with 8 heads, width 128."""
    base = sgpa_imdb()
    return replace(
        base,
        method=("sgpa", *_EIGEN_PAIR, "kepsvgp+ts"),
        training=replace(base.training, warmup_epochs=5, schedule="cosine"),
    )


def kepsvgp_cola() -> ClassifySettings:
    """Tables 1, 4 and 7: CoLA as published, 2 layers with 4 heads, width 128, hidden width 256."""
    base = sgpa_cola()
    return replace(
        base,
        # Every row that is not for testing trains: nothing to fit a temperature on.
        method=("sgpa", *(name for name in _EIGEN_PAIR if name != "mle+ts"), "kepsvgp+kflla"),
        reading=DataSettings(split="official"),
        kepsvgp=KEPSVGPConfig(rank=5, eta=1.0),
        training=replace(base.training, warmup_epochs=5, schedule="cosine"),
    )


def kepsvgp_cola_pairs() -> ClassifySettings:
    """Table 5: CoLA, both layers replaced, the pair against twice one of its processes."""
    base = kepsvgp_cola()
    methods = ("mle", "kepsvgp-e", "kepsvgp-r", "kepsvgp")
    return replace(base, method=methods, kepsvgp=replace(base.kepsvgp, layers="all"))


def _of_sgpa_size(base: ClassifySettings) -> ClassifySettings:
    return replace(base, method=("mle", "sgpa", "kepsvgp"))


def _suiting(data: str) -> str:
    """Return the name of the recipe for two CPU cores that suits a data set."""
    if data_kind(data) == "text":
        return "cola-small"
    small = {"digits": "digits-small", "mnist": "mnist-small", "fashion-mnist": "mnist-small"}
    return small.get(data, "cifar10-small")


def _for_data(settings: ClassifySettings, pick: Pick) -> ClassifySettings:
    """Return settings for other data, which then aren't out of distribution."""
    if pick.data is None or pick.data == settings.data:
        return settings
    kept = tuple(name for name in settings.evaluation.ood if name != pick.data)
    return replace(settings, data=pick.data, evaluation=replace(settings.evaluation, ood=kept))


_KNOWN = (
    *(digits_small, mnist_small, cifar10_small, cola_small, sgpa_cifar10, sgpa_imdb, sgpa_cola),
    *(cgpt_cifar10, cgpt_cifar10_fixed_alpha, cgpt_cola),
    *(kepsvgp_imdb, kepsvgp_cola, kepsvgp_cola_pairs),
)
RECIPES = Recipes(
    {
        **{recipe.__name__.replace("_", "-"): recipe for recipe in _KNOWN},
        "digits-all": lambda: replace(digits_small(), method=ALL_METHODS),
        "mnist-all": lambda: replace(mnist_small(), method=ALL_METHODS),
        # Table B.7: with 3-Augment, 6 layers of width 256; Tables B.8 and B.9: CIFAR-100.
        "sgpa-cifar10-aug": lambda: _thesis_cifar("cifar10", 6, 256, augment=True),
        "sgpa-cifar100": lambda: _thesis_cifar("cifar100", 6, 256),
        "sgpa-cifar100-aug": lambda: _thesis_cifar("cifar100", 6, 256, augment=True),
        "kepsvgp-cifar10": lambda: _eigen_pair_cifar("cifar10"),
        "kepsvgp-cifar100": lambda: _eigen_pair_cifar("cifar100"),
        # Table 4: the transformers of SGPA's paper.
        "kepsvgp-cifar10-sgpa-size": lambda: _of_sgpa_size(sgpa_cifar10()),
        "kepsvgp-cifar100-sgpa-size": lambda: _of_sgpa_size(_thesis_cifar("cifar100", 6, 256)),
    },
    "digits-small",
    suits=_suiting,
    adapt=_for_data,
)
