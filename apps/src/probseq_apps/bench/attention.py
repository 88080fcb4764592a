"""`probseq bench attention`: what GP attention costs beside softmax attention.

The forward pass is timed as in training, but without gradients, and with nothing cached.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from cgpt import CorrelatedGPAttention, SparseCorrelatedGPAttention
from kepsvgp import KernelEigenPairAttention
from probseq.transformers import KernelAttention, SoftmaxAttention
from probseq_apps.bench import interleaved, single_thread, timed
from probseq_apps.report.tables import aligned
from probseq_apps.settings.bench import BenchSettings
from sgpa import SparseGPAttention

SOFTMAX, KERNEL = "softmax", "kernel"
SHARED = "SGPA, inducing"  # covariance="inducing"
_HEAD = (
    *("shape", "method", "forward, ms", "/ softmax", "forward + backward, ms", "/ softmax"),
    "kept for backward, MiB",
)


class Shape(NamedTuple):
    """One problem to time: sequences, the kernel, and the methods beside softmax and kernel."""

    batch: int
    tokens: int
    heads: int
    dim: int
    kernel: Literal["rbf", "exponential"]
    methods: tuple[str, ...]
    inducing: int = 32  # SGPA's number of global inducing inputs of each head
    # How KEP-SVGP's two processes become one output.
    merge: Literal["addition", "concatenation"] = "addition"


# SCGPT has 16 inducing inputs in each set, KEP-SVGP rank 10, everywhere.
SHAPES: dict[str, Shape] = {
    "cifar": Shape(100, 64, 4, 128, "rbf", ("SGPA", SHARED, "SCGPT")),
    "imdb": Shape(32, 512, 8, 128, "exponential", ("SGPA", SHARED, "KEP-SVGP"), inducing=50),
    "long": Shape(1, 4096, 4, 128, "rbf", ("SGPA", SHARED, "KEP-SVGP")),
    "cgpt-cifar": Shape(25, 64, 4, 128, "rbf", ("CGPT",)),
    "scgpt-long": Shape(2, 512, 8, 128, "rbf", ("SCGPT",)),
    "kepsvgp-cifar": Shape(128, 64, 12, 384, "rbf", ("KEP-SVGP",), merge="concatenation"),
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
        *(s.dim, s.heads, 10), merge=s.merge, max_tokens=None if s.merge == "addition" else s.tokens
    ),
}

Costs = dict[str, dict[str, float]]  # of each method: medians of its passes, and memory


def bench_attention(settings: BenchSettings) -> None:
    """Measure, and print the table."""
    with single_thread(settings.device) as device:
        costs = {name: measure_shape(name, settings.repeats, device) for name in settings.shape}
    rows = [row for name, of_shape in costs.items() for row in _rows(name, of_shape)]
    print(aligned([_HEAD, *rows]))
    print(f"\ntorch {torch.__version__}, {settings.device}, {settings.repeats} repeats")


def measure_shape(name: str, repeats: int, device: torch.device) -> Costs:
    """Return the costs of all methods on one problem."""
    torch.manual_seed(0)
    shape = SHAPES[name]
    x = torch.randn(shape.batch, shape.tokens, shape.dim, device=device)
    weights = torch.randn_like(x)
    layers = {
        method: _LAYERS[method](shape).to(device) for method in (SOFTMAX, KERNEL, *shape.methods)
    }

    def work(layer: nn.Module, back: bool) -> None:
        # The input wants a gradient too, as it does inside a network.
        with torch.set_grad_enabled(back):
            output = layer(x.detach().requires_grad_(back))
            if back:
                ((output.values * weights).sum() + output.penalty).backward()
                layer.zero_grad(set_to_none=True)

    cases = {
        (method, back): timed(partial(work, layer, back), device, gradients=True)
        for method, layer in layers.items()
        for back in (False, True)
    }
    seconds = interleaved(dict.fromkeys(cases.values(), repeats), name)
    return {
        method: {
            "forward_ms": 1e3 * seconds[cases[method, False]],
            "both_ms": 1e3 * seconds[cases[method, True]],
            "kept_mib": saved_bytes(layer, x) / 2**20,
        }
        for method, layer in layers.items()
    }


def saved_bytes(layer: nn.Module, x: Tensor) -> int:
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
    for tensor in (x, *layer.parameters()):
        storages.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(storage.nbytes() for storage in storages.values())


def _rows(name: str, costs: Costs) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for method, cost in costs.items():
        ratios = {key: cost[key] / costs[SOFTMAX][key] for key in ("forward_ms", "both_ms")}
        times = [text for key in ratios for text in (f"{cost[key]:.1f}", f"{ratios[key]:.2f}")]
        rows.append((name, method, *times, f"{cost['kept_mib']:.1f}"))
    return rows
