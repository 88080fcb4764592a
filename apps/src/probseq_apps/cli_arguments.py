"""What all commands of `probseq` share: how a command looks, and how arguments are refused."""

import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
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


def names_nothing(arguments: Sequence[str]) -> bool:
    """Whether neither recipe nor data are named."""
    return value_of("--recipe", arguments) is None and value_of("--data", arguments) is None


def to_resume(arguments: Sequence[str]) -> Path | None:
    """Folder of the run that the arguments ask to go on with; None where they don't."""
    folder = value_of("--run-dir", arguments)
    return Path(folder) if folder is not None and "--resume" in arguments else None


def share_left(flag: str, steps: int, arguments: Sequence[str]) -> Fraction:
    """Which part of a recipe's steps a flag leaves; a number that is none is refused later."""
    given = value_of(flag, arguments) or ""
    return min(Fraction(int(given), steps), Fraction(1)) if given.isdecimal() else Fraction(1)


def refuse(message: str) -> NoReturn:
    """End with exit status 2.

    Raises:
        SystemExit: always.
    """
    print(f"probseq: error: {message}", file=sys.stderr)
    raise SystemExit(2)
