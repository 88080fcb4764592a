"""What all commands of `probseq` share: how a command looks, and how arguments are refused."""

import sys
from collections.abc import Sequence
from typing import NoReturn, Protocol, runtime_checkable


@runtime_checkable
class Command(Protocol):
    """What the command line asks of a parsed command."""

    @property
    def debug(self) -> bool:
        """Whether errors show where they came from."""
        ...

    def execute(self) -> None:
        """Do it; imports what it needs."""
        ...


def value_of(flag: str, arguments: Sequence[str]) -> str | None:
    """What stands behind a flag, before the arguments are read; the last one counts."""
    value = None
    for index, argument in enumerate(arguments):
        if argument == flag and index + 1 < len(arguments):
            value = arguments[index + 1]
        elif argument.startswith(f"{flag}="):
            value = argument.removeprefix(f"{flag}=")
    return value


def refuse(message: str) -> NoReturn:
    """End with exit status 2.

    Raises:
        SystemExit: always.
    """
    print(f"probseq: error: {message}", file=sys.stderr)
    raise SystemExit(2)
