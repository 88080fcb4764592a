r"""A Gaussian process beside the attention of models that one has.

Softmax attention of any library stays what it is: its weights, masks, caches and fused kernels. A
module of a method's own reads each head's queries and draws by how much the head's output deviates
(the residual form, not in the papers). The output projection is linear, so that the deviation goes
through its weights alone and is added behind the attention:

.. math::
    \mathrm{out} = W_o [F_1, ..., F_H] + b_o + W_o [f_1, ..., f_H], \quad f_h = f_h(q_h)

with F the softmax attention and f the deviation of each head. Queries are as the projection gives
them, normalised where the layer normalises them, and without rotary positions.

What is known: ``nn.MultiheadAttention`` (also in ``nn.TransformerEncoder`` and torchvision's ViT),
torchvision's Swin, timm's ``Attention`` and ``WindowAttention``, and of transformers ViT, BERT,
RoBERTa, DistilBERT, GPT-2, Llama, Mistral and Qwen. None of these libraries is imported here.
"""

import math
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, cast

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from probseq.checks import check_counts
from probseq.transformers.attention import full_precision
from probseq.transformers.layouts import check_layout, count_heads, find_attention, layout_of
from probseq.transformers.prefix import is_value, shared_prefix
from probseq.transformers.sampling import repeat_samples

M = TypeVar("M", bound=nn.Module)
Layers: TypeAlias = Literal["last", "all"] | Sequence[int] | Sequence[str]
# Makes a method's module from heads, width of a query and width of a value.
Make: TypeAlias = Callable[[int, int, int], nn.Module]
# The name of what is added to an attention module.
_NAME = "deviation"
# What attention modules call their tokens.
_TOKENS = ("query", "hidden_states", "x")


class DeviationModule(Protocol):
    """What a method puts beside attention: a random function of each head's queries."""

    def __call__(
        self,
        queries: Float[Tensor, "heads batch tokens query"],
        *,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
        inducing_noise: Tensor | None = None,
    ) -> Float[Tensor, "samples heads batch tokens value"]:
        """Draw it, one function for each sequence; equal noise gives equal functions."""
        ...

    def inducing_noise(
        self, num_samples: int, batch: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw what decides the functions of a batch."""
        ...

    def place(
        self,
        queries: Float[Tensor, "heads rows query"],
        *,
        variance: float,
        generator: torch.Generator | None = None,
    ) -> None:
        """Fit to queries of data, before any training.

        The variance is that of the attention's output over the data's tokens, as if it were of the
        heads' outputs: a deviation of that variance in each would double the output's.
        """
        ...

    def kl(self) -> Float[Tensor, ""]:
        """Return the KL divergence from its prior, in nats; of the parameters alone."""
        ...


class Guest(nn.Module):
    """A module that was put into a model and can be taken out.

    Attributes:
        generator: source of its draws; ``None`` for torch's own.
        undo: what takes it out, the last first.
    """

    def __init__(self) -> None:
        super().__init__()
        self.generator: torch.Generator | None = None
        self.undo: list[Callable[[], object]] = []


class Deviation(Guest):
    """Registered on an attention module; holds the method's module and draws for it.

    Args:
        process: the method's module.
        heads: number of heads.
    """

    def __init__(self, process: nn.Module, heads: int) -> None:
        super().__init__()
        self.process, self.heads = process, heads
        self.holds, self.held = False, cast("Tensor | None", None)

    def forward(
        self, queries: Float[Tensor, "batch tokens width"]
    ) -> Float[Tensor, "batch tokens value"]:
        """Draw the deviation of the heads' outputs, side by side."""
        given: dict[str, Any] = {"generator": self.generator}
        heads = rearrange(queries, "b t (h d) -> h b t d", h=self.heads)
        process = cast("DeviationModule", self.process)
        if self.holds:
            batch = len(queries)
            if self.held is None:
                self.held = process.inducing_noise(1, batch, **given)
            if self.held.shape[2] != batch:
                raise ValueError(
                    f"the batch must have {self.held.shape[2]} sequences, as when its functions "
                    f"were drawn, got {batch}"
                )
            given["inducing_noise"] = self.held
        (drawn,) = process(heads, **given)
        return rearrange(drawn, "h b t s -> b t (h s)")


def replace_attention(
    model: M,
    make: Make,
    *,
    layers: Layers = "last",
    calibration: Any = None,
    generator: torch.Generator | None = None,
) -> M:
    """Give attention layers of a model a deviation, in place.

    All weights stay, under their names; what is added is in ``....deviation.process``, in the
    dtype and on the device of the layer's weights (half precision becomes float32). A deviation of
    zero leaves every output as it was. :func:`remove_attention` takes everything back.

    Args:
        model: of a library, or with its attention modules inside.
        make: makes a method's module from heads, width of a query and width of a value.
        layers: ``"last"``, ``"all"``, indices (negative ones count from the end) or names, in the
            order of ``model.named_modules()``.
        calibration: a batch of training data that the model can be called with: a tensor, a
            sequence of arguments, or a mapping of keyword arguments. Tokens that its
            ``attention_mask`` hides are left out; other padding counts as data: give sequences of
            full length. ``None`` leaves the modules as they were made.
        generator: source of random choices in the calibration.

    Returns:
        The model.

    Raises:
        ValueError: the model has no attention that is known, a layer is not there, has a deviation
            already or cannot have one, or the calibration cannot be used. The model is as it was.
    """
    found = find_attention(model)
    names = choose_layers(list(found), layers)
    made = {name: _make(name, found[name], make) for name in names}
    if calibration is None:
        warnings.warn(
            "without calibration data inducing inputs are where they were made, which need not be "
            "where queries are: give replace_attention a batch of training data",
            stacklevel=2,
        )
    else:
        seen = _queries(model, {name: found[name] for name in names}, calibration)
        mask = calibration.get("attention_mask") if isinstance(calibration, Mapping) else None
        for name, deviation in made.items():
            queries, outputs = seen[name]
            heads = rearrange(queries, "b t (h d) -> h (b t) d", h=deviation.heads)
            outputs = full_precision(outputs).flatten(0, 1)
            if isinstance(mask, Tensor) and mask.shape == queries.shape[:2]:
                real = mask.flatten() != 0
                heads, outputs = heads[:, real], outputs[real]
            variance = outputs.var(0, correction=0).mean()
            weight = layout_of(found[name]).out(found[name])
            if weight is not None:
                # Heads' outputs of variance 1 have Σ_j W_ij² behind the output weights.
                variance = variance / full_precision(weight.detach()).square().sum(-1).mean()
            process = cast("DeviationModule", deviation.process)
            process.place(heads, variance=float(variance), generator=generator)
    for name in names:
        _attach(model, found[name], made[name])
    return model


def remove_attention(model: M) -> M:
    """Take deviations and exchanged layers from a model, which is then as it was; return it."""
    for guest in guests(model):
        for undo in reversed(guest.undo):
            undo()
    return model


def guests(model: nn.Module) -> list[Guest]:
    """Return what was put into a model."""
    return [module for module in model.modules() if isinstance(module, Guest)]


def deviations(model: nn.Module) -> dict[str, Any]:
    """Return the methods' modules of a model, by the names of the attention that they are beside.

    Raises:
        ValueError: there are none.
    """
    found = {
        name.removesuffix(f".{_NAME}").removesuffix(_NAME): module.process
        for name, module in model.named_modules()
        if isinstance(module, Deviation)
    }
    if not found:
        raise ValueError("model must have a deviation beside its attention: use replace_attention")
    return found


def penalty(model: nn.Module) -> Float[Tensor, ""]:
    """Return the KL divergence of all deviations from their priors, in nats.

    A loss takes it once for all training data: over their number, in the mean loss of an example.

    Raises:
        ValueError: the model has none.
    """
    return torch.stack([process.kl() for process in deviations(model).values()]).sum()


def sample_predictions(
    model: nn.Module,
    *inputs: Any,
    num_samples: int = 10,
    generator: torch.Generator | None = None,
    **named: Any,
) -> Any:
    """Call a model for S samples of the deviations, in one batch.

    In evaluation mode the blocks before the first deviation run once for all samples.

    Args:
        model: with deviations.
        inputs: arguments; tensors of at least one axis have the batch first.
        num_samples: S.
        generator: source of the draws.
        named: keyword arguments, likewise.

    Returns:
        What the model returns, each tensor in it as ``(S, batch, ...)``: logits of a
        classifier are ``result`` or ``result["logits"]``, their mean probabilities
        ``logits.softmax(-1).mean(0)``.

    Raises:
        ValueError: the model has no deviation, ``num_samples`` is no whole number of at least 1, or
            there is a generator where activations are checkpointed for gradients.
    """
    check_counts(num_samples=num_samples)

    def fold(value: Any) -> Any:
        batched = isinstance(value, Tensor) and value.ndim > 0
        return repeat_samples(value, num_samples) if batched else value

    def copy(value: Any) -> Any:
        return value.clone() if isinstance(value, Tensor) else value

    folded = {name: fold(value) for name, value in named.items()}
    found, random = guests(model), [m for m in model.modules() if hasattr(m, _NAME)]
    # A cache of the caller's, for one, must not see the batch twice.
    alone = all(isinstance(guest, Deviation) for guest in found)
    alone = alone and all(map(is_value, (*inputs, *named.values())))
    with ExitStack() as stack:
        stack.enter_context(_drawing(model, generator=generator))
        if alone:
            # Copies: a model that changes its inputs in place must not do so twice.
            copied = {name: copy(value) for name, value in named.items()}
            call = partial(model, *map(copy, inputs), **copied)
            stack.enter_context(shared_prefix(model, call, random, num_samples))
        outputs = model(*map(fold, inputs), **folded)
    return _unfolded(outputs, num_samples)


def log_probabilities(
    model: nn.Module,
    inputs: Any,
    num_samples: int | None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "batch classes"]:
    """Return the logarithm of the mean probabilities of samples; ``None``: of the model's own."""
    named = dict(inputs) if isinstance(inputs, Mapping) else {}
    given = () if named else (inputs,)
    if num_samples is None:
        return full_precision(_logits(model(*given, **named))).log_softmax(-1)
    drawn = sample_predictions(model, *given, num_samples=num_samples, generator=generator, **named)
    # log 1/S Σ softmax
    return full_precision(_logits(drawn)).log_softmax(-1).logsumexp(0) - math.log(num_samples)


def _logits(outputs: Any) -> Tensor:
    if isinstance(outputs, Mapping):
        return outputs["logits"]
    return outputs if isinstance(outputs, Tensor) else outputs[0]


@contextmanager
def held_functions(
    model: nn.Module, *, generator: torch.Generator | None = None
) -> Generator[None]:
    """Let all calls inside read the same random functions, one for each sequence of the batch.

    A decoder that is called token by token with its cache needs it: one sample of a text has one
    function in each layer. The batch must keep its size and order: no beam search.

    Args:
        model: with deviations.
        generator: source of the draws.

    Raises:
        ValueError: the model has no deviation, a batch has another size than the first, or
            activations are checkpointed for gradients.
    """
    with _drawing(model, generator=generator, holds=True):
        yield


@contextmanager
def _drawing(
    model: nn.Module, *, generator: torch.Generator | None, holds: bool = False
) -> Generator[None]:
    found = guests(model)
    if holds or not found:
        deviations(model)
    if generator is not None or holds:
        _check_no_recomputation(model)
    for one in found:
        one.generator = generator
        if holds and isinstance(one, Deviation):
            one.holds = True
    try:
        yield
    finally:
        for one in found:
            one.generator = None
            if holds and isinstance(one, Deviation):
                one.holds, one.held = False, None


def _check_no_recomputation(model: nn.Module) -> None:
    """Refuse activation checkpointing: what a backward pass draws again would be something else.

    It restores the global generator alone.
    """
    for module in model.modules() if torch.is_grad_enabled() else ():
        # timm recomputes in every mode, transformers in training mode.
        for name in ("grad_checkpointing", *["gradient_checkpointing"] * module.training):
            if getattr(module, name, False) is True:
                raise ValueError(
                    "generator must be None, and functions not held, where a model checkpoints its "
                    f"activations for gradients, got {name}=True: seed torch instead"
                )


def _unfolded(outputs: Any, samples: int) -> Any:
    if isinstance(outputs, Tensor):
        return outputs.unflatten(0, (samples, -1)) if outputs.ndim else outputs
    if isinstance(outputs, Mapping):
        return {name: _unfolded(value, samples) for name, value in outputs.items()}
    if isinstance(outputs, tuple | list):
        return tuple(_unfolded(value, samples) for value in outputs)
    return outputs


def choose_layers(names: list[str], layers: Layers) -> list[str]:
    """Return the names of chosen layers."""
    if layers == "all":
        return names
    if layers == "last":
        return names[-1:]
    if isinstance(layers, str) or not len(layers):
        raise ValueError(f"layers must be 'last', 'all', indices or names, got {layers!r}")
    chosen = list[str]()
    for layer in layers:
        if isinstance(layer, int) and -len(names) <= layer < len(names):
            chosen.append(names[layer])
        elif isinstance(layer, str) and layer in names:
            chosen.append(layer)
        else:
            raise ValueError(
                f"layers must be among the {len(names)} attention modules {', '.join(names)}, "
                f"got {layer!r}"
            )
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"layers must name each module once, got {layers!r}")
    return chosen


def _make(name: str, module: nn.Module, make: Make) -> Deviation:
    if hasattr(module, _NAME):
        raise ValueError(f"{name} has a deviation already: take it away with remove_attention")
    layout, heads = check_layout(name, module), count_heads(module)
    width, out = layout.width(module), layout.out(module)
    value = width if out is None else out.shape[-1]
    first = next(module.parameters())
    dtype = first.dtype if first.dtype == torch.float64 else torch.float32
    made = make(heads, width // heads, value // heads)
    return Deviation(made, heads).to(first.device, dtype).train(module.training)


# -- Calls ----------------------------------------------------------------------------------------


def tokens_of(module: nn.Module, args: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor:
    """Return the tokens that make queries, ``(batch, tokens, dim)``."""
    x: Tensor = args[0] if args else next(named[name] for name in _TOKENS if name in named)
    if x.ndim == 2:  # a single sequence
        return x[None]
    if not getattr(module, "batch_first", True):
        return x.transpose(0, 1)
    return x.flatten(1, -2)


def _add_deviation(
    module: nn.Module, args: tuple[Any, ...], named: dict[str, Any], output: Any
) -> Any:
    """Add to a module's output what its deviation draws; a forward hook."""
    deviation, layout = getattr(module, _NAME), layout_of(module)
    tokens = tokens_of(module, args, named)
    drawn = deviation(layout.queries(module, tokens))
    first = output if isinstance(output, Tensor) else output[0]
    drawn, weight = drawn.to(first.dtype), layout.out(module)
    if weight is not None:
        drawn = F.linear(drawn, weight)
    if first.ndim == 3 and not getattr(module, "batch_first", True):
        drawn = drawn.transpose(0, 1)
    first = first + drawn.reshape(first.shape)
    return first if isinstance(output, Tensor) else (first, *output[1:])


def _attach(model: nn.Module, module: nn.Module, deviation: Deviation) -> None:
    module.add_module(_NAME, deviation)
    hook = module.register_forward_hook(_add_deviation, with_kwargs=True)
    deviation.undo += [_Detach(module), hook.remove]
    deviation.undo += switch_off_nested_tensors(model)


def switch_off_nested_tensors(model: nn.Module) -> list[Callable[[], object]]:
    """Let encoders give padded tensors to all layers; return what takes it back.

    They decide by their first layer whether all get nested ones, which only fused layers take.
    """
    found = list[Callable[[], object]]()
    for encoder in model.modules():
        for name in ("use_nested_tensor", "enable_nested_tensor"):
            if isinstance(encoder, nn.TransformerEncoder) and getattr(encoder, name, False):
                setattr(encoder, name, False)
                found.append(_Reset(encoder, name))
    return found


class _Detach(NamedTuple):
    """Takes its deviation from a module."""

    owner: nn.Module

    def __call__(self) -> None:
        delattr(self.owner, _NAME)


class _Reset(NamedTuple):
    """Sets an attribute back to true."""

    owner: nn.Module
    name: str

    def __call__(self) -> None:
        setattr(self.owner, self.name, True)


@torch.no_grad()
def _queries(
    model: nn.Module, chosen: Mapping[str, nn.Module], calibration: Any
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return queries and outputs of modules as a model is called, ``(batch, tokens, width)``."""
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def look(name: str) -> Callable[..., None]:
        def hook(
            module: nn.Module, args: tuple[Any, ...], named: dict[str, Any], output: Any
        ) -> None:
            queries = layout_of(module).queries(module, tokens_of(module, args, named))
            first = output if isinstance(output, Tensor) else output[0]
            if first.ndim == 3 and not getattr(module, "batch_first", True):
                first = first.transpose(0, 1)
            seen[name] = queries, first.reshape(*queries.shape[:2], first.shape[-1])

        return hook

    modes = {module: module.training for module in model.modules()}
    with ExitStack() as stack:
        for name, module in chosen.items():
            hook = module.register_forward_hook(look(name), with_kwargs=True)
            stack.callback(hook.remove)
        stack.callback(lambda: [setattr(part, "training", was) for part, was in modes.items()])
        for undo in switch_off_nested_tensors(model):
            stack.callback(undo)
        model.eval()
        try:
            if isinstance(calibration, Mapping):
                model(**cast("Mapping[str, Any]", calibration))
            else:
                model(*((calibration,) if isinstance(calibration, Tensor) else calibration))
        except (TypeError, ValueError, AttributeError, LookupError, RuntimeError) as error:
            raise ValueError(
                f"calibration must be a batch that the model takes: {error}"
            ) from error
    missing = ", ".join(chosen.keys() - seen.keys())
    if missing:
        raise ValueError(f"calibration must reach all layers that are chosen, and not {missing}")
    return seen
