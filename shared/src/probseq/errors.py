"""Errors and warnings that more than one package raises."""

import importlib
from types import ModuleType


class CholeskyError(ValueError):
    """A matrix stays indefinite after the largest jitter, or holds NaN or infinity."""


class JitterWarning(UserWarning):
    """A Cholesky factorisation needed more jitter than was asked for."""


class MissingExtraError(ImportError):
    """An optional library is not installed; the message names the extra that brings it."""


def require(module: str, *, extra: str, distribution: str) -> ModuleType:
    """Import an optional library by its dotted name when it is used, or raise MissingExtraError."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"{module.split('.')[0]} is needed here and is not installed: "
            f"pip install '{distribution}[{extra}]'"
        ) from error
