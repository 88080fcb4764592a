"""Names of methods: `sgpa`, `kernel+ts`, `sgpa+ts+ensemble`; importable without torch."""

from dataclasses import dataclass
from typing import Literal

from probseq_apps.data.names import unknown_name_message

AttentionKind = Literal["softmax", "kernel", "sgpa"]
KernelChoice = Literal["auto", "rbf", "exponential"]


@dataclass(frozen=True, kw_only=True)
class MethodSpec:
    """A method that is trained.

    Attributes:
        name: name on the command line.
        title: what it is, for reports.
        attention: attention module of each block.
        kernel: kernel of the attention; `auto` leaves it to the settings.
        sampled: the prediction is a mean over Monte Carlo samples.
        test_dropout: dropout stays active in prediction.
    """

    name: str
    title: str
    attention: AttentionKind
    kernel: KernelChoice = "auto"
    sampled: bool = False
    test_dropout: bool = False


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
        name="mcd",
        title="kernel attention with Monte Carlo dropout",
        attention="kernel",
        sampled=True,
        test_dropout=True,
    ),
    MethodSpec(
        name="sgpa", title="sparse Gaussian process attention", attention="sgpa", sampled=True
    ),
)
BASE_METHODS: dict[str, MethodSpec] = {spec.name: spec for spec in _SPECS}

# In the order in which they apply.
POST_HOC: dict[str, str] = {
    "ts": "temperature scaling",
    "ensemble": "deep ensemble over the seeds",
}


@dataclass(frozen=True)
class Method:
    """A row of the report: a trained method and what is done with its predictions.

    Attributes:
        base: the method whose runs are used.
        temperature: scale the predictions by a temperature fitted on the validation set.
        ensemble: average the predictions of all seeds.
    """

    base: MethodSpec
    temperature: bool = False
    ensemble: bool = False

    @property
    def name(self) -> str:
        """Name on the command line."""
        return self.base.name + "+ts" * self.temperature + "+ensemble" * self.ensemble

    @property
    def title(self) -> str:
        """What it is, for reports."""
        parts = [self.base.title]
        if self.temperature:
            parts.append(POST_HOC["ts"])
        if self.ensemble:
            parts.append(POST_HOC["ensemble"])
        return ", ".join(parts)


def parse_method(name: str) -> Method:
    """Read a method name.

    Args:
        name: a base method, then any of `+ts` and `+ensemble` in this order, each once.

    Raises:
        ValueError: the name is unknown; the message names the nearest known one.
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
    return Method(BASE_METHODS[base], "ts" in suffixes, "ensemble" in suffixes)


def base_methods(names: tuple[str, ...]) -> tuple[MethodSpec, ...]:
    """Methods that must be trained for these rows, each once, in order of appearance."""
    return tuple({parse_method(name).base.name: parse_method(name).base for name in names}.values())
