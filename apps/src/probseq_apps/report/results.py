"""Results of generated images over the seeds: what tables, findings and plots share."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from probseq.summary import Summary, summarise
from probseq_apps.report.tables import Measure, decimals_of

# One entry of `results/`, as JSON holds it.
Result = Mapping[str, Any]

BASE = "1-frame"
FLOOR = "patch-k-means"
REAL = "real images, test part"
# Mean squared errors per pixel are shown in thousandths.
_PER_PIXEL = 1000.0


class Group(NamedTuple):
    """All seeds of a model variant."""

    name: str  # the arm's name; of tokenizers, with the stem
    results: tuple[Result, ...]  # one for each seed

    @property
    def arm(self) -> str:
        """Name of the arm, without the stem."""
        return str(self.fact("arm"))

    @property
    def stem(self) -> str:
        """Stem of a tokenizer: `plain`, `layernorm`, or `patch-k-means` for the baseline."""
        return str(self.fact("stem"))

    def fact(self, *path: str) -> Any:
        """Return what all seeds share, such as parameters; None where the variant lacks it."""
        return entry_of(self.results[0], path)

    def summary(self, path: Sequence[str]) -> Summary:
        """Return a number over the seeds; without a mean where a seed lacks it."""
        return summarise([value_of(result, path) for result in self.results])


def groups_of(results: Sequence[Result]) -> list[Group]:
    """Return results by stem, then by arm, in order of appearance, seeds in their order."""
    stems = dict.fromkeys(result.get("stem") for result in results)
    arms = dict.fromkeys(str(result["arm"]) for result in results)
    groups: list[Group] = []
    for stem in stems:
        for arm in arms:
            own = [r for r in results if r["arm"] == arm and r.get("stem") == stem]
            if own:
                name = arm if stem is None else f"{arm}, {stem}"
                groups.append(Group(name, tuple(sorted(own, key=lambda found: found["seed"]))))
    return groups


def frame_groups(results: Sequence[Result]) -> list[Group]:
    """Return errors of single frames as results of their own, of the arms that have them.

    Each holds in thousandths: "model" and "exact" by frame, "intermediate" and
    "exact_intermediate", means over the frames before the image, and "last", the image's. What was
    not measured is None. The frames of an arm are those of its first seed in all seeds.
    """
    found: list[dict[str, Any]] = []
    for result in results:
        errors = result.get("frame_errors")
        if errors is None:
            continue
        frames = [int(frame) for frame in errors["frames"]]
        model = dict(zip(frames, errors["model"], strict=True))
        exact = dict(zip(frames, errors["exact"] or [None] * len(frames), strict=True))
        before = [frame for frame in frames if frame < result["frames"]]
        found.append(
            {
                **{key: result[key] for key in ("arm", "seed", "frames")},
                "num_images": errors["num_images"],
                "num_samples": errors["num_samples"],
                "model": {str(frame): _scaled([model[frame]]) for frame in frames},
                "exact": {str(frame): _scaled([exact[frame]]) for frame in frames},
                "intermediate": _scaled([model[frame] for frame in before]),
                "exact_intermediate": _scaled([exact[frame] for frame in before]),
                "last": _scaled([model.get(result["frames"])]),
            }
        )
    return groups_of(found)


def frames_of(group: Group) -> list[int]:
    """Return the frames whose errors a group of `frame_groups` has."""
    return [int(frame) for frame in group.fact("model")]


def lengths_of(groups: Sequence[Group]) -> list[int]:
    """Return the lengths T of the videos, rising; the image alone is none."""
    return sorted({group.fact("frames") for group in groups if group.fact("frames") > 1})


def digits_of(groups: Sequence[Group], path: Sequence[str]) -> int:
    """Return the decimals of a number in tables and findings."""
    return decimals_of([group.summary(path).mean for group in groups])


def fd_name(results: Sequence[Result]) -> str:
    """Return what the results' Fréchet distance is called: FID, or FD with the features' name."""
    paths = (("reconstruction", "fd_name"), ("generation", "fd_name"))
    names = (entry_of(r, paths[0] if "reconstruction" in r else paths[1]) for r in results)
    return " / ".join(dict.fromkeys(map(str, names)))


def is_name(results: Sequence[Result]) -> str:
    """Return what the results' inception score is called: IS, or IS with the features' name."""
    names = fd_name(results).split(" / ")
    return " / ".join(f"IS{name.removeprefix('FID').removeprefix('FD')}" for name in names)


def sample_measures(results: Sequence[Result]) -> tuple[Measure, Measure]:
    """Return distance and score of the samples of models."""
    return (
        Measure(fd_name(results), "lower", ("generation", "fd")),
        Measure(is_name(results), "higher", ("generation", "is")),
    )


def priors_of(results: Sequence[Result]) -> list[str]:
    """Return the kinds of priors that any result has, in order of appearance."""
    return list(dict.fromkeys(kind for r in results for kind in r.get("generation") or {}))


def value_of(result: Result, path: Sequence[str]) -> float | None:
    """Return a number of a result; None where it lacks it."""
    found = entry_of(result, path)
    return None if found is None else float(found)


def entry_of(result: Result, path: Sequence[str]) -> Any:
    """Return an entry of a result; None where it lacks it."""
    found: Any = result
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _scaled(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _PER_PIXEL * fmean(known) if known and len(known) == len(values) else None
