"""`probseq bench attention`: what sparse GP attention costs beside softmax attention.

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

from probseq.errors import JitterWarning
from probseq.transformers import AttentionOutput, KernelAttention, SoftmaxAttention
from probseq_apps.experiments.bench_settings import SHAPES, BenchSettings, Shape
from probseq_apps.experiments.measure import Pass, kept_bytes, time_interleaved
from sgpa import SparseGPAttention
from sgpa.reference import literal_attention

SOFTMAX, KERNEL, SGPA, LITERAL = "softmax", "kernel", "SGPA", "SGPA, formula-literal"
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
    dim, heads = shape.dim, shape.heads
    torch.manual_seed(0)
    x = torch.randn(shape.batch, shape.tokens, dim, device=device)
    sgpa = SparseGPAttention(dim, heads, shape.inducing, kernel=shape.kernel).to(device)
    modules: dict[str, nn.Module] = {
        SOFTMAX: SoftmaxAttention(dim, heads).to(device),
        KERNEL: KernelAttention(dim, heads, kernel=shape.kernel).to(device),
        SGPA: sgpa,
    }
    layers: dict[str, Callable[[Tensor], AttentionOutput]] = dict(modules)
    runs = dict.fromkeys(modules, repeats)
    if literal_bytes(shape) <= _LITERAL_LIMIT:
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
    base, ours = found[SOFTMAX], found[SGPA]
    rows: list[list[str]] = []
    for method, cost in found.items():
        forward, both = cost.forward_ms / base.forward_ms, cost.both_ms / base.both_ms
        rows.append(
            [
                name,
                method,
                *(f"{cost.forward_ms:.1f}", f"{forward:.2f}"),
                *(f"{cost.both_ms:.1f}", f"{both:.2f}"),
                *(f"{cost.kept_mib:.1f}", str(cost.runs)),
            ]
        )
        if method == SGPA:
            goals = (
                _goal(forward, shape.forward),
                _goal(both, shape.both),
                "O(T)" if shape.kept is None else _goal(cost.kept_mib, shape.kept),
            )
            rows.append([name, "goal", "", goals[0], "", goals[1], goals[2], ""])
    if LITERAL in found:
        literal = found[LITERAL]
        times = literal.forward_ms / ours.forward_ms, literal.both_ms / ours.both_ms
        kept = literal.kept_mib / ours.kept_mib
        rows.append(
            [
                *(name, "formula-literal / SGPA", f"{times[0]:.1f}x", "", f"{times[1]:.1f}x", ""),
                *(f"{kept:.1f}x", ""),
            ]
        )
    else:
        reason = f"needs over {literal_bytes(shape) / 2**30:.0f} GiB"
        rows.append([name, LITERAL, reason, *("—" for _ in _HEAD[3:])])
    return rows


def _goal(value: float, limit: float) -> str:
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
