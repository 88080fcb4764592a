"""Names of methods: `sgpa`, `kernel+ts`, `sgpa+kflla+ensemble`; importable without torch."""

from dataclasses import dataclass
from typing import Literal

from probseq_apps.data.names import unknown_name_message

AttentionKind = Literal["softmax", "kernel", "sgpa", "cgpt", "scgpt", "kepsvgp"]
KernelChoice = Literal["auto", "rbf", "exponential"]
BaselineKind = Literal["mfvi", "sngp", "svdkl"]
Branches = Literal["er", "ee", "rr"]


@dataclass(frozen=True, kw_only=True)
class MethodSpec:
    """A method that is trained.

    Attributes:
        name: name on the command line.
        title: what it is, for reports.
        attention: attention module of each block.
        kernel: kernel of the attention; `auto` leaves it to the settings.
        symmetric: queries and keys of kernel attention share their projection.
        branches: the pair of processes of KEP-SVGP, or twice one of them.
        baseline: what is changed in the transformer beside its attention.
        sampled: the prediction is a mean over Monte Carlo samples.
        test_dropout: dropout stays active in prediction.
    """

    name: str
    title: str
    attention: AttentionKind
    kernel: KernelChoice = "auto"
    symmetric: bool = True
    branches: Branches = "er"
    baseline: BaselineKind | None = None
    sampled: bool = False
    test_dropout: bool = False

    @property
    def has_penalty(self) -> bool:
        """Whether the loss holds more than the negative log likelihood."""
        return self.attention not in ("softmax", "kernel") or self.baseline is not None


_SPECS = (
    MethodSpec(name="mle", title="softmax attention, maximum likelihood", attention="softmax"),
    MethodSpec(name="kernel", title="kernel attention, maximum likelihood", attention="kernel"),
    MethodSpec(
        name="kernel-rbf",
        title="RBF kernel attention, maximum likelihood",
        attention="kernel",
        kernel="rbf",
    ),
    MethodSpec(
        name="kernel-exponential",
        title="exponential kernel attention, maximum likelihood",
        attention="kernel",
        kernel="exponential",
    ),
    MethodSpec(
        name="kernel-asym",
        title="kernel attention with its own projection of the keys, maximum likelihood",
        attention="kernel",
        symmetric=False,
    ),
    MethodSpec(
        name="mcd",
        title="kernel attention with Monte Carlo dropout",
        attention="kernel",
        sampled=True,
        test_dropout=True,
    ),
    MethodSpec(
        name="mcd-softmax",
        title="softmax attention with Monte Carlo dropout",
        attention="softmax",
        sampled=True,
        test_dropout=True,
    ),
    MethodSpec(
        name="mfvi",
        title="kernel attention with mean-field variational weights",
        attention="kernel",
        baseline="mfvi",
        sampled=True,
    ),
    MethodSpec(
        name="sngp",
        title="kernel attention with spectral normalisation and a random-feature GP output",
        attention="kernel",
        baseline="sngp",
    ),
    MethodSpec(
        name="svdkl",
        title="softmax attention with a stochastic variational GP output",
        attention="softmax",
        baseline="svdkl",
        sampled=True,
    ),
    MethodSpec(
        name="sgpa", title="sparse Gaussian process attention", attention="sgpa", sampled=True
    ),
    MethodSpec(
        name="cgpt", title="correlated Gaussian process attention", attention="cgpt", sampled=True
    ),
    MethodSpec(
        name="scgpt",
        title="sparse correlated Gaussian process attention",
        attention="scgpt",
        sampled=True,
    ),
    MethodSpec(
        name="kepsvgp",
        title="kernel-eigen-pair SVGP attention",
        attention="kepsvgp",
        sampled=True,
    ),
    MethodSpec(
        name="kepsvgp-e",
        title="kernel-eigen-pair SVGP attention, the process of the queries twice",
        attention="kepsvgp",
        branches="ee",
        sampled=True,
    ),
    MethodSpec(
        name="kepsvgp-r",
        title="kernel-eigen-pair SVGP attention, the process of the keys twice",
        attention="kepsvgp",
        branches="rr",
        sampled=True,
    ),
)
BASE_METHODS: dict[str, MethodSpec] = {spec.name: spec for spec in _SPECS}

# In the order in which they apply.
POST_HOC: dict[str, str] = {
    "kflla": "Kronecker-factored last-layer Laplace approximation",
    "ts": "temperature scaling",
    "ensemble": "deep ensemble over the seeds",
}


@dataclass(frozen=True)
class Method:
    """A row of the report: a trained method and what is done with it afterwards.

    Attributes:
        base: the method whose runs are used.
        laplace: predict with a Laplace approximation of the last layer's posterior.
        temperature: scale the predictions by a temperature fitted on the validation set.
        ensemble: average the predictions of all seeds.
    """

    base: MethodSpec
    laplace: bool = False
    temperature: bool = False
    ensemble: bool = False

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The additions, in the order in which they apply."""
        used = (self.laplace, self.temperature, self.ensemble)
        return tuple(name for name, is_used in zip(POST_HOC, used, strict=True) if is_used)

    @property
    def name(self) -> str:
        """Name on the command line."""
        return "+".join((self.base.name, *self.suffixes))

    @property
    def title(self) -> str:
        """What it is, for reports."""
        return ", ".join((self.base.title, *(POST_HOC[name] for name in self.suffixes)))


def parse_method(name: str) -> Method:
    """Read a method name.

    Args:
        name: a base method, then any of `+kflla`, `+ts` and `+ensemble` in this order, each once.

    Raises:
        ValueError: the name is unknown; the message names the nearest known one. Or the addition
            means nothing to the method.
    """
    base, *suffixes = name.split("+")
    if base not in BASE_METHODS:
        raise ValueError(unknown_name_message("method", base, BASE_METHODS))
    for suffix in suffixes:
        if suffix not in POST_HOC:
            raise ValueError(unknown_name_message(f"addition to {base!r}", suffix, POST_HOC))
    if suffixes != [suffix for suffix in POST_HOC if suffix in suffixes]:
        raise ValueError(
            f"method {name!r} must take each addition once, in the order {'+'.join(POST_HOC)}"
        )
    spec = BASE_METHODS[base]
    if "kflla" in suffixes and spec.baseline is not None:
        raise ValueError(
            f"method {name!r} must leave out kflla: {base!r} has a posterior over its last layer "
            "of its own"
        )
    return Method(spec, *(suffix in suffixes for suffix in POST_HOC))


def base_methods(names: tuple[str, ...]) -> tuple[MethodSpec, ...]:
    """Methods that must be trained for these rows, each once, in order of appearance."""
    return tuple({parse_method(name).base.name: parse_method(name).base for name in names}.values())


def laplace_is_wanted(names: tuple[str, ...], spec: MethodSpec) -> bool:
    """Whether any of these rows needs the Laplace approximation of a trained method."""
    return any(m.laplace and m.base == spec for m in map(parse_method, names))
