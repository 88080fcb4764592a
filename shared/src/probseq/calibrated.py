"""A classifier with calibrated probabilities: how it is called, saved and told."""

import json
import math
import threading
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from probseq.batches import call_model, read_logits, to_log_probs
from probseq.files import Format, hash_module, read_tensors, unwrap, write_tensors
from probseq.laplace import LogitVariance

FORMAT, FILE = Format("calibration", 1), "calibration.safetensors"
_BUFFERS = ("temperature", "threshold", "least_probability", "most_entropy")
# Calls of last layers in the call of a calibrated model.
_CALLS: ContextVar[list[tuple[nn.Module, Tensor]] | None] = ContextVar("calls", default=None)
_LOCK, _BORROWED = threading.Lock(), Counter[nn.Module]()


class CandidateRow(NamedTuple):
    """Measurements of a candidate on the third that chose; halves are of 95 % intervals."""

    name: str
    nll: float
    nll_half: float
    ece: float
    ece_half: float
    accuracy: float
    accuracy_half: float
    difference: float  # of the NLL, to that of the model as it is
    difference_half: float


class Decision(NamedTuple):
    """Decisions on inputs, row by row.

    An input is unknown whose entropy is NaN, or above the threshold that unknown inputs fitted.
    """

    label: Int64[Tensor, " batch"]  # number of the most probable class
    confidence: Float[Tensor, " batch"]  # its probability
    accepted: Bool[Tensor, " batch"]  # not unknown, with a confidence above the threshold
    sets: Bool[Tensor, "batch classes"]  # the true class is in them with the probability asked for
    unknown: Bool[Tensor, " batch"]


class Calibrated(nn.Module):
    """A classifier with calibrated probabilities; :func:`calibrate` makes it.

    It is called as the model is, or on logits where only these were calibrated, and returns
    logarithms of probabilities. All that was fitted is in buffers; `facts`, of what was measured,
    chosen and decided, are the extra state of ``state_dict``, as JSON.
    """

    def __init__(self, models: Sequence[Any], output: Any = None) -> None:
        super().__init__()
        self.models = nn.ModuleList(each for each in models if isinstance(each, nn.Module))
        self.functions = [each for each in models if not isinstance(each, nn.Module)]
        self.output, self.facts = output, dict[str, Any]()
        self.variance: LogitVariance | None = None
        for name, value in zip(_BUFFERS, (1.0, -math.inf, 0.0, math.inf), strict=True):
            self.register_buffer(name, torch.tensor(value, dtype=torch.float64))
        self.temperature: Tensor
        self.threshold: Tensor
        self.least_probability: Tensor
        self.most_entropy: Tensor

    @property
    def rows(self) -> list[CandidateRow]:
        """Measurements of the candidates."""
        return [CandidateRow(*row) for row in self.facts["rows"]]

    @property
    def chosen(self) -> str:
        """Name of the candidate that is served."""
        return self.facts["chosen"]

    def train(self, mode: bool = True) -> "Calibrated":
        """Set this flag; models go into evaluation mode alone."""
        self.training = mode
        if not mode:
            self.models.eval()
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Calibrated":
        # Models may go into half precision, in which a threshold would be another.
        exact = {name: getattr(self, name) for name in _BUFFERS}
        super()._apply(fn, recurse)
        for name, value in exact.items():
            setattr(self, name, value.to(getattr(self, name).device))
        return self

    @torch.no_grad()
    def forward(self, *inputs: Any, **named: Any) -> Float[Tensor, "batch classes"]:
        """Return logarithms of calibrated probabilities, in float32 at least."""
        kinds = cast("list[str]", self.facts["kinds"])
        members = [*self.models, *self.functions]
        if not members:
            outputs = [read_logits(inputs[0], self.output)]
        else:
            arguments = inputs[0] if len(inputs) == 1 else inputs or named
            further = named if inputs else {}
            outputs = [self._logits(member, arguments, further) for member in members]
        log_probs = [to_log_probs(o, kind) for o, kind in zip(outputs, kinds, strict=True)]
        mean = log_probs[0]
        if mean.shape[-1] != self.facts["classes"]:
            raise ValueError(
                f"model must give outputs of {self.facts['classes']} classes, as when it was "
                f"calibrated, got {mean.shape[-1]}"
            )
        if len(members) > 1:
            mean = torch.logsumexp(torch.stack(log_probs), 0) - math.log(len(members))
        return (mean / self.temperature.to(mean)).log_softmax(-1)

    def _logits(self, member: Any, arguments: Any, further: dict[str, Any]) -> Tensor:
        if self.variance is None:
            return predict(member, arguments, self.output, **further)
        calls: list[tuple[nn.Module, Tensor]] = []
        reset = _CALLS.set(calls)
        try:  # written out, and not `predict`, which torch.compile cannot follow with calls noted
            with _evaluating(member):
                logits = read_logits(call_model(member, arguments, **further), self.output)
        finally:
            _CALLS.reset(reset)
        layer = plain_modules(member)[self.facts["layer"]]
        features = next(values for module, values in calls[::-1] if module is layer)
        return self.variance.scale(logits, features)

    def decide(self, *inputs: Any, **named: Any) -> Decision:
        """Say for each input which class it is, and whether that is to be trusted."""
        return self.decide_from(self(*inputs, **named))

    def decide_from(self, log_probs: Float[Tensor, "batch classes"]) -> Decision:
        """Decide on what a call returned."""
        probs = log_probs.exp()
        confidence, label = probs.max(-1)
        # Written so that NaN is unknown, and any class may be the true one.
        unknown = ~(entropy(log_probs) <= self.most_entropy)
        accepted = (confidence > self.threshold) & ~unknown
        return Decision(label, confidence, accepted, ~(probs < self.least_probability), unknown)

    def set_variance(self, layer: str, variance: LogitVariance) -> None:
        """Scale logits by the variances that a posterior of a linear layer gives them."""
        linear = cast("nn.Linear", plain_modules(self.models[0])[layer])
        self.variance = variance.to(linear.weight.device)
        if _record_call not in linear._forward_hooks.values():  # pyright: ignore[reportPrivateUsage]
            linear.register_forward_hook(_record_call)

    def get_extra_state(self) -> Tensor:
        """Return the facts as bytes."""
        return torch.tensor(list(json.dumps(self.facts).encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Take over facts."""
        self.facts = json.loads(bytes(state.tolist()))

    def _load_from_state_dict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, state: Any, prefix: str, *others: Any
    ) -> None:
        # A posterior comes with the state, or goes.
        basis, weights = (state.get(f"{prefix}variance.{n}") for n in ("basis", "weights"))
        self.variance = None
        if basis is not None:
            facts = json.loads(bytes(state[f"{prefix}_extra_state"].tolist()))
            variance = LogitVariance(basis.clone(), weights.clone(), facts["bias"])
            self.set_variance(facts["layer"], variance)
        super()._load_from_state_dict(state, prefix, *others)

    def save(self, folder: str | Path) -> None:
        """Write what was fitted, with the hash of all of the models' states, but no model.

        Functions and estimators have no state that could be hashed: pickle the whole.
        """
        if self.functions:
            raise ValueError("model must be of torch to be saved beside it: pickle the whole")
        head = {"facts": self.facts, "models": [hash_module(model) for model in self.models]}
        tensors = {k: v for k, v in self.state_dict().items() if not k.startswith("models.")}
        write_tensors(Path(folder) / FILE, FORMAT, head, tensors)

    def __str__(self) -> str:
        """Return the table, what was chosen and decided, and the line that serves it."""
        names = self.facts["names"] or ()
        classes = [f"classes, in the order of the outputs: {shorten(names)}"] if names else []
        return "\n".join([*classes, *describe(self.facts)])


def load_calibrated(folder: str | Path, *models: Any, output: Any = None) -> Calibrated:
    """Read what :meth:`Calibrated.save` wrote, for the same models; for logits alone without one.

    Models must have the weights that were calibrated.
    """
    head, tensors = read_tensors(Path(folder) / FILE, FORMAT)
    if wrong := [type(each).__name__ for each in models if not isinstance(each, nn.Module)]:
        raise ValueError(f"models must be of torch, got {wrong[0]}")
    if len(models) != len(head["models"]):
        raise ValueError(
            f"models must be as many as {folder} serves, {len(head['models'])}, got {len(models)}"
        )
    hashes = zip(map(hash_module, models), head["models"], strict=True)
    if other := [i for i, (loaded, saved) in enumerate(hashes) if loaded != saved]:
        raise ValueError(
            f"models must have the weights that {folder} was calibrated for, and number {other[0]} "
            "has others: load those that it had, or calibrate these"
        )
    calibrated = Calibrated(models, output)
    state = {f"models.{name}": value for name, value in calibrated.models.state_dict().items()}
    calibrated.load_state_dict(state | tensors)
    return calibrated


def predict(model: Any, inputs: Any, output: Any, **named: Any) -> Tensor:
    """Return the logits of a function, or of a model in evaluation mode."""
    if not isinstance(model, nn.Module):
        return read_logits(model(inputs, **named), output)
    with _evaluating(model):
        return read_logits(call_model(model, inputs, **named), output)


@contextmanager
def _evaluating(model: nn.Module) -> Generator[None]:
    """Keep a model in evaluation mode, whichever threads do so at the same time; restore it."""
    if torch.compiler.is_compiling():
        if any(module.training for module in model.modules()):
            raise ValueError("model must be in evaluation mode to be compiled: call .eval()")
        yield
        return
    with _LOCK:
        modules = [each for each in model.modules() if each.training or _BORROWED[each]]
        _BORROWED.update(modules)
        for module in modules:
            module.training = False
    try:
        yield
    finally:
        with _LOCK:
            for module in modules:
                _BORROWED[module] -= 1
                if not _BORROWED[module]:
                    del _BORROWED[module]
                    module.training = True


def plain_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return modules by the name that they have without wrappers (DDP, compiled modules)."""
    named = unwrap(model).named_modules()
    return {name.replace("._orig_mod", ""): module for name, module in named}


def entropy(log_probs: Tensor) -> Tensor:
    """Return the entropy of each row, in nats."""
    return torch.special.entr(log_probs.exp()).sum(-1)


def _record_call(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
    """Note what goes into a last layer, in the call of a calibrated model alone."""
    calls = _CALLS.get()
    if calls is not None:
        calls.append((module, arguments[0]))


def shorten(names: Sequence[str]) -> str:
    """Return the first ten of many names, and how many there are."""
    return ", ".join(names[:10]) + (f", ... ({len(names)})" if len(names) > 10 else "")


def in_words(row: Sequence[Any]) -> list[str]:
    """Return the name and the means of a candidate with half of their intervals."""
    pairs = zip(row[1::2], row[2::2], strict=True)
    return [row[0], *(f"{mean:z.3f} ± {half:.3f}" for mean, half in pairs)]


def describe(facts: Mapping[str, Any]) -> list[str]:
    """Return the lines of a text: warnings, table, what was chosen and decided, how to call it."""
    fit, choose, decide = facts["examples"]
    lines = [*facts["notes"], f"{fit} examples fitted, {choose} others chose, ± of 95 %:"]
    lines.append(f"{'':22}{'NLL':16}{'ECE':16}{'accuracy':16}NLL to as it is")
    for name, *numbers in map(in_words, facts["rows"]):
        lines.append(f"{name:22}{''.join(f'{each:16}' for each in numbers)}".rstrip())
    best = min(facts["rows"], key=lambda row: row[1])[0]
    heat = f", T = {facts['temperature']:.3f}" if "temperature" in facts["chosen"] else ""
    level = "" if facts["chosen"] == best else f": the first that is level with {best}"
    chosen = f"Chosen: {facts['chosen']}{heat}{level}."
    nothing = "Nothing is better than the model as it is."
    lines.append(nothing if facts["chosen"] == "as it is" else chosen)
    lines.append(f"{decide} examples, which neither fitted nor chose, decide:")
    if decision := facts.get("decision"):
        rate = "{error_rate:.1%} wrong, with probability {level:.0%}".format(**decision)
        line = f"No confidence reaches at most {rate}: it takes more examples, or a higher rate."
        if accepted := decision["accepted"]:
            above = "any confidence" if decision["threshold"] == "-inf" else "a confidence above "
            above += decision["threshold"].removeprefix("-inf")
            line = f"At most {rate}: accept {above}, {accepted:.1%} of the examples."
        lines.append(line)
    sets = "Sets of {size:.2f} classes on average hold the class of {coverage:.0%}."
    few = "It takes {least} examples for sets of {coverage:.0%}: all classes are in each."
    lines.append((sets if facts["sets"]["least"] <= decide else few).format(**facts["sets"]))
    if unknown := facts.get("unknown"):
        caught = "Unknown: {caught:.1%} are told, with {rate:.1%} false alarms (AUROC {auroc:.3f})."
        lines.append(caught.format(**unknown))
    argument = "inputs" if facts["model"] else "logits"
    lines.append(f"calibrated({argument}) are log probabilities; calibrated.decide({argument})")
    return lines
