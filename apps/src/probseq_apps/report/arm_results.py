"""Results of arms over the seeds: what tables, verdicts and pictures of all comparisons share."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from probseq_apps.report.labels import Direction
from probseq_apps.report.summary import Summary, summarise

# One entry of `results/`, as JSON holds it.
Result = Mapping[str, Any]

REAL = "real images, test part"


class Measure(NamedTuple):
    """A number of each result.

    Attributes:
        label: what it is called.
        unit: of its values, with a space before; empty for none.
        direction: its good end.
        path: keys that lead to it.
    """

    label: str
    unit: str
    direction: Direction
    path: tuple[str, ...]


class ArmGroup(NamedTuple):
    """All seeds of an arm.

    Attributes:
        name: the arm's name.
        results: one for each seed.
    """

    name: str
    results: tuple[Result, ...]

    def fact(self, *path: str) -> Any:
        """What all seeds share, such as parameters; None where the arm lacks it."""
        return entry_of(self.results[0], path)

    def summary(self, path: Sequence[str]) -> Summary:
        """A number over the seeds; without a mean where a seed lacks it."""
        return summarise([value_of(result, path) for result in self.results])


def arms_of(results: Sequence[Result]) -> list[ArmGroup]:
    """Results by arm, in order of appearance, the seeds of each in their order.

    Args:
        results: of all arms and seeds.
    """
    names = dict.fromkeys(str(result["arm"]) for result in results)
    return [
        ArmGroup(
            name,
            tuple(
                sorted((r for r in results if r["arm"] == name), key=lambda found: found["seed"])
            ),
        )
        for name in names
    ]


def decimals_of(means: Sequence[float | None]) -> int:
    """Decimals that suit the largest of some means; tables and statements write the same.

    Args:
        means: of one number; None where it is not defined.
    """
    largest = max((abs(mean) for mean in means if mean is not None), default=0.0)
    return 4 - sum(largest >= bound for bound in (1.0, 10.0, 1000.0))


def generation_name(results: Sequence[Result], start: str) -> str:
    """What the Fréchet distance or the inception score of some results is called.

    Args:
        results: of all arms and seeds.
        start: `FD`, which is FID with Inception's features, or `IS`.
    """
    names = dict.fromkeys(str(entry_of(result, ("generation", "fd_name"))) for result in results)
    if start == "FD":
        return " / ".join(names)
    return " / ".join(f"{start}{name.removeprefix('FID').removeprefix('FD')}" for name in names)


def value_of(result: Result, path: Sequence[str]) -> float | None:
    """A number of a result; None where it lacks it.

    Args:
        result: as JSON holds it.
        path: keys that lead to the number.
    """
    found = entry_of(result, path)
    return None if found is None else float(found)


def entry_of(result: Result, path: Sequence[str]) -> Any:
    """An entry of a result; None where it lacks it.

    Args:
        result: as JSON holds it.
        path: keys that lead to the entry.
    """
    found: Any = result
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found
