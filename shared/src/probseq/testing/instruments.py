"""Instruments of the test suites: fixed noise, a record of operators, a compiler."""

import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["OperatorRecord", "batch_failure", "compile_failure", "constant_noise"]

_HALF = (torch.bfloat16, torch.float16)


@contextmanager
def constant_noise(value: float) -> Generator[None]:
    """Replace every standard normal draw by ``value``: 0 gives means, 1 means plus deviations."""

    def constant(
        *size: Any,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> Tensor:
        shape = size if isinstance(size[0], int) else tuple(size[0])
        return torch.full(shape, value, dtype=dtype, device=device)

    def fill(empty: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        return empty.fill_(value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "randn", constant)
        patch.setattr(Tensor, "normal_", fill)
        yield


class OperatorRecord(TorchDispatchMode):
    """Remember what the operators inside a ``with`` block return, backward passes included."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0  # elements of the largest tensor
        self.half: set[str] = set()  # names of the operators that returned half precision

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operator and note its results."""
        results = func(*args, **(kwargs or {}))
        for result in results if isinstance(results, (tuple, list)) else (results,):
            if isinstance(result, Tensor):
                self.largest = max(self.largest, result.numel())
                if result.dtype in _HALF:
                    self.half.add(func.overloadpacket.__name__)
        return results


def compile_failure(imports: str, modules: Sequence[str], device: str = "cpu") -> str | None:
    """Compile attention modules into one graph each and compare results and gradients.

    In another process: the shape checks of a test session cannot be traced. ``imports`` are
    statements to run first, ``modules`` expressions that make the modules, of width 4, for at least
    5 tokens. The CPU runs the graph as it was traced, cuda the kernels that are generated for it.
    The failure is returned as text, ``None`` without one.
    """
    return _failure(_HEAD + _COMPILE, imports, modules, device)


def batch_failure(imports: str, modules: Sequence[str]) -> str | None:
    """Compile and export attention modules once for batches of every size.

    Three sizes: compiled into one graph, which torch makes anew for the second size and keeps for
    the third, into one whose sizes are all open, and exported with an open batch.

    Arguments are those of :func:`compile_failure`.
    """
    return _failure(_HEAD + _BATCHES, imports, modules, "cpu")


def _failure(program: str, imports: str, modules: Sequence[str], device: str) -> str | None:
    makers = ", ".join(f"lambda: {expression}" for expression in modules)
    program = program.format(imports=imports, modules=makers, device=device)
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    return None if result.returncode == 0 else result.stderr


_HEAD = """
import torch
from torch.testing import assert_close
{imports}

torch.set_num_threads(1)
generator = torch.Generator().manual_seed(0)
"""
_BATCHES = """
from torch._dynamo.testing import CompileCounter

def inputs(batch):
    x = torch.randn(batch, 5, 4, generator=generator, dtype=torch.float64)
    return x, torch.arange(5) < torch.tensor([5, 3, 4, 2, 5])[:batch, None]

for make in [{modules}]:
    torch.manual_seed(0)
    module = make().double().eval()
    counters = {{None: CompileCounter(), True: CompileCounter()}}
    functions = [
        torch.compile(module, fullgraph=True, backend=counter, dynamic=dynamic)
        for dynamic, counter in counters.items()
    ]
    with torch.no_grad():
        batch = {{0: torch.export.Dim("batch", max=64)}}
        exported = torch.export.export(module, inputs(3), dynamic_shapes=(batch, batch))
        for function in (*functions, exported.module()):
            torch._dynamo.reset()
            for size in (3, 5, 2):
                given = inputs(size)
                torch.manual_seed(1)
                expected = module(*given)
                torch.manual_seed(1)
                assert_close(tuple(function(*given)), tuple(expected))
    graphs = [counter.frame_count for counter in counters.values()]
    assert graphs[0] <= 2 and graphs[1] == 1, (module, "graphs for three sizes", graphs)
"""
_COMPILE = """
import operator

x = torch.randn(2, 5, 4, generator=generator, dtype=torch.float64).to("{device}")
mask = (torch.arange(5) < torch.tensor([5, 3])[:, None]).to("{device}")
backend = "aot_eager"

def checked(graph, inputs):
    # torch 2.11 has wrong gradients where the forward pass of an autograd.Function is in place.
    bodies = [body for name, body in graph.named_children() if name.startswith("fwd_body")]
    for node in (node for body in bodies for node in body.graph.nodes):
        name = str(getattr(node.target, "__name__", node.target))
        if node.target is getattr(operator, name, None):  # and_ is none
            in_place = name in ("setitem", "iadd", "isub", "imul", "itruediv", "ipow")
        else:
            in_place = name.endswith("_") and not name.endswith("__")
        in_place = in_place or node.kwargs.get("inplace") or "out" in node.kwargs
        assert not (node.op.startswith("call") and in_place), node.format_node()
    return torch._dynamo.lookup_backend(backend)(graph, inputs)

if x.is_cuda:
    import torch._inductor.config

    backend = "inductor"
    torch._inductor.config.fallback_random = True  # generated kernels would draw other numbers
for make in [{modules}]:
    torch.manual_seed(0)
    module = make().double().to("{device}")
    compiled = torch.compile(module, fullgraph=True, backend=checked)
    results = []
    for function in (module, compiled):
        torch.manual_seed(1)
        leaf = x.clone().requires_grad_()
        values, penalty = function(leaf, mask)
        loss = values.square().sum() + penalty
        gradients = torch.autograd.grad(loss, (leaf, *module.parameters()))
        results.append((values, penalty, *gradients))
    assert_close(results[1], results[0])
    module.eval()
    with torch.no_grad():
        torch.manual_seed(1)
        expected = module(x)
        torch.manual_seed(1)
        assert_close(tuple(compiled(x)), tuple(expected))
    torch._dynamo.reset()
"""
