"""Functions that a compiled graph calls and does not look into."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])


def opaque(fake: Callable[..., Any], schema: str | None = None) -> Callable[[Function], Function]:
    """Hide a function of tensors behind an operator while a graph is traced.

    A graph holds no loop: one over tiles would be unrolled, and tie the graph to the sizes that it
    was traced with. Without a graph the function is called as it is. ``fake`` returns empty tensors
    of the shapes and dtypes of the function's results, which are new tensors and have no gradients;
    the schema is that of the operator, by default from the annotations.
    """

    def decorate(function: Function) -> Function:
        name = function.__name__.strip("_")
        operator = torch.library.custom_op(
            f"probseq::{name}", function, mutates_args=(), schema=schema
        )
        operator.register_fake(fake)

        @functools.wraps(function)
        def call(*inputs: Any) -> Any:
            return operator(*inputs) if torch.compiler.is_compiling() else function(*inputs)

        return call  # pyright: ignore[reportReturnType]

    return decorate
