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
torchvision's Swin, timm's ``Attention`` and ``WindowAttention``, and of transformers ViT, DeiT,
DINOv2, BERT, RoBERTa, XLM-R, ELECTRA, DistilBERT, GPT-2, Llama, Mistral and Qwen; others by a
:class:`~probseq.transformers.layouts.Layout` of one's own. None of these libraries is imported
here. Layers are called, so that whatever is in them counts; the model may be compiled.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, cast

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from probseq.transformers.attention import full_precision
from probseq.transformers.calls import (
    Changed,
    State,
    Undo,
    argument_names,
    change_class,
    eager,
    with_state,
)
from probseq.transformers.layouts import (
    Layout,
    check_layout,
    find_attention,
    layout_of,
    plain_name,
)
from probseq.transformers.prefix import open_blocks

M = TypeVar("M", bound=nn.Module)
Layers: TypeAlias = Literal["last", "all"] | Sequence[int] | Sequence[str]
# Makes a method's module from heads, width of a query and width of a value.
Make: TypeAlias = Callable[[int, int, int], nn.Module]
# The name of what is added to an attention module.
_NAME = "deviation"


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
        undo: what takes it out, the last first.
    """

    def __init__(self) -> None:
        super().__init__()
        self.undo: list[Undo] = []

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Guest":
        """Stay in full precision where the model is halved."""

        def wide(tensor: Tensor) -> Tensor:
            new = fn(tensor)
            return tensor.to(new.device) if new.is_floating_point() and new.itemsize < 4 else new

        return super()._apply(wide, recurse)


class Deviation(Guest):
    """Registered on an attention module; holds the method's module and draws for it."""

    def __init__(self, process: nn.Module, heads: int, layout: Layout) -> None:
        super().__init__()
        self.process, self.heads, self.layout = process, heads, layout
        # Encoders of torch go past the forward of a layer's modules unless one has a hook.
        self.register_forward_pre_hook(_nothing)

    @with_state
    def forward(
        self, state: State, queries: Float[Tensor, "batch tokens width"], cache: Any
    ) -> Float[Tensor, "batch tokens value"]:
        """Draw the deviation of the heads' outputs, side by side."""
        batch = len(queries)
        state.reached(batch)
        noise: Tensor | None = None
        heads = rearrange(queries, "b t (h d) -> h b t d", h=self.heads)
        process = cast("DeviationModule", self.process)
        if state.functions is not None:
            state.functions.refuse_reordering(cache)
            noises = state.functions.noise
            if self not in noises:
                noises[self] = process.inducing_noise(1, batch, generator=state.generator)
            noise = noises[self]
            if noise.shape[2] != batch:
                raise ValueError(
                    f"the batch must have {noise.shape[2]} sequences, as when its functions were "
                    f"drawn, got {batch}"
                )
        (drawn,) = process(heads, generator=state.generator, inducing_noise=noise)
        return rearrange(drawn, "h b t s -> b t (h s)")


def _nothing(*_: Any) -> None:
    pass


class Deviating(Changed):
    """An attention module to whose output a deviation is added."""

    def forward(self, *args: Any, **named: Any) -> Any:
        """Call the module, and add what its deviation draws."""
        named_too = dict(zip(self.probseq_arguments, args, strict=False)) | named
        deviation: Deviation = getattr(self, _NAME)
        tokens = tokens_of(self, named_too[self.probseq_arguments[0]])
        queries = deviation.layout.queries(self, tokens)
        drawn = deviation(queries, named_too.get("past_key_values"))
        output = super().forward(*args, **named)
        first = output if isinstance(output, Tensor) else output[0]
        first = first + as_tokens(
            self, deviation.layout.project(self, drawn.to(first.dtype)), first
        )
        return first if isinstance(output, Tensor) else (first, *output[1:])


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

    Raises:
        ValueError: the model has no attention that is known, a layer is not there, has a deviation
            already or cannot have one, or the calibration cannot be used. The model is as it was.
    """
    layers_by_name = find_attention(model)
    names = choose_layers(list(layers_by_name), layers)
    made = {name: _make(name, layers_by_name[name], make) for name in names}
    if calibration is None:
        warnings.warn(
            "without calibration data inducing inputs are where they were made, which need not be "
            "where queries are: give replace_attention a batch of training data",
            stacklevel=2,
        )
    else:
        seen = _queries(model, {name: layers_by_name[name] for name in names}, calibration)
        mask = calibration.get("attention_mask") if isinstance(calibration, Mapping) else None
        for name, deviation in made.items():
            queries, outputs = seen[name]
            if len(queries) > 1 and bool((queries == queries[:1]).all()):
                raise ValueError(
                    f"layers must be without {name}, whose queries are the same for all inputs, "
                    "as where learned queries pool tokens"
                )
            heads = rearrange(queries, "b t (h d) -> h (b t) d", h=deviation.heads)
            outputs = full_precision(outputs).flatten(0, 1)
            if isinstance(mask, Tensor) and mask.shape == queries.shape[:2]:
                real = mask.flatten() != 0
                heads, outputs = heads[:, real], outputs[real]
            variance = outputs.var(0, correction=0).mean()
            # Heads' outputs of variance 1 have Σ_j W_ij² behind the output weights.
            layout = deviation.layout
            unit = torch.eye(layout.widths(layers_by_name[name])[1]).to(seen[name][1])
            with torch.no_grad():
                weight = full_precision(layout.project(layers_by_name[name], unit))
            variance = variance / weight.square().sum(0).mean()
            process = cast("DeviationModule", deviation.process)
            try:
                process.place(heads, variance=float(variance), generator=generator)
            except ValueError as error:
                raise ValueError(f"calibration, at the queries of {name}: {error}") from error
    for name in names:
        _attach(model, layers_by_name[name], made[name])
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
    processes = {
        plain_name(model, name).removesuffix(_NAME).removesuffix("."): module.process
        for name, module in model.named_modules()
        if isinstance(module, Deviation)
    }
    if not processes:
        raise ValueError("model must have a deviation beside its attention: use replace_attention")
    return processes


def penalty(model: nn.Module) -> Float[Tensor, ""]:
    """Return the KL divergence of all deviations from their priors, in nats.

    A loss takes it once for all training data: over their number, in the mean loss of an example.

    Raises:
        ValueError: the model has none.
    """
    return torch.stack([process.kl() for process in deviations(model).values()]).sum()


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
    layout = check_layout(name, module)
    heads, (query, value) = layout.count(module), layout.widths(module)
    made = like(module, make(heads, query // heads, value // heads))
    return Deviation(made, heads, layout).train(module.training)


def like(module: nn.Module, made: M) -> M:
    """Return what was made on the device and in the dtype of a module, but not in less."""
    tensors = (*module.parameters(), *module.buffers(), torch.empty(0))  # some are quantised
    wide = any(each.dtype == torch.float64 for each in tensors)
    return made.to(tensors[0].device, torch.float64 if wide else torch.float32)


# -- Calls ----------------------------------------------------------------------------------------


def tokens_of(module: nn.Module, x: Tensor) -> Tensor:
    """Return a module's first argument as ``(batch, tokens, dim)``."""
    if x.ndim == 2:  # a single sequence
        return x[None]
    if not getattr(module, "batch_first", True):
        return x.transpose(0, 1)
    return x.flatten(1, -2)


def as_tokens(module: nn.Module, values: Tensor, x: Tensor) -> Tensor:
    """Return values of tokens, ``(batch, tokens, dim)``, in the shape of a module's argument."""
    if x.ndim == 3 and not getattr(module, "batch_first", True):
        values = values.transpose(0, 1)
    return values.reshape(x.shape)


def _attach(model: nn.Module, module: nn.Module, deviation: Deviation) -> None:
    module.add_module(_NAME, deviation)
    deviation.undo += [_Detach(module), change_class(module, Deviating), *open_blocks(model)]
    deviation.undo += switch_off_nested_tensors(model)


def switch_off_nested_tensors(model: nn.Module) -> list[Undo]:
    """Let encoders give padded tensors to all layers; return what takes it back.

    They decide by their first layer whether all get nested ones, which only fused layers take.
    """
    resets = list[Undo]()
    for encoder in model.modules():
        for name in ("use_nested_tensor", "enable_nested_tensor"):
            if isinstance(encoder, nn.TransformerEncoder) and getattr(encoder, name, False):
                setattr(encoder, name, False)
                resets.append(_Reset(encoder, name))
    return resets


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
        def hook(module: Any, args: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
            x = args[0] if args else named[argument_names(type(module))[0]]
            first = output if isinstance(output, Tensor) else output[0]
            # Copies, for a model may change them afterwards.
            seen[name] = tokens_of(module, x).clone(), tokens_of(module, first).clone()

        return hook

    modes = {module: module.training for module in model.modules()}
    with ExitStack() as stack:
        for name, module in chosen.items():
            hook = module.register_forward_hook(look(name), with_kwargs=True)
            stack.callback(hook.remove)
        stack.callback(lambda: [setattr(module, "training", was) for module, was in modes.items()])
        for undo in switch_off_nested_tensors(model):
            stack.callback(undo)
        stack.enter_context(eager())
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
            raise ValueError(f"calibration must reach all layers that are chosen, not {missing}")
        return {
            name: (layout_of(chosen[name]).queries(chosen[name], tokens), outputs)
            for name, (tokens, outputs) in seen.items()
        }
