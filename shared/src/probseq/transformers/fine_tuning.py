"""Fine-tuning of pretrained classifiers, with an uncertainty that is chosen with it.

Not in the papers.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import chain
from typing import Any, NamedTuple, TypeAlias, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from probseq.batches import call_model, on_device, read_batches
from probseq.checks import check_counts, check_labels, check_positive
from probseq.laplace import laplace_model, last_linear
from probseq.metrics.post_hoc import search_temperature, warn_at_bound
from probseq.transformers.adapters import (
    Deviation,
    Guest,
    guests,
    penalty,
    switch_off_nested_tensors,
)
from probseq.transformers.calls import eager
from probseq.transformers.drawing import log_probabilities
from probseq.transformers.exchange import ExchangedAttention, collect_penalties
from probseq.transformers.sampling import repeat_samples

# Puts something into a model, in place, with a batch of its training inputs as `calibration`.
Insert: TypeAlias = Callable[..., nn.Module]
# Of the logarithms of a deviation's scales, which move by a few in all.
_SCALES_RATE = 0.05


class Tempered(nn.Module):
    """A classifier that gives log-probabilities at a temperature.

    Attributes:
        model: the classifier.
        temperature: what logarithms of probabilities are divided by.
        num_samples: samples S of a prediction, where the model has something that draws.
    """

    def __init__(self, model: nn.Module, temperature: float, num_samples: int | None) -> None:
        super().__init__()
        self.model, self.temperature, self.num_samples = model, temperature, num_samples

    @torch.no_grad()
    def forward(
        self, inputs: Any, *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "batch classes"]:
        """Return the logarithms of predictive probabilities."""
        samples = self.num_samples if guests(self.model) else None
        inputs = on_device(inputs, self.model)
        log_probs = log_probabilities(self.model, inputs, samples, generator)
        return (log_probs / self.temperature).log_softmax(-1)


class FineTuned(Tempered):
    """A classifier that gives calibrated log-probabilities; :func:`fine_tune` makes it.

    Attributes:
        losses: negative log-likelihood of the validation data, with the best temperature, by step.
    """

    def __init__(
        self,
        model: nn.Module,
        temperature: float,
        num_samples: int | None,
        losses: Mapping[int, float],
    ) -> None:
        super().__init__(model, temperature, num_samples)
        self.losses = dict(losses)


def fine_tune(
    model: nn.Module,
    train: Iterable[Any],
    validation: Iterable[Any],
    *,
    uncertainty: str | Insert | None = None,
    frozen: bool = True,
    steps: int = 300,
    every: int = 25,
    learning_rates: tuple[float, float] = (1e-4, 1e-3),
    num_samples: int = 10,
    seed: int = 0,
) -> FineTuned:
    r"""Fine-tune a pretrained classifier in place, and give it a temperature.

    The last block, what comes behind it and the last linear layer are trained by Adam, in
    evaluation mode, with the blocks before them frozen; what these give is computed once. The best
    step is that of the lowest negative log-likelihood of the validation data, each with its best
    temperature. A model without a list of blocks is trained as a whole.

    What ``uncertainty`` puts into the model pays its penalty π in the loss of an example,

    .. math:: -\log p(y | x) + w \pi, \quad w = \min(1 / N, -\log p_0 / \pi_0),

    with N training examples: the weight of the bound, or less, so that the penalty does not start
    above the first batch's loss.

    Args:
        model: classifier of torch, torchvision, timm or transformers; its last layer may be new.
        train: the training data, see :func:`~probseq.batches.read_batches`. Read once where blocks
            are frozen, or where it can be read only once, and its batches are kept; else once each
            pass, and once before to count the examples.
        validation: batches likewise; read once.
        uncertainty: ``"laplace"`` for a Laplace posterior of the last layer after the training; or
            what puts layers into the model, called as ``uncertainty(model, calibration=inputs)``
            with the first batch: ``sgpa.replace_attention`` for a deviation beside the attention,
            or an own function that calls
            :func:`~probseq.transformers.exchange.exchange_attention`.
        frozen: whether all blocks but the last are left as they are.
        steps: of Adam; each takes a batch.
        every: steps between looks at the validation data, the first before any training.
        learning_rates: of what was pretrained, and of what is new: the last layer and what
            ``uncertainty`` put in. The logarithms of a deviation's scales have .05.
        num_samples: samples S of a prediction, where something is drawn.
        seed: of all random choices.

    Returns:
        The model, with its temperature; one at the bounds of its search comes with a warning.

    Raises:
        ValueError: an argument is out of range, there are no batches, labels are not those of the
            inputs, the loss is not finite, or ``"laplace"`` finds no linear layer in the end.

    Example:
        >>> import torch
        >>> from probseq.transformers import fine_tune
        >>> layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        >>> model = torch.nn.Sequential(
        ...     torch.nn.TransformerEncoder(layer, 3), torch.nn.Flatten(), torch.nn.Linear(64, 3)
        ... )
        >>> data = [(torch.randn(20, 4, 16), torch.randint(3, (20,)))]
        >>> tuned = fine_tune(model, data, data, uncertainty="laplace", steps=10)
        >>> tuned(data[0][0]).shape
        torch.Size([20, 3])
    """
    check_counts(steps=steps, every=every, num_samples=num_samples)
    for rate in learning_rates:
        check_positive(learning_rates=rate)
    if isinstance(uncertainty, str) and uncertainty != "laplace":
        raise ValueError(f"uncertainty must be 'laplace', a function or None, got {uncertainty!r}")
    undo = switch_off_nested_tensors(model)
    with eager(), only_new_gradients(model, seed):
        model.eval()
        try:
            tuning = _FineTuning(model, train, validation, frozen, uncertainty == "laplace")
            if callable(uncertainty):
                # What it puts in switches them off, and on again as it is taken out.
                _undo(undo)
                tuning.put(uncertainty, num_samples)
                undo = switch_off_nested_tensors(model)
            tuned = tuning.run(steps, every, learning_rates)
        finally:
            _undo(undo)
    warn_at_bound(tuned.temperature)
    return tuned


@contextmanager
def only_new_gradients(model: nn.Module, seed: int) -> Generator[None]:
    """Switch the gradients of all parameters off, and seed torch's own generators.

    Both are as they were in the end. Draws of a training must be of these generators, which
    activation checkpointing restores.
    """
    device = next(model.parameters()).device
    before = {parameter: parameter.requires_grad for parameter in model.parameters()}
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        model.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in model.parameters():
                parameter.requires_grad_(before.get(parameter, True))
                parameter.grad = None


def negative_log_likelihood(log_probs: Tensor, labels: Tensor) -> Float[Tensor, ""]:
    """Return the mean over examples; raise if labels are not those of the predictions."""
    labels = labels.to(log_probs.device)
    check_labels(labels, log_probs)
    return F.nll_loss(log_probs, labels)


def descend(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """Take a step; raise if the loss is not finite."""
    if not bool(loss.isfinite()):
        raise ValueError(f"the loss must stay finite, got {float(loss.detach())}: train slower")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class _Batch(NamedTuple):
    """Inputs, labels, and what the frozen blocks give."""

    inputs: Any
    labels: Tensor
    hidden: Any


class _FineTuning:
    """A model and its data."""

    def __init__(
        self,
        model: nn.Module,
        train: Iterable[Any],
        validation: Iterable[Any],
        frozen: bool,
        laplace: bool,
    ) -> None:
        if frozen or isinstance(train, Iterator):
            train = list(read_batches(train, model, name="train"))
        held = list(read_batches(validation, model, name="validation"))
        self.model, self.train, self.device = model, train, next(model.parameters()).device
        self.laplace, self.samples = laplace, cast("int | None", None)
        first, self.num_data = None, 0
        for inputs, labels in read_batches(train, model, name="train"):
            first = first or (inputs, labels)
            self.num_data += len(labels)
        if first is None or not held:
            raise ValueError("train and validation must hold batches, got none")
        self.first = on_device(first[0], model)
        blocks, behind = _last_blocks(model, self.first)
        self.trained = {p for module in behind for p in module.parameters()} or set(
            model.parameters()
        )
        self.new = set[nn.Parameter]()
        self.head: str | None = None
        try:
            self.head, _ = last_linear(model, [first])
            self.new |= set(model.get_submodule(self.head).parameters())
        except ValueError:
            if laplace:
                raise  # before the training
        self.lower = _Lower(blocks[:-1] if frozen else [])
        if not frozen:
            self.trained = set(model.parameters())
        self.data = [self._batch(*each) for each in train] if frozen else None
        self.held = [self._batch(*each) for each in held]

    def put(self, uncertainty: Insert, num_samples: int) -> None:
        """Put layers that draw into the model."""
        uncertainty(self.model, calibration=self.first)
        self.samples = num_samples
        if any(isinstance(module, Guest) for b in self.lower.blocks for module in b.modules()):
            self.lower = _Lower([])

    def run(self, steps: int, every: int, learning_rates: tuple[float, float]) -> FineTuned:
        """Train."""
        model = self.model
        optimizer = self._optimizer(*learning_rates)
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        best, state = float("inf"), list[Tensor]()
        losses, weight, batches = dict[int, float](), None, self._batches()
        for step in range(steps + 1):
            if step % every == 0 or step == steps:
                losses[step] = self._nll()[0]
                if losses[step] < best:
                    best = losses[step]
                    state = [each.detach().clone() for each in parameters]
            if step < steps:
                weight = self._step(next(batches), optimizer, weight)
        with torch.no_grad():
            for parameter, value in zip(parameters, state, strict=True):
                parameter.copy_(value)
        if self.laplace:
            self._add_laplace()
        return FineTuned(model, self._nll()[1], self.samples, losses)

    def _optimizer(self, pretrained: float, new: float) -> torch.optim.Optimizer:
        """Let what is trained have gradients, in groups."""
        model, scales = self.model, set[nn.Parameter]()
        for guest in guests(model):
            self.new |= set(guest.parameters())
            if isinstance(guest, Deviation):
                scales |= set(cast("Any", guest.process).kernel.parameters())
        here = list(model.parameters())
        trained = [p for p in here if p in self.trained | self.new]
        groups = [
            ([p for p in trained if p not in self.new], pretrained),
            ([p for p in trained if p in self.new - scales], new),
            ([p for p in trained if p in scales], _SCALES_RATE),
        ]
        for parameter in trained:
            parameter.requires_grad_(True)
        return torch.optim.Adam(
            [{"params": parameters, "lr": rate} for parameters, rate in groups if parameters]
        )

    def _step(self, batch: _Batch, optimizer: torch.optim.Optimizer, weight: float | None) -> float:
        """Take a step; return the weight of the penalty, that of the first step if it is None."""
        model = self.model
        with torch.enable_grad(), self.lower.replay(batch.hidden):
            exchanged = any(isinstance(guest, ExchangedAttention) for guest in guests(model))
            with collect_penalties(model) if exchanged else nullcontext([]) as penalties:
                log_probs = log_probabilities(model, batch.inputs, None)
            nll = negative_log_likelihood(log_probs, batch.labels)
            if any(isinstance(guest, Deviation) for guest in guests(model)):
                penalties = [*penalties, penalty(model)]
            total = torch.stack(penalties).sum() if penalties else nll.new_zeros(())
            if weight is None:
                start = max(float(total.detach().abs()), torch.finfo(torch.float32).tiny)
                weight = min(1.0 / self.num_data, float(nll.detach()) / start)
            descend(nll + weight * total, optimizer)
        return weight

    @torch.no_grad()
    def _nll(self) -> tuple[float, float]:
        """Return the validation data's loss with the best temperature, and that temperature."""
        generator = torch.Generator(self.device).manual_seed(0)  # the same draws at each look
        predictions: list[Tensor] = []
        for batch in self.held:
            with self.lower.replay(batch.hidden):
                log_probs = log_probabilities(self.model, batch.inputs, self.samples, generator)
            check_labels(batch.labels, log_probs)
            predictions.append(log_probs)
        log_probs, labels = (
            torch.cat(predictions).double(),
            torch.cat([b.labels for b in self.held]),
        )
        temperature = search_temperature(log_probs, labels)
        scaled = (log_probs / temperature).log_softmax(-1)
        return float(F.nll_loss(scaled, labels)), temperature

    def _add_laplace(self) -> None:
        """Give the last layer a Laplace posterior, its prior chosen by the validation data."""

        def call(model: nn.Module, batch: _Batch) -> Any:
            with self.lower.replay(batch.hidden):
                return call_model(model, batch.inputs)

        def features(batches: Iterable[_Batch]) -> list[tuple[Tensor, Tensor]]:
            return list(last_linear(self.model, ((b, b.labels) for b in batches), call=call)[1])

        held = features(self.held)
        train = self._read() if self.data is None else self.data
        head: Any = self.model.get_submodule(name := cast("str", self.head))
        (layer,) = laplace_model(nn.Sequential(head), features(train), validation=held)
        self.model.set_submodule(name, layer)

    def _batches(self) -> Iterator[_Batch]:
        """Yield batches without an end: those that are kept in random order, or the loader's."""
        while self.data is not None:
            for place in torch.randperm(len(self.data)).tolist():
                yield self.data[place]
        while True:
            count = 0
            for batch in self._read():
                count += 1
                yield batch
            if not count:
                raise ValueError("train must be readable again and again, and has no batches now")

    def _read(self) -> Iterator[_Batch]:
        for inputs, labels in read_batches(self.train, self.model, name="train"):
            yield self._batch(inputs, labels)

    def _batch(self, inputs: Any, labels: Tensor) -> _Batch:
        inputs = on_device(inputs, self.model)
        return _Batch(inputs, labels.to(self.device), self.lower.record(self.model, inputs))


def _undo(changes: Iterable[Callable[[], object]]) -> None:
    for each in changes:
        each()


class _Lower:
    """Frozen blocks, called one after the other, in whose place known outputs can stand."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        self.blocks = blocks

    @torch.no_grad()
    def record(self, model: nn.Module, inputs: Any) -> Any:
        """Return what the last of them gives; None if there are none."""
        seen: list[Any] = []
        if self.blocks:
            hook = self.blocks[-1].register_forward_hook(lambda _, inputs, out: seen.append(out))
            with ExitStack() as stack:
                stack.callback(hook.remove)
                call_model(model, inputs)
        return seen[-1] if seen else None

    @contextmanager
    def replay(self, hidden: Any) -> Generator[None]:
        """Let the last one give what was recorded, the others what they are given.

        Where a batch holds several copies of what was recorded, so does what is given.
        """

        def earlier(*args: Any, **named: Any) -> Any:
            first = args[0] if args else next(iter(named.values()))
            return first if isinstance(hidden, Tensor) else (first, *[None] * (len(hidden) - 1))

        def last(*args: Any, **named: Any) -> Any:
            first = args[0] if args else next(iter(named.values()))

            def copies(value: Any) -> Any:
                batched = isinstance(value, Tensor)
                return repeat_samples(value, len(first) // len(value)) if batched else value

            return copies(hidden) if isinstance(hidden, Tensor) else tuple(map(copies, hidden))

        blocks = self.blocks if hidden is not None else []
        for block in blocks:
            block.forward = last if block is blocks[-1] else earlier
        try:
            yield
        finally:
            for block in blocks:
                del block.forward  # the instance's own; that of its class is back


def _last_blocks(model: nn.Module, inputs: Any) -> tuple[list[nn.Module], list[nn.Module]]:
    """Return the blocks of the last list of them, and the last one with what is called behind it.

    Blocks are members, called once each, of an ``nn.ModuleList`` or ``nn.Sequential`` that take
    tensors of three axes or more and have parameters. Lists inside blocks of others don't count.
    There are none in encoders of torch whose batch is not first.
    """
    order: list[nn.Module] = []
    calls: Counter[nn.Module] = Counter()
    tokens = set[nn.Module]()

    def look(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        first = args[0] if args else next(iter(named.values()), None)
        if isinstance(first, Tensor) and first.ndim > 2:
            tokens.add(module)
        calls[module] += 1
        order.append(module)

    with ExitStack() as stack, torch.no_grad():
        for module in model.modules():
            hook = module.register_forward_pre_hook(look, with_kwargs=True)
            stack.callback(hook.remove)
        call_model(model, inputs)
    lists: list[list[nn.Module]] = []
    inside = set[nn.Module]()
    for owner in model.modules():  # owners before what they hold
        if isinstance(owner, nn.ModuleList | nn.Sequential) and owner not in inside:
            members = [each for each in owner if each in tokens and list(each.parameters())]
            if len(members) > 1 and all(calls[each] == 1 for each in members):
                lists.append(members)
                inside.update(chain.from_iterable(each.modules() for each in members))
    last_first = any(
        isinstance(module, nn.MultiheadAttention) and not module.batch_first
        for module in model.modules()
    )
    if not lists or last_first:
        return [], []
    blocks = sorted(max(lists, key=lambda run: order.index(run[-1])), key=order.index)
    start = order.index(blocks[-1])
    return blocks, [
        module for module in order[start:] if not set(blocks[:-1]) & set(module.modules())
    ]
