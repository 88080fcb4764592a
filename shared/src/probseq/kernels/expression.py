"""Kernels written as text, for command lines and settings files; nothing is ever evaluated."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import reduce
from operator import add, mul
from typing import NamedTuple

import torch

from probseq.checks import check_counts, check_positive
from probseq.kernels.base import Constant, Kernel
from probseq.kernels.dot_product import Linear
from probseq.kernels.periodic import Periodic, White
from probseq.kernels.stationary import (
    RBF,
    Matern12,
    Matern32,
    Matern52,
    RationalQuadratic,
    Walk,
)

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
_DEEPEST = 50
_LONGEST = 1000  # characters
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_]\w*)|(?P<sign>[+*(),=])"
    r"|(?P<end>$))"
)


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
    if len(kernel) > _LONGEST:
        raise ValueError(f"kernel must have at most {_LONGEST} characters, got {len(kernel)}")
    return _Parser(kernel, dim, lengthscale, outputscale).kernel()


@dataclass
class _Parser:
    text: str
    dim: int
    lengthscale: float
    outputscale: float
    at: int = 0
    depth: int = 0
    token: str = field(default="", init=False)
    kind: str = field(default="", init=False)
    start: int = field(default=0, init=False)

    def kernel(self) -> Kernel:
        self.step()
        kernel = self.sum()
        if self.kind != "end":
            raise self.error("'+', '*' or the end")
        return kernel

    def step(self) -> None:
        """Read the next token."""
        match = _TOKEN.match(self.text, self.at)
        if match is None or match.lastgroup is None:
            remainder = self.text[self.at :]
            self.at += len(remainder) - len(remainder.lstrip())
            self.token, self.start = self.text[self.at], self.at
            raise self.error("a kernel, a number, '+', '*' or brackets")
        self.kind, self.token = match.lastgroup, match[match.lastgroup]
        self.start, self.at = match.start(match.lastgroup), match.end()

    def take(self, sign: str) -> bool:
        """Pass over a sign if it is next."""
        if self.kind != "sign" or self.token != sign:
            return False
        self.step()
        return True

    def sum(self, *, first: bool = True) -> Kernel:
        """Read terms; those of a factor that is not the first of its product say less."""
        scale = self.outputscale
        self.outputscale = scale if first else 1.0
        terms = [self.product(first=first)]
        while self.take("+"):
            terms.append(self.product())
        self.outputscale = scale
        return reduce(add, terms)

    def product(self, *, first: bool = True) -> Kernel:
        factor, kernels = 1.0, list[Kernel]()
        while True:
            if self.kind == "number":
                factor *= self.number()
            else:
                kernels.append(self.factor(first=first and not kernels))
            if not self.take("*"):
                break
        if not kernels:
            raise self.error("a kernel: '*' and its name")
        kernel = reduce(mul, kernels)
        if factor == 1.0:
            return kernel
        scaled = factor * kernel
        next(scaled.parameters()).requires_grad_(False)
        return scaled

    def factor(self, *, first: bool) -> Kernel:
        if self.take("("):
            self.depth += 1
            if self.depth > _DEEPEST:
                raise self.error(f"at most {_DEEPEST} brackets")
            inner = self.sum(first=first)
            if not self.take(")"):
                raise self.error("')'")
            return inner
        if self.kind != "name":
            raise self.error("a kernel")
        name = self.token
        if name not in KERNELS:
            raise self.error(f"one of {', '.join(KERNELS)}", near=tuple(KERNELS))
        self.step()
        values: dict[str, float] = {}
        named = False
        if self.take("("):
            while not self.take(")"):
                named = self.argument(name, values, named=named)
                if not self.take(",") and self.token != ")":
                    raise self.error("',' or ')'")
        if "lengthscale" in KERNELS[name].arguments and name != "periodic":
            values.setdefault("lengthscale", self.lengthscale)
        if "outputscale" in KERNELS[name].arguments and first:
            values.setdefault("outputscale", self.outputscale)
        made = self.make(name, values)
        if not first:
            for parameter, value in made.named_parameters():
                if parameter == "raw_outputscale":
                    value.requires_grad_(False)
        return made

    def argument(self, kernel: str, values: dict[str, float], *, named: bool) -> bool:
        """Read an argument, and return whether it has its name."""
        arguments = KERNELS[kernel].arguments
        if by_name := self.kind == "name":
            if self.token not in arguments:
                raise self.error(f"an argument of {kernel}: {', '.join(arguments)}", near=arguments)
            name = self.token
            self.step()
            if not self.take("="):
                raise self.error("'='")
        elif named:
            raise self.error(f"the name of an argument of {kernel}, as the one before")
        elif len(values) < len(arguments):
            name = arguments[len(values)]
        else:
            raise self.error(
                f"at most {len(arguments)} arguments of {kernel}: {', '.join(arguments)}"
            )
        if name in values:
            raise self.error(f"{name} of {kernel} only once")
        values[name] = self.number()
        return by_name

    def number(self) -> float:
        if self.kind != "number":
            raise self.error("a number above 0")
        value = float(self.token)
        if not 0 < value < float("inf"):
            raise self.error("a number above 0")
        self.step()
        return value

    def make(self, name: str, values: dict[str, float]) -> Kernel:
        exact = {k: torch.tensor(value, dtype=torch.float64) for k, value in values.items()}
        return KERNELS[name].make(self.dim, **exact).double()

    def error(self, expected: str, near: tuple[str, ...] = ()) -> ValueError:
        got = f"{self.token!r} at position {self.start + 1}" if self.token else "its end"
        close = get_close_matches(self.token.lower(), near, 1)
        hint = f": did you mean {close[0]}?" if close else ""
        return ValueError(f"kernel {self.text!r} must have {expected}, got {got}{hint}")
