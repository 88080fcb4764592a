"""Results of `probseq generate run` over the seeds: rows of tables, and what verdicts compare."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from probseq_apps.report.arm_results import Result, decimals_of, value_of
from probseq_apps.report.summary import Summary, summarise

BASE = "1-frame"
FLOOR = "patch-k-means"


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
    return decimals_of([group.summary(path).mean for group in groups_of(results)])


def priors_of(results: Sequence[Result]) -> list[str]:
    """Kinds of priors that any result has, in order of appearance."""
    return list(dict.fromkeys(kind for r in results for kind in r.get("generation") or {}))


def _seeds(results: Sequence[Result], arm: str, stem: str) -> tuple[Result, ...]:
    own = [r for r in results if r["arm"] == arm and r["stem"] == stem]
    return tuple(sorted(own, key=lambda result: int(result["seed"])))
