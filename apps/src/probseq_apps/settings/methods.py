"""Methods, `sgpa`, `kernel+ts`, `sgpa+kflla+ensemble`, and the settings that all comparisons have.

A method is a line of METHODS; if its attention has settings of its own, they are a field of
`MethodSettings`, named as the method says.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from tyro.conf import arg

from cgpt.spec import CGPTConfig, SCGPTConfig
from kepsvgp.spec import KEPSVGPConfig
from probseq.settings import Count, Index, NotNegative, Positive, Settings
from probseq.transformers.names import KernelName
from probseq.transformers.spec import (
    AttentionConfig,
    KernelConfig,
    SoftmaxConfig,
    TransformerConfig,
)
from probseq_apps.data.names import unknown_name_message
from probseq_apps.engine.config import Precision, Schedule, Selection, TrainConfig
from probseq_apps.settings.common import check_unique
from sgpa.spec import SGPAConfig

BaselineName = Literal["mfvi", "sngp", "svdkl"]


@dataclass(frozen=True)
class Method:
    """A method that is trained.

    Attributes:
        title: what it is, for reports.
        attention: of each block; or the field of the settings that holds it.
        changes: what of it is different in this method.
        baseline: what is changed in the transformer beside its attention.
        sampled: the prediction is a mean over Monte Carlo samples.
        test_dropout: dropout stays active in prediction.
        warm_start: kernel attention whose weights it may start from, see `WarmStart`.
    """

    title: str
    attention: str | AttentionConfig
    changes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    baseline: BaselineName | None = None
    sampled: bool = False
    test_dropout: bool = False
    warm_start: AttentionConfig | None = None

    def config(self, settings: object) -> AttentionConfig:
        """Return the settings of its attention."""
        own = self.attention
        return replace(getattr(settings, own) if isinstance(own, str) else own, **self.changes)


_SOFTMAX, _KERNEL = SoftmaxConfig(), KernelConfig()
_RBF, _EXPONENTIAL = KernelConfig(kernel="rbf"), KernelConfig(kernel="exponential")
_ASYMMETRIC = KernelConfig(symmetric=False)
# The kernel of CGPT and SCGPT is the RBF, for texts too.
_ASYMMETRIC_RBF = KernelConfig(symmetric=False, kernel="rbf")
_PAIR = "kernel-eigen-pair SVGP attention"

METHODS: dict[str, Method] = {
    "mle": Method("softmax attention, maximum likelihood", _SOFTMAX),
    "kernel": Method("kernel attention, maximum likelihood", _KERNEL),
    "kernel-rbf": Method("RBF kernel attention, maximum likelihood", _RBF),
    "kernel-exponential": Method("exponential kernel attention, maximum likelihood", _EXPONENTIAL),
    "kernel-asym": Method(
        "kernel attention with its own projection of the keys, maximum likelihood", _ASYMMETRIC
    ),
    "mcd": Method(
        "kernel attention with Monte Carlo dropout", _KERNEL, sampled=True, test_dropout=True
    ),
    "mcd-softmax": Method(
        "softmax attention with Monte Carlo dropout", _SOFTMAX, sampled=True, test_dropout=True
    ),
    "mfvi": Method(
        "kernel attention with mean-field variational weights",
        _KERNEL,
        baseline="mfvi",
        sampled=True,
    ),
    "sngp": Method(
        "kernel attention with spectral normalisation and a random-feature GP output",
        _KERNEL,
        baseline="sngp",
    ),
    "svdkl": Method(
        "softmax attention with a stochastic variational GP output",
        _SOFTMAX,
        baseline="svdkl",
        sampled=True,
    ),
    "sgpa": Method("sparse Gaussian process attention", "sgpa", sampled=True, warm_start=_KERNEL),
    "cgpt": Method(
        "correlated Gaussian process attention", "cgpt", sampled=True, warm_start=_ASYMMETRIC_RBF
    ),
    "scgpt": Method(
        "sparse correlated Gaussian process attention",
        "scgpt",
        sampled=True,
        warm_start=_ASYMMETRIC_RBF,
    ),
    "kepsvgp": Method(_PAIR, "kepsvgp", sampled=True),
    "kepsvgp-e": Method(
        f"{_PAIR}, the process of the queries twice", "kepsvgp", {"branches": "ee"}, sampled=True
    ),
    "kepsvgp-r": Method(
        f"{_PAIR}, the process of the keys twice", "kepsvgp", {"branches": "rr"}, sampled=True
    ),
}

# In the order in which they apply.
POST_HOC: dict[str, str] = {
    "kflla": "Kronecker-factored last-layer Laplace approximation",
    "ts": "temperature scaling",
    "ensemble": "deep ensemble over the seeds",
}


@dataclass(frozen=True)
class Row:
    """A row of the report: a trained method and what is done with it afterwards.

    Attributes:
        base: name of the method whose runs are used.
        additions: some of POST_HOC, in its order.
    """

    base: str
    additions: tuple[str, ...] = ()

    @property
    def method(self) -> Method:
        """The method whose runs are used."""
        return METHODS[self.base]

    @property
    def title(self) -> str:
        """What it is, for reports."""
        return ", ".join((self.method.title, *(POST_HOC[name] for name in self.additions)))


def parse_row(name: str) -> Row:
    """Read a method with its additions: any of `+kflla`, `+ts`, `+ensemble` in this order.

    Raises:
        ValueError: a name is unknown, or an addition means nothing to the method.
    """
    base, *additions = name.split("+")
    if base not in METHODS:
        raise ValueError(unknown_name_message("method", base, METHODS))
    for addition in additions:
        if addition not in POST_HOC:
            raise ValueError(unknown_name_message(f"addition to {base!r}", addition, POST_HOC))
    if additions != [addition for addition in POST_HOC if addition in additions]:
        raise ValueError(
            f"method {name!r} must take each addition once, in the order {'+'.join(POST_HOC)}"
        )
    if "kflla" in additions and METHODS[base].baseline is not None:
        raise ValueError(
            f"method {name!r} must leave out kflla: {base!r} has a posterior over its last layer "
            "of its own"
        )
    return Row(base, tuple(additions))


def trained_methods(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the methods that must be trained for these rows, each once."""
    return tuple(dict.fromkeys(parse_row(name).base for name in names))


class BackboneSettings(TransformerConfig):
    """Transformer."""

    depth: Count = 2
    dim: Count = 64
    num_heads: Annotated[Count, arg(aliases=["--heads"])] = 4
    hidden_dim: Count = 128
    kernel: KernelName | Literal["auto"] = "auto"
    """Kernel of kernel attention and SGPA; auto: exponential for texts, RBF for all else."""
    initial_variance: Positive | None = None
    """Variance of that kernel to start from; None: 1 for RBF, e^-4 for exponential."""


class TrainingSettings(Settings):
    """Training."""

    epochs: Count = 30
    """Passes over the training data, for each method."""
    batch_size: Count = 64
    """Examples per optimizer step."""
    learning_rate: Annotated[Positive, arg(aliases=["--lr"])] = 1e-3
    """Adam's step size after the warm-up."""
    final_learning_rate: Annotated[NotNegative, arg(aliases=["--final-lr"])] = 1e-5
    """Step size at the last step."""
    warmup_epochs: Index = 0
    """Epochs in which the step size rises from zero."""
    schedule: Schedule = "linear"
    """Way from the first to the final step size."""
    weight_decay: NotNegative = 0.0
    """Decoupled weight decay."""
    grad_clip: Positive | None = None
    """Largest norm of the gradient."""
    validate_every: Count = 1
    """Epochs between two validations."""
    select: Selection = "best"
    """Weights to evaluate: those of the best validation score, or the last."""
    checkpoint_every: Count = 10
    """Epochs between two checkpoints."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    precision: Precision = "float32"
    """bf16 trains under autocast; evaluation is always in float32."""
    compile: bool = False
    """Train through torch.compile."""
    tensorboard: bool = False
    """Also write TensorBoard events."""

    def check(self) -> None:
        """Refuse what `TrainConfig` refuses."""
        self.train_config(seed=0)

    def train_config(self, *, seed: int) -> TrainConfig:
        """Return the settings of the training loop for one run."""
        values = self.to_dict()
        values.pop("augment", None)
        return TrainConfig(**values, seed=seed)


class MethodSettings(Settings):
    """Which methods are compared, and the settings of their attention."""

    method: tuple[str, ...] = ("mle", "kernel", "sgpa")
    """mle (softmax attention), kernel, kernel-rbf, kernel-exponential, kernel-asym (asymmetric),
    mcd and mcd-softmax (Monte Carlo dropout), mfvi, sngp, svdkl, sgpa, cgpt, scgpt, kepsvgp,
    kepsvgp-e and kepsvgp-r (one of its processes twice); each may be followed by +kflla (Laplace
    approximation of the last layer), +ts (temperature scaling) and +ensemble (mean over the
    seeds)."""
    seeds: tuple[Index, ...] = (0, 1, 2)
    """Each method is trained once per seed."""
    sgpa: SGPAConfig = SGPAConfig()
    cgpt: CGPTConfig = CGPTConfig()
    scgpt: SCGPTConfig = SCGPTConfig()
    kepsvgp: KEPSVGPConfig = KEPSVGPConfig()

    def check(self) -> None:
        """Refuse unknown methods, repetitions, and ensembles of one seed."""
        for name in ("method", "seeds"):
            check_unique(name, getattr(self, name))
        for name in self.method:
            if "ensemble" in parse_row(name).additions and len(self.seeds) < 2:
                raise ValueError(f"method {name!r} needs at least two seeds, got {self.seeds}")
