"""`probseq bench attention`: what GP attention costs beside softmax attention.

Every method runs in turns with the others, on one thread, and the medians of the process' own time
are compared: the ratios mean something on a busy machine too. The forward pass is timed as in
training, but without gradients, and with nothing cached.
"""

import json
import warnings
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from tqdm import tqdm

from cgpt import CorrelatedGPAttention, SparseCorrelatedGPAttention
from kepsvgp import KernelEigenPairAttention
from probseq.errors import JitterWarning
from probseq.transformers import AttentionOutput, KernelAttention, SoftmaxAttention
from probseq_apps.experiments.bench_settings import (
    CGPT,
    KEPSVGP,
    SCGPT,
    SGPA,
    SHAPES,
    BenchSettings,
    Goal,
    Shape,
)
from probseq_apps.experiments.measure import Pass, kept_bytes, time_interleaved
from sgpa import SparseGPAttention
from sgpa.reference import literal_attention

SOFTMAX, KERNEL, LITERAL = "softmax", "kernel", "SGPA, formula-literal"
_SPARSE_INDUCING, _RANK = 16, 10
_LITERAL_RUNS = 3
_LITERAL_LIMIT = 2**31
_HEAD = (
    *("shape", "method", "forward, ms", "/ softmax", "forward + backward, ms", "/ softmax"),
    *("kept for backward, MiB", "runs"),
)


class Cost(NamedTuple):
    """What a method costs.

    Attributes:
        forward_ms: forward pass.
        both_ms: forward and backward pass.
        kept_mib: kept in between, parameters and input left out.
        runs: timed runs behind the medians.
    """

    forward_ms: float
    both_ms: float
    kept_mib: float
    runs: int


Costs = dict[str, dict[str, Cost]]


def bench_attention(settings: BenchSettings) -> Costs:
    """Measure, print the table, and write the numbers where asked.

    Args:
        settings: what to time.

    Returns:
        Costs by shape, then by method.

    Raises:
        ValueError: the device is not there.
        OSError: the file cannot be written.
    """
    device = torch.device(settings.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device must be cpu on a machine without CUDA, got 'cuda'")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        costs = {
            name: measure_shape(name, SHAPES[name], settings.repeats, device)
            for name in settings.shape
        }
    finally:
        torch.set_num_threads(threads)
    print(table(costs))
    print(f"\ntorch {torch.__version__}, {settings.device}, {settings.repeats} repeats")
    if settings.json is not None:
        numbers = {
            shape: {method: cost._asdict() for method, cost in found.items()}
            for shape, found in costs.items()
        }
        settings.json.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
    return costs


def measure_shape(name: str, shape: Shape, repeats: int, device: torch.device) -> dict[str, Cost]:
    """Time all methods on one problem.

    Args:
        name: its name, for the progress bar.
        shape: its sizes.
        repeats: timed runs of each method.
        device: where to run.
    """
    torch.manual_seed(0)
    x = torch.randn(shape.batch, shape.tokens, shape.dim, device=device)
    modules = {
        method: _module(method, shape).to(device) for method in (SOFTMAX, KERNEL, *shape.goals)
    }
    layers: dict[str, Callable[[Tensor], AttentionOutput]] = dict(modules)
    runs = dict.fromkeys(modules, repeats)
    sgpa = modules.get(SGPA)
    if isinstance(sgpa, SparseGPAttention) and literal_bytes(shape) <= _LITERAL_LIMIT:
        modules[LITERAL] = sgpa
        layers[LITERAL] = partial(literal_attention, sgpa)
        runs[LITERAL] = min(repeats, _LITERAL_RUNS)
    passes = {method: _pass(layers[method], modules[method], x) for method in layers}
    with (
        warnings.catch_warnings(),
        # Hidden where the output is no terminal.
        tqdm(
            total=sum(runs.values()) + len(runs), desc=name, unit="run", leave=False, disable=None
        ) as bar,
    ):
        # The literal formulas lose digits where the layer doesn't.
        warnings.simplefilter("ignore", JitterWarning)
        kept = {method: _kept_mib(layers[method], modules[method], x) for method in layers}
        timings = time_interleaved(passes, runs, device, bar)
    return {
        method: Cost(1e3 * timing.forward, 1e3 * timing.both, kept[method], timing.runs)
        for method, timing in timings.items()
    }


def _module(method: str, shape: Shape) -> nn.Module:
    dim, heads = shape.dim, shape.heads
    if method == SOFTMAX:
        return SoftmaxAttention(dim, heads)
    if method == KERNEL:
        return KernelAttention(dim, heads, kernel=shape.kernel)
    if method == SGPA:
        return SparseGPAttention(dim, heads, shape.inducing, kernel=shape.kernel)
    if method == CGPT:
        return CorrelatedGPAttention(dim, heads)
    if method == SCGPT:
        return SparseCorrelatedGPAttention(dim, heads, _SPARSE_INDUCING)
    if method == KEPSVGP:
        fixed = None if shape.merge == "addition" else shape.tokens
        return KernelEigenPairAttention(dim, heads, _RANK, merge=shape.merge, max_tokens=fixed)
    raise ValueError(f"method must be one that can be timed, got {method!r}")


def literal_bytes(shape: Shape) -> int:
    """Bytes of the largest T×T tensor of the literal formulas: the RBF kernel's differences."""
    matrix = 4 * shape.batch * shape.heads * shape.tokens**2
    return matrix * (shape.dim // shape.heads if shape.kernel == "rbf" else 1)


def table(costs: Costs) -> str:
    """Markdown table: each method's costs, the goals, and the literal formulas beside ours."""
    rows = [list(_HEAD), ["---", "---", *("---:" for _ in _HEAD[2:])]]
    for name, found in costs.items():
        rows.extend(_rows(name, SHAPES[name], found))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    return "\n".join(
        f"| {' | '.join(cell.ljust(w) for cell, w in zip(row, widths, strict=True))} |"
        for row in rows
    )


def _rows(name: str, shape: Shape, found: dict[str, Cost]) -> list[list[str]]:
    rows: list[list[str]] = []
    for method, cost in found.items():
        ratios = _ratios(cost, found[SOFTMAX])
        rows.append(
            [
                *(name, method, f"{cost.forward_ms:.1f}", f"{ratios[0]:.2f}"),
                *(f"{cost.both_ms:.1f}", f"{ratios[1]:.2f}"),
                *(f"{cost.kept_mib:.1f}", str(cost.runs)),
            ]
        )
        if method in shape.goals:
            rows.append(_goal_row(name, shape.goals[method], ratios, cost))
    if LITERAL in found:
        rows.append(_literal_row(name, found[LITERAL], found[SGPA]))
    elif SGPA in found:
        reason = f"needs over {literal_bytes(shape) / 2**30:.0f} GiB"
        rows.append([name, LITERAL, reason, *("—" for _ in _HEAD[3:])])
    return rows


def _ratios(cost: Cost, base: Cost) -> tuple[float, float]:
    return cost.forward_ms / base.forward_ms, cost.both_ms / base.both_ms


def _goal_row(name: str, goal: Goal, ratios: tuple[float, float], cost: Cost) -> list[str]:
    kept = goal.kept if isinstance(goal.kept, str) else _against(cost.kept_mib, goal.kept)
    times = [_against(ratio, limit) for ratio, limit in zip(ratios, goal[:2], strict=True)]
    return [name, "goal", "", times[0], "", times[1], kept, ""]


def _literal_row(name: str, literal: Cost, ours: Cost) -> list[str]:
    times = _ratios(literal, ours)
    kept = literal.kept_mib / ours.kept_mib
    return [
        *(name, "formula-literal / SGPA", f"{times[0]:.1f}x", "", f"{times[1]:.1f}x", ""),
        *(f"{kept:.1f}x", ""),
    ]


def _against(value: float, limit: float | None) -> str:
    if limit is None:
        return ""
    return f"≤ {limit:g} {'met' if value <= limit else 'missed'}"


def _pass(layer: Callable[[Tensor], AttentionOutput], module: nn.Module, x: Tensor) -> Pass:
    weights = torch.randn_like(x)

    def run(with_gradients: bool) -> None:
        if not with_gradients:
            with torch.no_grad():
                layer(x)
            return
        # The input wants a gradient too, as it does inside a network.
        output = layer(x.detach().requires_grad_())
        ((output.values * weights).sum() + output.penalty).backward()
        module.zero_grad(set_to_none=True)

    return run


def _kept_mib(layer: Callable[[Tensor], AttentionOutput], module: nn.Module, x: Tensor) -> float:
    x = x.detach().requires_grad_()
    owned = {tensor.untyped_storage().data_ptr() for tensor in (x, *module.parameters())}
    return kept_bytes(lambda: layer(x), owned) / 2**20
