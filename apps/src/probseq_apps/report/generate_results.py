"""Results of `probseq generate run` over the seeds: rows of tables, and what verdicts compare."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from probseq_apps.report.labels import Direction
from probseq_apps.report.summary import Summary, summarise

# One entry of `results/`, as JSON holds it.
Result = Mapping[str, Any]

BASE = "1-frame"
FLOOR = "patch-k-means"
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


class Group(NamedTuple):
    """All seeds of an arm with a stem.

    Attributes:
        arm: its name.
        stem: `plain`, `layernorm`, or `patch-k-means` for the floor.
        results: one for each seed.
    """

    arm: str
    stem: str
    results: tuple[Result, ...]

    @property
    def name(self) -> str:
        """Arm and stem."""
        return f"{self.arm}, {self.stem}"

    @property
    def is_video(self) -> bool:
        """Whether it is pseudo videos, and no control."""
        return int(self.fact("frames")) > 1 and not self.arm.endswith("-repeat")

    @property
    def is_control(self) -> bool:
        """Whether it spends a video's bits on the image alone."""
        return self.arm.endswith("-repeat") or self.arm.startswith(f"{BASE}-patch")

    def fact(self, name: str) -> Any:
        """What all seeds share, such as bits."""
        return self.results[0][name]

    def summary(self, path: Sequence[str]) -> Summary:
        """A number over the seeds; without a mean where a seed lacks it."""
        return summarise([value_of(result, path) for result in self.results])


def groups_of(results: Sequence[Result]) -> list[Group]:
    """Results by stem, then by arm, in order of appearance; the seeds of each in their order.

    Args:
        results: of all arms, stems and seeds.
    """
    stems = dict.fromkeys(str(result["stem"]) for result in results)
    arms = dict.fromkeys(str(result["arm"]) for result in results)
    found = [Group(arm, stem, _seeds(results, arm, stem)) for stem in stems for arm in arms]
    return [group for group in found if group.results]


def fd_name(results: Sequence[Result]) -> str:
    """What the results' Fréchet distance is called: FID, or FD with the name of the features."""
    names = dict.fromkeys(str(result["reconstruction"]["fd_name"]) for result in results)
    return " / ".join(names)


def is_name(results: Sequence[Result]) -> str:
    """What the results' inception score is called: IS, or IS with the name of the features."""
    names = fd_name(results).split(" / ")
    return " / ".join(f"IS{name.removeprefix('FID').removeprefix('FD')}" for name in names)


def decimals(results: Sequence[Result], path: Sequence[str]) -> int:
    """Decimals that suit the largest mean of a number; tables and statements write the same.

    Args:
        results: of all trained arms, stems and seeds.
        path: keys that lead to the number.
    """
    means = [group.summary(path).mean for group in groups_of(results)]
    largest = max((abs(mean) for mean in means if mean is not None), default=0.0)
    return 4 - sum(largest >= bound for bound in (1.0, 10.0, 1000.0))


def priors_of(results: Sequence[Result]) -> list[str]:
    """Kinds of priors that any result has, in order of appearance."""
    return list(dict.fromkeys(kind for r in results for kind in r.get("generation") or {}))


def _seeds(results: Sequence[Result], arm: str, stem: str) -> tuple[Result, ...]:
    own = [r for r in results if r["arm"] == arm and r["stem"] == stem]
    return tuple(sorted(own, key=lambda result: int(result["seed"])))


def value_of(result: Result, path: Sequence[str]) -> float | None:
    """A number of a result; None where it lacks it.

    Args:
        result: as JSON holds it.
        path: keys that lead to the number.
    """
    found: Any = result
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return None if found is None else float(found)
