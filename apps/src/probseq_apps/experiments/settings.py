"""All settings of `probseq classify`; importable without torch, for the command line.

Their docstrings are the command line's help. What changes the numbers is in `ClassifySettings` and
goes into a run's `config.json`; where things lie and how a run is handled is in `Options`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from tyro.conf import arg

from probseq_apps.data.names import (
    CORRUPTION_NAMES,
    IMAGE_NAMES,
    data_kind,
    tokenizer_choice,
    unknown_name_message,
)
from probseq_apps.engine.config import Precision, Schedule, Selection, TrainConfig
from probseq_apps.experiments.checks import at_least, positive, unique
from probseq_apps.experiments.method_settings import (
    CgptSettings,
    KepsvgpSettings,
    SgpaSettings,
    warm_start_epochs,
)
from probseq_apps.experiments.methods import KernelChoice, base_methods, parse_method
from probseq_apps.settings.common import Flat

ROTATIONS = "rotations"
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Transformer."""

    depth: int = 2
    """Number of blocks."""
    dim: int = 64
    """Width of a token."""
    num_heads: Annotated[int, arg(aliases=["--heads"])] = 4
    """Attention heads; must divide the width."""
    hidden_dim: int = 128
    """Width of the MLP between attention layers."""
    dropout: float = 0.1
    """Dropout rate; also that of Monte Carlo dropout."""
    pooling: Literal["mean", "sequence", "cls"] = "mean"
    """How tokens become one vector: their mean, a learned weighting, or a class token."""
    norm: Literal["pre", "post"] = "pre"
    """Layer norm before each sub-layer or after each residual sum."""
    shared_norm: bool = False
    """One LayerNorm for all blocks."""
    patch_size: int = 4
    """Side of an image patch; must divide the image's side."""
    max_length: int = 512
    """Texts: most tokens of a sequence, the rest is cut."""
    kernel: KernelChoice = "auto"
    """Kernel of kernel attention and SGPA; auto: RBF for images, exponential for texts."""
    initial_variance: float | None = None
    """Variance of that kernel to start from; None: 1 for RBF, e^-4 for exponential."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ValueError: names the setting.
        """
        for name in ("depth", "dim", "num_heads", "hidden_dim", "patch_size", "max_length"):
            at_least(name, getattr(self, name), 1)
        if self.dim % self.num_heads:
            raise ValueError(f"num_heads must divide dim={self.dim}, got {self.num_heads}")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")
        if self.initial_variance is not None:
            positive("initial_variance", self.initial_variance)


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Training."""

    epochs: int = 30
    """Passes over the training data, for each method."""
    batch_size: int = 64
    """Examples per optimizer step."""
    learning_rate: Annotated[float, arg(aliases=["--lr"])] = 1e-3
    """Adam's step size after the warm-up."""
    final_learning_rate: Annotated[float, arg(aliases=["--final-lr"])] = 1e-5
    """Step size at the last step."""
    warmup_epochs: int = 0
    """Epochs in which the step size rises from zero."""
    schedule: Schedule = "linear"
    """Way from the first to the final step size."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    grad_clip: float | None = None
    """Largest norm of the gradient."""
    augment: Literal["none", "crop-flip", "three-augment"] = "none"
    """Images: augmentation of the training batches."""
    validate_every: int = 1
    """Epochs between two validations."""
    select: Selection = "best"
    """Weights to evaluate: those of the best validation score, or the last."""
    checkpoint_every: int = 10
    """Epochs between two checkpoints."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    precision: Precision = "float32"
    """bf16 trains under autocast; evaluation is always in float32."""
    compile: bool = False
    """Train through torch.compile."""
    tensorboard: bool = False
    """Also write TensorBoard events."""

    def __post_init__(self) -> None:
        """Refuse what `TrainConfig` refuses.

        Raises:
            ValueError: names the setting.
        """
        self.train_config(seed=0)

    def train_config(self, *, seed: int) -> TrainConfig:
        """Settings of the training loop for one run."""
        values = asdict(self)
        del values["augment"]
        return TrainConfig(**values, seed=seed)


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """Evaluation."""

    num_samples: int = 10
    """Monte Carlo samples of a prediction, for the methods that sample."""
    shift: bool = False
    """Images: evaluate under corruptions of the test images, at each severity."""
    corruptions: tuple[str, ...] = CORRUPTION_NAMES
    """Corruptions to use with --shift."""
    severities: tuple[int, ...] = (1, 2, 3, 4, 5)
    """Severities to use with --shift."""
    ood: tuple[str, ...] = ()
    """Images: sets to tell apart from the test set, e.g. fashion-mnist; `rotations` is the test set
    turned by 90 degrees; folder:PATH takes all images in a folder, which needs neither classes nor
    parts."""

    def __post_init__(self) -> None:
        """Refuse unknown names and numbers out of range.

        Raises:
            ValueError: names the setting.
        """
        at_least("num_samples", self.num_samples, 1)
        for name in self.corruptions:
            if name not in CORRUPTION_NAMES:
                raise ValueError(unknown_name_message("corruption", name, CORRUPTION_NAMES))
        for severity in self.severities:
            if severity not in range(1, 6):
                raise ValueError(f"severities must be from 1 to 5, got {severity}")
        for name in self.ood:
            if name != ROTATIONS and data_kind(name) != "image":
                known = (*IMAGE_NAMES, ROTATIONS)
                raise ValueError(f"ood must name image sets ({', '.join(known)}), got {name!r}")
        for name in ("corruptions", "severities"):
            if self.shift and not getattr(self, name):
                raise ValueError(f"{name} must name at least one for shift, got none")
        for name in ("corruptions", "severities", "ood"):
            unique(name, getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Data."""

    split: Literal["thesis", "official"] = "thesis"
    """cola, imdb: the thesis' split of all labelled texts, or the published one."""
    image_size: int | None = None
    """folder: side to crop and resize the images to."""
    text_column: str = "text"
    """csv: column of the texts."""
    label_column: str = "label"
    """csv: column of the labels."""
    tokenizer: str = "words"
    """Texts: words, bpe:SIZE (byte pairs), both learned from the training texts, or the path of a
    pretrained tokenizer.json."""
    embeddings: str | None = None
    """Texts: file or folder of precomputed contextual embeddings, in place of the tokenizer."""

    def __post_init__(self) -> None:
        """Refuse unknown names and numbers out of range.

        Raises:
            ValueError: names the setting.
        """
        tokenizer_choice(self.tokenizer)
        if self.image_size is not None:
            at_least("image_size", self.image_size, 1)


@dataclass(frozen=True, kw_only=True)
class ClassifySettings:
    """What is compared, and on what."""

    data: str = "digits"
    """digits, mnist, fashion-mnist, cifar10, cifar100, svhn, cola, imdb; or a set of one's own:
    folder:PATH (images in one folder per class) or csv:PATH (texts and labels, CSV or TSV)."""
    method: tuple[str, ...] = ("mle", "kernel", "sgpa")
    """mle (softmax attention), kernel, kernel-rbf, kernel-exponential, kernel-asym (asymmetric),
    mcd and mcd-softmax (Monte Carlo dropout), mfvi, sngp, svdkl, sgpa, cgpt, scgpt, kepsvgp,
    kepsvgp-e and kepsvgp-r (one of its processes twice); each may be followed by +kflla (Laplace
    approximation of the last layer), +ts (temperature scaling) and +ensemble (mean over the
    seeds)."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Each method is trained once per seed."""
    reading: Flat[DataSettings] = field(default_factory=DataSettings)
    model: Flat[ModelSettings] = field(default_factory=ModelSettings)
    sgpa: Flat[SgpaSettings] = field(default_factory=SgpaSettings)
    cgpt: Flat[CgptSettings] = field(default_factory=CgptSettings)
    kepsvgp: Flat[KepsvgpSettings] = field(default_factory=KepsvgpSettings)
    training: Flat[TrainingSettings] = field(default_factory=TrainingSettings)
    evaluation: Flat[EvaluationSettings] = field(default_factory=EvaluationSettings)

    def __post_init__(self) -> None:
        """Refuse unknown names and settings that don't go together.

        Raises:
            ValueError: names the setting.
        """
        kind = data_kind(self.data)
        for name, values in (("method", self.method), ("seeds", self.seeds)):
            if not values:
                raise ValueError(f"{name} must name at least one, got none")
            unique(name, values)
        for name in self.method:
            parsed = parse_method(name)
            if parsed.ensemble and len(self.seeds) < 2:
                raise ValueError(f"method {name!r} needs at least two seeds, got {self.seeds}")
        for seed in self.seeds:
            at_least("seeds", seed, 0)
        if kind == "text":
            for name, used in (
                ("shift", self.evaluation.shift),
                ("ood", self.evaluation.ood),
                ("augment", self.training.augment != "none"),
            ):
                if used:
                    raise ValueError(f"{name} is for images, and {self.data!r} holds texts")
        for spec in base_methods(self.method):
            warm = warm_start_epochs(spec, self.sgpa, self.cgpt)
            if warm and self.training.epochs - warm <= self.training.warmup_epochs:
                setting = "" if spec.attention == "sgpa" else "cgpt_"
                raise ValueError(
                    f"{setting}warm_start_epochs must leave {spec.name} more than warmup_epochs="
                    f"{self.training.warmup_epochs} of epochs={self.training.epochs}, got {warm}"
                )

    @property
    def is_text(self) -> bool:
        """Whether the data are texts."""
        return data_kind(self.data) == "text"

    def to_dict(self) -> dict[str, object]:
        """Plain values that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ClassifySettings":
        """Build from plain values, as a run's `config.json` holds them.

        Raises:
            ValueError: a key is unknown or a value is refused.
        """
        return settings_from_dict(cls, values)


def settings_from_dict(cls: type[T], values: Mapping[str, Any]) -> T:
    """Build nested settings from plain values, as a run's `config.json` holds them.

    Args:
        cls: a dataclass of settings, whose groups are such classes, too.
        values: by name; what is left out keeps its default.

    Raises:
        ValueError: a key is unknown or a value is refused.
    """
    known = {item.name: item for item in fields(cls)}  # pyright: ignore[reportArgumentType]
    if unknown := sorted(values.keys() - known.keys()):
        raise ValueError(f"unknown settings {', '.join(unknown)}; known are {', '.join(known)}")
    kinds, built = get_type_hints(cls), dict[str, Any]()
    for name, value in values.items():
        kind = kinds[name]
        if isinstance(value, Mapping) and isinstance(kind, type):
            built[name] = settings_from_dict(kind, value)
        else:
            # JSON has lists where the settings have tuples.
            built[name] = tuple(value) if isinstance(value, list) else value
    return cls(**built)
