"""Kernels written as text, for command lines and settings files; nothing is ever evaluated."""

import ast
import sys
from collections.abc import Callable
from difflib import get_close_matches
from functools import reduce
from operator import add, mul
from typing import NamedTuple

import torch

from probseq.checks import check_counts, check_positive
from probseq.kernels.base import Constant, Kernel
from probseq.kernels.dot_product import Linear
from probseq.kernels.periodic import Periodic, White
from probseq.kernels.stationary import RBF, Matern12, Matern32, Matern52, RationalQuadratic, Walk

__all__ = ["KERNELS", "parse_kernel"]


class _Kind(NamedTuple):
    make: Callable[..., Kernel]
    arguments: tuple[str, ...]  # in the order that they have without names


_SCALES = ("lengthscale", "outputscale")
KERNELS = {
    "rbf": _Kind(RBF, _SCALES),
    "matern12": _Kind(Matern12, _SCALES),
    "matern32": _Kind(Matern32, _SCALES),
    "matern52": _Kind(Matern52, _SCALES),
    "rational_quadratic": _Kind(RationalQuadratic, ("lengthscale", "alpha", "outputscale")),
    "periodic": _Kind(Periodic, ("period", *_SCALES)),
    "walk": _Kind(Walk, ("step", "outputscale")),
    "linear": _Kind(Linear, ("outputscale",)),
    "constant": _Kind(Constant, ("outputscale",)),
    "white": _Kind(White, ("outputscale",)),
}
_LONGEST = 1000  # characters


def parse_kernel(
    kernel: str, dim: int = 1, *, lengthscale: float = 1.0, outputscale: float = 1.0
) -> Kernel:
    """Return the kernel that a text such as ``"periodic(365.25)*rbf(900) + 0.5*matern32"`` names.

    Sums, products, positive numbers as factors of the variance, and brackets; names are those of
    ``KERNELS``, with positive numbers as arguments, in order or, after those, by name. In a product
    only the first kernel's variance is learned: the evidence knows no more than the product of all.
    Of a later factor that is a sum the first term's variance is fixed, at one if it says none.

    The kernel, in float64.

    Args:
        kernel: the expression.
        dim: number of input dimensions.
        lengthscale: of kernels on distances that do not say theirs (a ``periodic`` one's is 1).
        outputscale: of each term that does not say its own.
    """
    check_counts(dim=dim)
    check_positive(lengthscale=lengthscale, outputscale=outputscale)
    text = kernel.strip()
    if not 1 <= len(text) <= _LONGEST:
        raise ValueError(f"kernel must have 1 to {_LONGEST} characters, got {len(text)}")
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        reason = getattr(error, "msg", error)
        raise ValueError(f"kernel {kernel!r} must be an expression: {reason}") from error
    return _Reader(text, dim, lengthscale).read_sum(tree, outputscale, first=True)


class _Reader(NamedTuple):
    text: str
    dim: int
    lengthscale: float

    def read_sum(self, node: ast.expr, scale: float, *, first: bool) -> Kernel:
        """Read terms; those of a factor that is not the first of its product say less."""
        scale = scale if first else 1.0
        term, *others = _operands(node, ast.Add)
        terms = [self.read_product(term, scale, first=first)]
        return reduce(add, terms + [self.read_product(each, scale, first=True) for each in others])

    def read_product(self, node: ast.expr, scale: float, *, first: bool) -> Kernel:
        factor, kernels = 1.0, list[Kernel]()
        for each in _operands(node, ast.Mult):
            alone = first and not kernels
            if isinstance(each, ast.Constant):
                factor *= self.read_number(each)
            elif isinstance(each, ast.BinOp) and isinstance(each.op, ast.Add):
                kernels.append(self.read_sum(each, scale, first=alone))
            else:
                kernels.append(self.read_kernel(each, scale, first=alone))
        if not kernels:
            raise self.error(node, "a kernel: '*' and its name")
        kernel = reduce(mul, kernels)
        if factor == 1.0:
            return kernel
        scaled = factor * kernel
        next(scaled.parameters()).requires_grad_(False)
        return scaled

    def read_kernel(self, node: ast.expr, scale: float, *, first: bool) -> Kernel:
        head = node.func if isinstance(node, ast.Call) else node
        if not isinstance(head, ast.Name):
            raise self.error(node, "kernels, numbers, '+', '*' and brackets")
        if head.id not in KERNELS:
            raise self.error(head, f"one of {', '.join(KERNELS)}", near=tuple(KERNELS))
        make, names = KERNELS[head.id]
        values = self.read_arguments(node, head.id, names) if isinstance(node, ast.Call) else {}
        if "lengthscale" in names and head.id != "periodic":
            values.setdefault("lengthscale", self.lengthscale)
        if first:
            values.setdefault("outputscale", scale)
        exact = {key: torch.tensor(value, dtype=torch.float64) for key, value in values.items()}
        kernel = make(self.dim, **exact).double()
        if not first:
            kernel.get_parameter("raw_outputscale").requires_grad_(False)
        return kernel

    def read_arguments(
        self, call: ast.Call, kernel: str, names: tuple[str, ...]
    ) -> dict[str, float]:
        if len(call.args) > len(names):
            extra = call.args[len(names)]
            raise self.error(extra, f"at most {len(names)} arguments of {kernel}: {names}")
        values = {
            name: self.read_number(each) for name, each in zip(names, call.args, strict=False)
        }
        for keyword in call.keywords:
            if keyword.arg not in names:
                raise self.error(keyword, f"an argument of {kernel}: {names}", near=names)
            if keyword.arg in values:
                raise self.error(keyword, f"{keyword.arg} of {kernel} only once")
            values[keyword.arg] = self.read_number(keyword.value)
        return values

    def read_number(self, node: ast.expr) -> float:
        value = node.value if isinstance(node, ast.Constant) else None
        number = value if isinstance(value, int | float) and value is not True else 0
        if 0 < number <= sys.float_info.max:
            return float(number)
        raise self.error(node, "a number above 0")

    def error(
        self, node: ast.expr | ast.keyword, expected: str, near: tuple[str, ...] = ()
    ) -> ValueError:
        got = ast.get_source_segment(self.text, node) or ""
        close = get_close_matches(got.partition("=")[0].lower(), near, 1)
        hint = f": did you mean {close[0]}?" if close else ""
        return ValueError(
            f"kernel {self.text!r} must have {expected}, got {got!r} at position "
            f"{node.col_offset + 1}{hint}"
        )


def _operands(node: ast.expr, operator: type[ast.operator]) -> list[ast.expr]:
    """Return what a chain of sums or of products has between its signs, from left to right."""
    operands, left = list[ast.expr](), [node]
    while left:
        each = left.pop()
        if isinstance(each, ast.BinOp) and isinstance(each.op, operator):
            left += [each.right, each.left]
        else:
            operands.append(each)
    return operands
