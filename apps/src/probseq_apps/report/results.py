"""Results of generated images over the seeds."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from probseq.summary import Summary, summarise
from probseq_apps.report.tables import Measure, decimals_of
from pseudovideo.beyond.sample_evaluator import is_ranked

# One entry of `results/`, as JSON holds it.
Result = Mapping[str, Any]

REAL = "real images, test part"
_WORDS = {
    **{"heat": "heat equation", "learned": "learned encoder", "repeat": "repeated"},
    **{f"{kind}": f"{kind} noise" for kind in ("first-order", "high-order", "matched")},
}


class Group(NamedTuple):
    """All seeds of a model variant."""

    name: str  # the variant's name; of tokenizers, with the stem
    variant: str
    stem: str | None  # of a tokenizer: `plain` or `layernorm`
    results: tuple[Result, ...]  # one for each seed

    @property
    def title(self) -> str:
        """Its name in words; of a tokenizer with the bits of its tokens."""
        stem = {None: "", "plain": ""}.get(self.stem, f"{self.stem}, ")
        bits = self.fact("bits")
        return f"{stem}{words(self.variant)}{'' if bits is None else f' ({bits:,.0f} bits)'}"

    def fact(self, *path: str) -> Any:
        """Return a value that all seeds share, such as parameters; None where there is none."""
        return entry_of(self.results[0], path)

    def summary(self, path: Sequence[str]) -> Summary:
        """Return a number over the seeds; without a mean where a seed lacks it."""
        return summarise([value_of(result, path) for result in self.results])


def words(variant: str) -> str:
    """Return a variant's name in words, such as "4 frames, high-order noise"."""
    match = re.fullmatch(r"(\d+)-frame-?(.*)", variant)
    frames, kind = match.groups() if match else ("", variant)
    head = {"": "", "1": "image alone"}.get(frames, f"{frames} frames")
    kind = re.sub(r"^patch(\d+)$", r"\1x\1 patches", re.sub(r"^(\d+)$", r"\1 steps", kind))
    return ", ".join(filter(None, (head, _WORDS.get(kind, kind.replace("-", " ")))))


def groups_of(results: Sequence[Result]) -> list[Group]:
    """Return results by stem, then by variant, in order of appearance, seeds in their order."""
    stems, variants = (
        list(dict.fromkeys(r.get(key) for r in results)) for key in ("stem", "variant")
    )
    groups: dict[tuple[Any, Any], list[Result]] = {(s, a): [] for s in stems for a in variants}
    for result in sorted(results, key=lambda result: result["seed"]):
        groups[result.get("stem"), result["variant"]].append(result)
    return [
        Group(variant if stem is None else f"{variant}, {stem}", variant, stem, tuple(seeds))
        for (stem, variant), seeds in groups.items()
        if seeds
    ]


def frame_groups(results: Sequence[Result]) -> list[Group]:
    """Return errors of single frames as results of their own, of the variants that have them.

    Each holds in thousandths: "model" and "exact" by frame, "intermediate" and
    "exact_intermediate", means over the frames before the image; "times", the image's in units of
    the exact one. What was not measured is None. The frames of a variant are those of its first
    seed in all seeds.
    """
    entries: list[dict[str, Any]] = []
    for result in results:
        if (errors := result.get("frame_errors")) is None:
            continue
        frames, image = [int(frame) for frame in errors["frames"]], result["frames"]
        entry = {key: result[key] for key in ("variant", "seed", "frames")}
        entry |= {key: errors[key] for key in ("num_images", "num_samples")}
        for kind, label in (("model", "intermediate"), ("exact", "exact_intermediate")):
            values = dict(zip(frames, errors[kind] or [None] * len(frames), strict=True))
            entry[kind] = {str(frame): _thousandths([values[frame]]) for frame in frames}
            entry[label] = _thousandths([values[frame] for frame in frames if frame < image])
        last, least = entry["model"].get(str(image)), entry["exact"].get(str(image))
        entries.append(entry | {"times": last / least if last and least else None})
    return groups_of(entries)


def frames_of(group: Group) -> list[int]:
    """Return the frames whose errors a group of `frame_groups` has."""
    return [int(frame) for frame in group.fact("model")]


def digits_of(groups: Sequence[Group], path: Sequence[str]) -> int:
    """Return the decimals of a number."""
    return decimals_of([group.summary(path).mean for group in groups])


def fd_name(results: Sequence[Result]) -> str:
    """Return the name of the results' Fréchet distance: FID, or FD with the features' name."""
    kinds = ("reconstruction" if "reconstruction" in result else "generation" for result in results)
    names = (entry_of(r, (kind, "fd_name")) for r, kind in zip(results, kinds, strict=True))
    return " / ".join(dict.fromkeys(map(str, names)))


def is_name(results: Sequence[Result]) -> str:
    """Return the name of the results' inception score: IS, or IS with the features' name."""
    names = fd_name(results).split(" / ")
    return " / ".join(f"IS{name.removeprefix('FID').removeprefix('FD')}" for name in names)


def sample_measures(results: Sequence[Result]) -> tuple[Measure, Measure]:
    """Return distance and score of the samples of models."""
    return (
        Measure(fd_name(results), "lower", ("generation", "fd")),
        Measure(is_name(results), "higher", ("generation", "is")),
    )


def unranked(
    groups: Sequence[Group], real: Result, path: Sequence[str] = ("generation",)
) -> frozenset[str]:
    """Return the names of groups whose samples show too little to be compared by a distance."""
    key = "realism" if value_of(real, ("is",)) is None else "is"
    # What an inception score has above 1, that of noise.
    least, of_real = float(key == "is"), value_of(real, (key,))
    scores = {group.name: group.summary((*path, key)).mean for group in groups}
    return frozenset(
        name
        for name, score in scores.items()
        if score is not None and of_real is not None
        if not is_ranked(score - least, of_real - least)
    )


def priors_of(results: Sequence[Result]) -> list[str]:
    """Return the kinds of priors that any result has, in order of appearance."""
    return list(dict.fromkeys(kind for r in results for kind in r.get("generation") or {}))


def value_of(result: Result, path: Sequence[str]) -> float | None:
    """Return a number of a result; None where it lacks it."""
    value = entry_of(result, path)
    return None if value is None else float(value)


def entry_of(result: Result, path: Sequence[str]) -> Any:
    """Return an entry of a result; None where it lacks it."""
    entry: Any = result
    for key in path:
        entry = entry.get(key) if isinstance(entry, Mapping) else None
    return entry


def _thousandths(values: Sequence[float | None]) -> float | None:
    """Return the mean of squared errors per pixel, in thousandths."""
    mean = summarise(values).mean
    return None if mean is None else 1000.0 * mean
