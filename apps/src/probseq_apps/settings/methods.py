"""Methods, `sgpa`, `kernel+ts`, `sgpa+kflla+ensemble`, and the settings that all comparisons have.

A method is a line of METHODS; if its attention has settings of its own, they are a field of
`MethodSettings`, named as the method says. A recipe may have `rows`: methods with own settings.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

from tyro.conf import Fixed, Suppress, arg

from cgpt.spec import CGPTConfig, SCGPTConfig
from kepsvgp.spec import KEPSVGPConfig
from probseq.settings import Bound, Count, Positive, Settings
from probseq.transformers.names import KernelName
from probseq.transformers.spec import (
    AttentionConfig,
    KernelConfig,
    SoftmaxConfig,
    TransformerConfig,
)
from probseq_apps.settings.common import Names, Seeds, check_name, require
from sgpa.spec import SGPAConfig


@dataclass(frozen=True)
class Method:
    """A method that is trained."""

    title: str  # what it is, for reports
    short: str = ""  # in tables and pictures; "" for the title up to a comma
    # Of each block; or the field of the settings that holds it.
    attention: str | AttentionConfig = field(default_factory=SoftmaxConfig)
    changes: Mapping[str, Any] = field(default_factory=dict[str, Any])  # of its attention
    baseline: Literal["mfvi", "sngp", "svdkl"] | None = None  # changes the transformer beside it
    estimator: bool = False  # of scikit-learn, and no transformer at all
    sampled: bool = False  # the prediction is a mean over Monte Carlo samples
    test_dropout: bool = False  # dropout stays active in prediction
    warm_start: AttentionConfig | None = None  # whose weights it may start from, see `WarmStart`


MethodSettingsT = TypeVar("MethodSettingsT", bound="MethodSettings")
SettingsT_co = TypeVar("SettingsT_co", bound="MethodSettings", covariant=True)
_SOFTMAX, _KERNEL = SoftmaxConfig(), KernelConfig()
# The kernel of CGPT and SCGPT is the RBF, for texts too.
_ASYMMETRIC = KernelConfig(symmetric=False)
_ASYMMETRIC_RBF = KernelConfig(symmetric=False, kernel="rbf")
_ML, _DROPOUT = "attention, maximum likelihood", "attention with Monte Carlo dropout"
_SEPARATE_KEYS = "kernel attention with its own projection of the keys, maximum likelihood"
_MFVI = "kernel attention with mean-field variational weights"
_SNGP = "kernel attention with spectral normalisation and a random-feature GP output"
_SVDKL = "softmax attention with a stochastic variational GP output"
_NOISE = "kernel attention with Gaussian noise on the heads' outputs"
_CGPT = "correlated Gaussian process attention"
_PAIR = "kernel-eigen-pair SVGP attention"
METHODS: dict[str, Method] = {
    "logreg": Method("logistic regression", estimator=True),
    "mlp": Method("multilayer perceptron", estimator=True),
    "knn": Method("nearest neighbours", estimator=True),
    "gp": Method("Gaussian process classifier", "Gaussian process", estimator=True),
    "randconv": Method(
        "random convolutions with a linear head", "random convolutions", estimator=True
    ),
    "mle": Method(f"softmax {_ML}", attention=_SOFTMAX),
    "mle-keys": Method(
        f"softmax {_ML}, through learned keys", "softmax attention, learned keys", "softmax_keys"
    ),
    "kernel": Method(f"kernel {_ML}", attention=_KERNEL),
    "kernel-rbf": Method(f"RBF kernel {_ML}", attention=KernelConfig(kernel="rbf")),
    "kernel-exponential": Method(
        f"exponential kernel {_ML}", attention=KernelConfig(kernel="exponential")
    ),
    "kernel-asym": Method(_SEPARATE_KEYS, "kernel attention, its own keys", _ASYMMETRIC),
    "kernel-noise": Method(_NOISE, "kernel attention and noise", "kernel_noise", sampled=True),
    "mcd": Method(
        f"kernel {_DROPOUT}", "kernel, MC dropout", _KERNEL, test_dropout=True, sampled=True
    ),
    "mcd-softmax": Method(
        f"softmax {_DROPOUT}", "softmax, MC dropout", _SOFTMAX, test_dropout=True, sampled=True
    ),
    "mfvi": Method(_MFVI, "mean-field weights", _KERNEL, baseline="mfvi", sampled=True),
    "sngp": Method(_SNGP, "SNGP", _KERNEL, baseline="sngp"),
    "svdkl": Method(_SVDKL, "SV-DKL", _SOFTMAX, baseline="svdkl", sampled=True),
    "sgpa": Method(
        "sparse Gaussian process attention", "SGPA", "sgpa", warm_start=_KERNEL, sampled=True
    ),
    "cgpt": Method(_CGPT, "CGPT", "cgpt", warm_start=_ASYMMETRIC_RBF, sampled=True),
    "scgpt": Method(f"sparse {_CGPT}", "SCGPT", "scgpt", warm_start=_ASYMMETRIC_RBF, sampled=True),
    "kepsvgp": Method(_PAIR, "KEP-SVGP", "kepsvgp", sampled=True),
    **{
        f"kepsvgp-{branch}": Method(
            f"{_PAIR}, the process of the {tokens} twice",
            f"KEP-SVGP, {tokens} twice",
            "kepsvgp",
            {"branches": 2 * branch},
            sampled=True,
        )
        for branch, tokens in (("e", "queries"), ("r", "keys"))
    },
}

# In the order in which they apply.
POST_HOC: dict[str, str] = {
    "kflla": "Kronecker-factored last-layer Laplace approximation",
    "ts": "temperature scaling",
    "ensemble": "deep ensemble over the seeds",
}

_ADDED = {"kflla": "Laplace", "ts": "temperature", "ensemble": "ensemble"}

AT_LEAST_TWO = Bound("a whole number of at least 2", lambda value: value >= 2)
# Settings of model and training that methods cannot have of their own.
_SHARED = {"epochs", "device", "compile", "checkpoint_every", "select", "max_length"}


class Row(NamedTuple):
    """A row of the report: the method whose runs are used, and some of POST_HOC, in its order.

    Of several values of a setting, each is trained, and every seed has the one of lowest validation
    loss.
    """

    name: str  # its own, or that of its method
    base: str
    additions: tuple[str, ...] = ()
    choices: tuple[tuple[str, tuple[Any, ...]], ...] = ()  # settings of its own, and their values

    @property
    def method(self) -> Method:
        """The method whose runs are used."""
        return METHODS[self.base]

    @property
    def variants(self) -> dict[str, dict[str, Any]]:
        """The variants to train for it, by name: of each of its settings one value."""
        names = [name for name, _ in self.choices]
        combinations = product(*(values for _, values in self.choices))
        several = {name for name, values in self.choices if len(values) > 1}
        variants: dict[str, dict[str, Any]] = {}
        for combination in combinations:
            values = dict(zip(names, combination, strict=True))
            suffix = [f"{n}={v}" for n, v in values.items() if n in several]
            variants[",".join((self.name, *suffix))] = values
        return variants

    @property
    def title(self) -> str:
        """Its description, for reports."""
        return ", ".join((self.method.title, *(POST_HOC[name] for name in self.additions)))

    @property
    def short_title(self) -> str:
        """Its name in words, as "SGPA, dropout 0.1 + temperature"."""
        name = self.method.short or self.method.title.partition(",")[0]
        values = [f"{n.replace('_', ' ')} {' or '.join(map(str, v))}" for n, v in self.choices]
        return " + ".join((", ".join((name, *values)), *(_ADDED[each] for each in self.additions)))


@dataclass(frozen=True)
class TrainedMethod(Generic[SettingsT_co]):
    """A row that is trained, with the settings that are its own."""

    base: str  # name of the method
    method: Method
    attention: AttentionConfig
    settings: SettingsT_co  # of this method alone

    @property
    def penalty_weight(self) -> Callable[[float], float] | None:
        """The weight of its penalty by progress; None without a penalty."""
        penalised = self.attention.penalised or self.method.baseline is not None
        return self.attention.penalty_weight if penalised else None

    @property
    def rows(self) -> list[Row]:
        """The rows of the report that it is trained for."""
        return list(map(self.settings.row, self.settings.method))

    def warm_start(self) -> "TrainedMethod[SettingsT_co]":
        """Return the method whose weights it may start from."""
        if self.method.warm_start is None:
            raise ValueError(f"method {self.base!r} starts from no other method's weights")
        source = Method("", attention=self.method.warm_start)
        return replace(self, method=source, attention=self.method.warm_start)


def resolve(variant: str, settings: MethodSettingsT) -> TrainedMethod[MethodSettingsT]:
    """Return a variant of a row, with its own values among the settings.

    A name is that of a setting of its attention, else of the model, else of the training.
    """
    row, rows = settings.row(variant.partition(",")[0]), map(settings.row, settings.method)
    names = ["+".join((row.base, *other.additions)) for other in rows if other.name == row.name]
    changes: dict[str, Any] = {"method": tuple(dict.fromkeys(names)) or (row.base,), "rows": {}}
    attention = row.method.attention
    groups = ["training", "model", *([attention] if isinstance(attention, str) else ())]
    # Of equal names the last: those of the attention come before all others. What all methods must
    # share, or a method has fixed, is not its own.
    fixed = _SHARED | row.method.changes.keys()
    if isinstance(attention, SoftmaxConfig):
        fixed |= {"kernel", "initial_variance"}
    group_of = {each.name: group for group in groups for each in fields(getattr(settings, group))}
    group_of = {name: group for name, group in group_of.items() if name not in fixed}
    for name, value in row.variants[variant].items():
        check_name(f"setting of {row.base!r}", name, group_of)
        group = group_of[name]
        current = changes.get(group, getattr(settings, group))
        try:
            changes[group] = current.from_dict({**current.to_dict(), name: value})
        except ValueError as error:
            raise ValueError(f"row {variant!r}: {error}") from error
    its_settings = replace(settings, **changes)
    config = getattr(its_settings, attention) if isinstance(attention, str) else attention
    config = replace(config, **row.method.changes)
    return TrainedMethod(row.base, row.method, config, its_settings)


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


def _no_rows() -> dict[str, Mapping[str, Any]]:
    return {}


class MethodSettings(Settings):
    """Methods to compare, and the settings of their attention."""

    method: Names = ("mle", "kernel", "sgpa")
    """logreg, mlp, knn, gp (of scikit-learn, no transformers); randconv (random convolutions, of
    sequences); mle (softmax attention), mle-keys (through learned keys, a control), kernel,
    kernel-rbf, kernel-exponential, kernel-asym (asymmetric), mcd and mcd-softmax (Monte Carlo
    dropout), mfvi, sngp, svdkl, sgpa, cgpt, scgpt, kepsvgp, kepsvgp-e and kepsvgp-r (one of its
    processes twice), kernel-noise (Gaussian noise on the heads' outputs, a control), or a row of
    the recipe. Each may be followed by +kflla (Laplace approximation of the last layer), +ts
    (temperature scaling) and +ensemble (mean over the seeds), in this order."""
    rows: Suppress[Fixed[Mapping[str, Mapping[str, Any]]]] = field(
        default_factory=_no_rows, hash=False
    )
    """Methods with settings of their own, by the name of the row: `method`, unless it is the row's
    name, and values by name, of a list that of lowest validation loss."""
    seeds: Seeds = (0, 1, 2)
    """Each method is trained once per seed."""
    ensemble_size: Annotated[int, AT_LEAST_TWO] | None = None
    """Seeds of an ensemble, of which each takes the next ones; None: one ensemble of all."""
    sgpa: SGPAConfig = SGPAConfig()
    cgpt: CGPTConfig = CGPTConfig()
    scgpt: SCGPTConfig = SCGPTConfig()
    kepsvgp: KEPSVGPConfig = KEPSVGPConfig()
    kernel_noise: KernelConfig = KernelConfig(noise=0.1)
    softmax_keys: SoftmaxConfig = SoftmaxConfig(num_keys=16)

    def row(self, name: str) -> Row:
        """Read a row: a method, or one of `rows`, and additions behind it."""
        first, *additions = name.split("+")
        values = dict(self.rows.get(first, {}))
        base = str(values.pop("method", first))
        check_name("method", base, METHODS if first in self.rows else (*METHODS, *self.rows))
        for addition in additions:
            check_name(f"addition to {first!r}", addition, POST_HOC)
        require(
            additions == [addition for addition in POST_HOC if addition in additions],
            f"method {name!r} must take each addition once, in the order {'+'.join(POST_HOC)}",
        )
        require(
            "kflla" not in additions or not METHODS[base].baseline,
            f"method {name!r} must leave out kflla: {base!r} has a posterior already",
        )
        require(
            not METHODS[base].estimator or not (values or "kflla" in additions),
            f"method {name!r} must be {base!r} with ts or ensemble behind it, or alone: it is no "
            "transformer, and its settings are chosen by validation data",
        )
        lists = {
            key: value if isinstance(value, list) else [value] for key, value in values.items()
        }
        return Row(first, base, tuple(additions), tuple((k, tuple(v)) for k, v in lists.items()))

    def trained(self) -> list[str]:
        """Return the names of the variants that must be trained, each once."""
        return list(dict.fromkeys(each for name in self.method for each in self.row(name).variants))

    def check(self) -> None:
        """Refuse unknown methods and settings of theirs, and ensembles of one seed."""
        for row in map(self.row, self.method):
            count, size = len(self.seeds), self.ensemble_size
            if "ensemble" in row.additions:
                require(count > 1, f"an ensemble needs at least two seeds, got {self.seeds}")
                require(
                    size is None or count % size == 0,
                    f"ensemble_size must divide the number of seeds, {count}, got {size}",
                )
            for variant in row.variants if row.choices else ():
                resolve(variant, self)
