"""What the reports of `probseq generate` hold, by the rows and columns of the thesis' tables.

A method is a row, such as high-order videos, and a metric is a column with what is measured there,
such as `4-frame/fid`. A Fréchet distance in other features than Inception's is `4-frame/fd`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

GENERATE, DIFFUSION, HVAE = "generate", "generate-diffusion", "generate-hvae"
FID, FD = "fid", "fd"
# Channels and sides in pixels of the thesis' images.
SIZES: Mapping[str, tuple[int, int]] = {"cifar10": (3, 32), "celeba": (3, 64), "mnist": (1, 28)}
# Rows of videos; those of one frame are in each of them.
_KINDS = ("first-order", "high-order", "matched", "blur")
_STEMS = ("plain", "layernorm")

Seeds = tuple[float | None, ...]


class Row(NamedTuple):
    """Numbers of a row.

    Attributes:
        seeds: of the runs.
        metrics: values over the seeds by metric.
    """

    seeds: tuple[int, ...]
    metrics: Mapping[str, Seeds]


def generation_rows(report: Mapping[str, Any]) -> dict[str, Row]:
    """Rows of the tables that a report has numbers of.

    Args:
        report: `report.json` of one of the three kinds of experiments.

    Raises:
        KeyError: it is of another version.
    """
    by_arm = _by_arm(report["results"])
    readers = {GENERATE: _tokenizers, DIFFUSION: _diffusion, HVAE: _hvae}
    found = readers[report["experiment"]](by_arm)
    seeds = tuple(dict.fromkeys(int(result["seed"]) for result in report["results"]))
    return {name: Row(seeds, metrics) for name, metrics in found.items() if metrics}


def generation_facts(report: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What the numbers are of, for notes, each without repetitions and in order of appearance.

    Args:
        report: as for `generation_rows`.

    Returns:
        features: names of the Fréchet distances; samples: how many were drawn; splits: of
        inception scores; sampling: sampler and its steps for each frame or window.
    """
    drawn: list[Mapping[str, Any]] = []
    named: list[Mapping[str, Any]] = []
    for result in report["results"]:
        made = result.get("generation") or {}
        if "reconstruction" in result:
            named.append(result["reconstruction"])
            drawn += made.values()
        else:
            named.append(made)
            drawn.append(made)
    sampling = [
        f"{found['sampler']} {found['sampling_steps']:,}" for found in drawn if "sampler" in found
    ]
    return {
        "features": list(dict.fromkeys(str(found["fd_name"]) for found in named)),
        "samples": list(dict.fromkeys(int(found["num_samples"]) for found in drawn)),
        "splits": list(dict.fromkeys(f["is_splits"] for f in drawn if f.get("is_splits"))),
        "sampling": list(dict.fromkeys(sampling)),
    }


def _by_arm(results: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    arms: dict[str, list[Mapping[str, Any]]] = {}
    for result in results:
        # Tokenizers of one arm differ in their stem, too.
        name = f"{result['arm']}/{result['stem']}" if "stem" in result else str(result["arm"])
        arms.setdefault(name, []).append(result)
    return arms


def _tokenizers(
    arms: Mapping[str, Sequence[Mapping[str, Any]]],
) -> dict[str, dict[str, Seeds]]:
    rows: dict[str, dict[str, Seeds]] = {}
    for name, results in arms.items():
        arm, _, stem = name.partition("/")
        # Controls of equal bits are no rows of the table.
        if stem not in _STEMS or arm != f"{results[0]['frames']}-frame":
            continue
        made = [result["reconstruction"] for result in results]
        row = rows.setdefault(f"reconstruction, {stem}", {})
        row |= _distance(arm, made, made)
        row[f"{arm}/psnr"] = tuple(found["psnr"] for found in made)
        for prior in results[0].get("generation") or {}:
            drawn = [result["generation"][prior] for result in results]
            rows.setdefault(f"{prior}, {stem}", {}).update(_distance(arm, drawn, made))
    return rows


def _diffusion(
    arms: Mapping[str, Sequence[Mapping[str, Any]]],
) -> dict[str, dict[str, Seeds]]:
    rows: dict[str, dict[str, Seeds]] = {kind: {} for kind in _KINDS}
    for name, results in arms.items():
        drawn = [result["generation"] for result in results]
        if results[0]["frames"] == 1:
            for row in rows.values():
                row |= _distance(name, drawn, drawn)
        else:
            length = f"{results[0]['frames']}-frame"
            rows[name.removeprefix(f"{length}-")] |= _distance(length, drawn, drawn)
    return rows


def _hvae(arms: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, Seeds]]:
    scores = {
        f"{name}/is": tuple(result["generation"]["is"] for result in results)
        for name, results in arms.items()
    }
    return {"hvae": {name: values for name, values in scores.items() if None not in values}}


def _distance(
    column: str, found: Sequence[Mapping[str, Any]], named: Sequence[Mapping[str, Any]]
) -> dict[str, Seeds]:
    """Fréchet distances under the name that their features have."""
    names = {entry["fd_name"] for entry in named}
    kind = FID if names == {"FID"} else FD
    return {f"{column}/{kind}": tuple(entry["fd"] for entry in found)}
