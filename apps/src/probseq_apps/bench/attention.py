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
from probseq_apps.bench.timing import Case, interleaved, kept_bytes, one_thread, timed, write
from probseq_apps.settings.bench import BenchSettings
from sgpa import SparseGPAttention
from sgpa.reference import literal_attention

SOFTMAX, KERNEL, LITERAL = "softmax", "kernel", "SGPA, formula-literal"
_LITERAL_RUNS = 3
_LITERAL_LIMIT = 2**31
_HEAD = (
    *("shape", "method", "forward, ms", "/ softmax", "forward + backward, ms", "/ softmax"),
    *("kept for backward, MiB", "runs"),
)


class Goal(NamedTuple):
    """What a method should reach."""

    forward: float  # most time of a forward pass, as a ratio to softmax attention
    both: float | None  # the same for a forward and a backward pass; None without a goal
    kept: float | Literal["O(T)"] | None  # most MiB kept for the backward pass


class Shape(NamedTuple):
    """One problem to time: sequences, the kernel, and the methods beside softmax and kernel.

    `inducing` is SGPA's number of global inducing inputs of each head, `merge` how KEP-SVGP's two
    processes become one output.
    """

    batch: int
    tokens: int
    heads: int
    dim: int
    kernel: Literal["rbf", "exponential"]
    goals: Mapping[str, Goal]
    inducing: int = 32
    merge: Literal["addition", "concatenation"] = "addition"


# SCGPT has 16 inducing inputs in each set, KEP-SVGP rank 10, everywhere. Goals of memory are a
# quarter, a sixth and a tenth of what the authors' layers keep (323, 1536 and 842 MiB).
SHAPES: dict[str, Shape] = {
    "cifar": Shape(
        *(100, 64, 4, 128, "rbf"),
        goals={"SGPA": Goal(5.0, 5.0, 81.0), "SCGPT": Goal(3.5, 3.3, None)},
    ),
    "imdb": Shape(
        *(32, 512, 8, 128, "exponential"),
        goals={"SGPA": Goal(3.6, 4.0, 256.0), "KEP-SVGP": Goal(0.45, 0.4, None)},
        inducing=50,
    ),
    "long": Shape(
        *(1, 4096, 4, 128, "rbf"),
        goals={"SGPA": Goal(1.6, 1.6, "O(T)"), "KEP-SVGP": Goal(0.1, 0.1, None)},
    ),
    "cgpt-cifar": Shape(25, 64, 4, 128, "rbf", goals={"CGPT": Goal(14.0, 11.0, 84.2)}),
    "scgpt-long": Shape(2, 512, 8, 128, "rbf", goals={"SCGPT": Goal(2.4, 2.5, "O(T)")}),
    "kepsvgp-cifar": Shape(
        *(128, 64, 12, 384, "rbf"),
        goals={"KEP-SVGP": Goal(1.05, 1.0, None)},
        merge="concatenation",
    ),
}

_LAYERS: dict[str, Callable[[Shape], nn.Module]] = {
    SOFTMAX: lambda s: SoftmaxAttention(s.dim, s.heads),
    KERNEL: lambda s: KernelAttention(s.dim, s.heads, kernel=s.kernel),
    "SGPA": lambda s: SparseGPAttention(s.dim, s.heads, s.inducing, kernel=s.kernel),
    "CGPT": lambda s: CorrelatedGPAttention(s.dim, s.heads),
    "SCGPT": lambda s: SparseCorrelatedGPAttention(s.dim, s.heads, 16),
    "KEP-SVGP": lambda s: KernelEigenPairAttention(
        *(s.dim, s.heads, 10),
        merge=s.merge,
        max_tokens=None if s.merge == "addition" else s.tokens,
    ),
}


class Cost(NamedTuple):
    """What a method costs: medians of its passes, what is kept in between, and the runs."""

    forward_ms: float
    both_ms: float
    kept_mib: float
    runs: int


Costs = dict[str, dict[str, Cost]]


def bench_attention(settings: BenchSettings) -> Costs:
    """Measure, print the table, write the numbers where asked; return costs by shape and method."""
    with one_thread(settings.device) as device:
        costs = {
            name: measure_shape(name, SHAPES[name], settings.repeats, device)
            for name in settings.shape
        }
    print(f"{table(costs)}\n\ntorch {torch.__version__}, {settings.device}, ", end="")
    print(f"{settings.repeats} repeats")
    write(
        {
            shape: {method: cost._asdict() for method, cost in found.items()}
            for shape, found in costs.items()
        },
        settings.json,
    )
    return costs


def measure_shape(name: str, shape: Shape, repeats: int, device: torch.device) -> dict[str, Cost]:
    """Return what all methods cost on one problem."""
    torch.manual_seed(0)
    x = torch.randn(shape.batch, shape.tokens, shape.dim, device=device)
    modules = {
        method: _LAYERS[method](shape).to(device) for method in (SOFTMAX, KERNEL, *shape.goals)
    }
    layers: dict[str, Callable[[Tensor], AttentionOutput]] = dict(modules)
    runs = dict.fromkeys(modules, repeats)
    sgpa = modules.get("SGPA")
    if isinstance(sgpa, SparseGPAttention) and literal_bytes(shape) <= _LITERAL_LIMIT:
        modules[LITERAL] = sgpa
        layers[LITERAL] = partial(literal_attention, sgpa)
        runs[LITERAL] = min(repeats, _LITERAL_RUNS)
    passes = {
        f"{part} {method}": _pass(layer, modules[method], x, part == "both")
        for method, layer in layers.items()
        for part in ("forward", "both")
    }
    with warnings.catch_warnings():
        # The literal formulas lose digits where the layer doesn't.
        warnings.simplefilter("ignore", JitterWarning)
        kept = {method: _kept_mib(layers[method], modules[method], x) for method in layers}
        found = interleaved(passes, {name: runs[name.split(" ", 1)[1]] for name in passes}, name)
    return {
        method: Cost(
            1e3 * found[f"forward {method}"],
            1e3 * found[f"both {method}"],
            kept[method],
            runs[method],
        )
        for method in layers
    }


def literal_bytes(shape: Shape) -> int:
    """Return bytes of the largest T×T tensor of the literal formulas: the RBF's differences."""
    matrix = 4 * shape.batch * shape.heads * shape.tokens**2
    return matrix * (shape.dim // shape.heads if shape.kernel == "rbf" else 1)


def table(costs: Costs) -> str:
    """Return each method's costs, the goals, and the literal formulas beside ours, in Markdown."""
    rows: list[tuple[str, ...]] = [_HEAD, ("---", "---", *("---:" for _ in _HEAD[2:]))]
    rows += [row for name, found in costs.items() for row in _rows(name, SHAPES[name], found)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(_HEAD))]
    return "\n".join(
        f"| {' | '.join(cell.ljust(w) for cell, w in zip(row, widths, strict=True))} |"
        for row in rows
    )


def _rows(name: str, shape: Shape, found: dict[str, Cost]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for method, cost in found.items():
        forward, both = (cost[part] / found[SOFTMAX][part] for part in (0, 1))
        times = [f"{cost[0]:.1f}", f"{forward:.2f}", f"{cost[1]:.1f}", f"{both:.2f}"]
        rows.append((name, method, *times, f"{cost.kept_mib:.1f}", str(cost.runs)))
        if goal := shape.goals.get(method):
            kept = goal.kept if isinstance(goal.kept, str) else _against(cost.kept_mib, goal.kept)
            limits = _against(forward, goal.forward), _against(both, goal.both)
            rows.append((name, "goal", "", limits[0], "", limits[1], kept, ""))
    if LITERAL in found:
        times = [f"{found[LITERAL][part] / found['SGPA'][part]:.1f}x" for part in range(3)]
        rows.append((name, "formula-literal / SGPA", times[0], "", times[1], "", times[2], ""))
    elif "SGPA" in found:
        reason = f"needs over {literal_bytes(shape) / 2**30:.0f} GiB"
        rows.append((name, LITERAL, reason, *("—" for _ in _HEAD[3:])))
    return rows


def _against(value: float, limit: float | None) -> str:
    if limit is None:
        return ""
    return f"≤ {limit:g} {'met' if value <= limit else 'missed'}"


def _pass(
    layer: Callable[[Tensor], AttentionOutput], module: nn.Module, x: Tensor, gradients: bool
) -> Case:
    weights = torch.randn_like(x)

    def forward() -> None:
        with torch.no_grad():
            layer(x)

    def both() -> None:
        # The input wants a gradient too, as it does inside a network.
        output = layer(x.detach().requires_grad_())
        ((output.values * weights).sum() + output.penalty).backward()
        module.zero_grad(set_to_none=True)

    return timed(both if gradients else forward, x.device, gradients=True)


def _kept_mib(layer: Callable[[Tensor], AttentionOutput], module: nn.Module, x: Tensor) -> float:
    x = x.detach().requires_grad_()
    owned = {tensor.untyped_storage().data_ptr() for tensor in (x, *module.parameters())}
    return kept_bytes(lambda: layer(x), owned) / 2**20
