"""`probseq bench attention`: what GP attention costs beside softmax attention.

The forward pass is timed as in training, but without gradients, and with nothing cached.
"""

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from cgpt import CorrelatedGPAttention, SparseCorrelatedGPAttention
from kepsvgp import KernelEigenPairAttention
from probseq.errors import JitterWarning
from probseq.transformers import AttentionOutput, KernelAttention, SoftmaxAttention
from probseq_apps.bench import interleaved, one_thread, timed, write
from probseq_apps.settings.bench import BenchSettings
from sgpa import SparseGPAttention
from sgpa.reference import literal_attention

SOFTMAX, KERNEL, LITERAL = "softmax", "kernel", "SGPA, formula-literal"
SHARED = "SGPA, inducing"  # covariance="inducing"
_LITERAL_RUNS = 3
_LITERAL_LIMIT = 2**31
_HEAD = (
    *("shape", "method", "forward, ms", "/ softmax", "forward + backward, ms", "/ softmax"),
    *("kept for backward, MiB", "runs"),
)


# Most that a method should need: time of a forward and of both passes, as ratios to softmax
# attention, and MiB saved for the backward pass; None without a goal.
Goal = tuple[float, float | None, float | str | None]


class Shape(NamedTuple):
    """One problem to time: sequences, the kernel, and the methods beside softmax and kernel."""

    batch: int
    tokens: int
    heads: int
    dim: int
    kernel: Literal["rbf", "exponential"]
    goals: Mapping[str, Goal]
    inducing: int = 32  # SGPA's number of global inducing inputs of each head
    # How KEP-SVGP's two processes become one output.
    merge: Literal["addition", "concatenation"] = "addition"


# SCGPT has 16 inducing inputs in each set, KEP-SVGP rank 10, everywhere. Goals of memory are a
# quarter, a sixth and a tenth of what the authors' layers keep (323, 1536 and 842 MiB).
_CIFAR: Mapping[str, Goal] = {
    "SGPA": (5.0, 5.0, 81.0),
    SHARED: (2.5, 2.3, None),
    "SCGPT": (3.0, 2.5, None),
}
_IMDB: Mapping[str, Goal] = {
    "SGPA": (3.6, 4.0, 256.0),
    SHARED: (2.0, 2.0, None),
    "KEP-SVGP": (0.45, 0.4, None),
}
_LONG: Mapping[str, Goal] = {
    "SGPA": (1.6, 1.6, "O(T)"),
    SHARED: (1.2, 1.2, "O(T)"),
    "KEP-SVGP": (0.1, 0.1, None),
}
_KEP: Mapping[str, Goal] = {"KEP-SVGP": (0.85, 0.75, None)}
SHAPES: dict[str, Shape] = {
    "cifar": Shape(100, 64, 4, 128, "rbf", _CIFAR),
    "imdb": Shape(32, 512, 8, 128, "exponential", _IMDB, inducing=50),
    "long": Shape(1, 4096, 4, 128, "rbf", _LONG),
    "cgpt-cifar": Shape(25, 64, 4, 128, "rbf", {"CGPT": (10.0, 8.0, 84.2)}),
    "scgpt-long": Shape(2, 512, 8, 128, "rbf", {"SCGPT": (2.4, 2.5, "O(T)")}),
    "kepsvgp-cifar": Shape(128, 64, 12, 384, "rbf", _KEP, merge="concatenation"),
}


_LAYERS: dict[str, Callable[[Shape], nn.Module]] = {
    SOFTMAX: lambda s: SoftmaxAttention(s.dim, s.heads),
    KERNEL: lambda s: KernelAttention(s.dim, s.heads, kernel=s.kernel),
    "SGPA": lambda s: SparseGPAttention(s.dim, s.heads, s.inducing, kernel=s.kernel),
    SHARED: lambda s: SparseGPAttention(
        *(s.dim, s.heads, s.inducing), kernel=s.kernel, covariance="inducing"
    ),
    "CGPT": lambda s: CorrelatedGPAttention(s.dim, s.heads),
    "SCGPT": lambda s: SparseCorrelatedGPAttention(s.dim, s.heads, 16),
    "KEP-SVGP": lambda s: KernelEigenPairAttention(
        *(s.dim, s.heads, 10),
        merge=s.merge,
        max_tokens=None if s.merge == "addition" else s.tokens,
    ),
}


Layer = Callable[[Tensor], AttentionOutput]
# Costs of each method: medians of its passes, memory saved in between, and the runs.
Costs = dict[str, dict[str, float]]


def bench_attention(settings: BenchSettings) -> None:
    """Measure, print the table, and write the numbers where asked."""
    with one_thread(settings.device) as device:
        costs = {name: measure_shape(name, settings.repeats, device) for name in settings.shape}
    rows = [row for name, of_shape in costs.items() for row in _rows(name, of_shape)]
    table = (_HEAD, ("---", "---", *("---:" for _ in _HEAD[2:])), *rows)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print(f"| {' | '.join(map(str.ljust, row, widths))} |")
    print(f"\ntorch {torch.__version__}, {settings.device}, {settings.repeats} repeats")
    write(costs, settings.json)


def measure_shape(name: str, repeats: int, device: torch.device) -> Costs:
    """Return the costs of all methods on one problem."""
    torch.manual_seed(0)
    shape = SHAPES[name]
    x = torch.randn(shape.batch, shape.tokens, shape.dim, device=device)
    weights = torch.randn_like(x)
    runs = dict.fromkeys((SOFTMAX, KERNEL, *shape.goals), repeats)
    modules = {method: _LAYERS[method](shape).to(device) for method in runs}
    layers: dict[str, Layer] = dict(modules)
    sgpa = modules.get("SGPA")
    if isinstance(sgpa, SparseGPAttention) and literal_bytes(shape) <= _LITERAL_LIMIT:
        modules[LITERAL], layers[LITERAL] = sgpa, partial(literal_attention, sgpa)
        runs[LITERAL] = min(repeats, _LITERAL_RUNS)

    def work(method: str, back: bool) -> None:
        # The input wants a gradient too, as it does inside a network.
        with torch.set_grad_enabled(back):
            output = layers[method](x.detach().requires_grad_(back))
            if back:
                ((output.values * weights).sum() + output.penalty).backward()
                modules[method].zero_grad(set_to_none=True)

    forward, both = (
        {m: timed(partial(work, m, back), device, gradients=True) for m in layers}
        for back in (False, True)
    )
    with warnings.catch_warnings():
        # The literal formulas lose digits where the layer doesn't.
        warnings.simplefilter("ignore", JitterWarning)
        saved = {method: saved_bytes(layers[method], modules[method], x) for method in layers}
        seconds = interleaved(
            {case: runs[m] for m in layers for case in (forward[m], both[m])}, name
        )
    return {
        method: {
            "forward_ms": 1e3 * seconds[forward[method]],
            "both_ms": 1e3 * seconds[both[method]],
            "kept_mib": saved[method] / 2**20,
            "runs": runs[method],
        }
        for method in layers
    }


def saved_bytes(layer: Layer, module: nn.Module, x: Tensor) -> int:
    """Return the bytes that autograd keeps between a forward pass and its backward pass.

    Each storage counts once, whoever saved it, custom functions included; input and parameters
    exist anyway.
    """
    x = x.detach().requires_grad_()
    # Held until the end: freed memory could come back at the same address.
    storages: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(x)
    for tensor in (x, *module.parameters()):
        storages.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(storage.nbytes() for storage in storages.values())


def literal_bytes(shape: Shape) -> int:
    """Return bytes of the largest T×T tensor of the literal formulas: the RBF's differences."""
    matrix = 4 * shape.batch * shape.heads * shape.tokens**2
    return matrix * (shape.dim // shape.heads if shape.kernel == "rbf" else 1)


def _rows(name: str, costs: Costs) -> list[tuple[str, ...]]:
    shape, rows = SHAPES[name], list[tuple[str, ...]]()
    for method, cost in costs.items():
        one, two = (cost[key] / costs[SOFTMAX][key] for key in ("forward_ms", "both_ms"))
        times = [f"{cost['forward_ms']:.1f}", f"{one:.2f}", f"{cost['both_ms']:.1f}", f"{two:.2f}"]
        rows.append((name, method, *times, f"{cost['kept_mib']:.1f}", str(cost["runs"])))
        if goals := shape.goals.get(method):
            forward, both, memory = map(_against, (one, two, cost["kept_mib"]), goals)
            rows.append((name, "goal", "", forward, "", both, memory, ""))
    if LITERAL in costs:
        pairs = zip(costs[LITERAL].values(), costs["SGPA"].values(), strict=True)
        times = [f"{literal / exact:.1f}x" for literal, exact in pairs]
        rows.append((name, "formula-literal / SGPA", times[0], "", times[1], "", times[2], ""))
    elif "SGPA" in costs:
        reason = f"needs over {literal_bytes(shape) / 2**30:.0f} GiB"
        rows.append((name, LITERAL, reason, *("—" for _ in _HEAD[3:])))
    return rows


def _against(value: float, limit: float | str | None) -> str:
    if limit is None or isinstance(limit, str):
        return limit or ""
    return f"≤ {limit:g} {'met' if value <= limit else 'missed'}"
