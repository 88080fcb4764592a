"""What the reports of all kinds of experiments have in common."""

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from probseq_apps.report.summary import Summary, summarise
from probseq_apps.training.runs import read_finished

_PACKAGES = (
    *("probseq-apps", "probseq", "sgpa", "cgpt-transformer", "kepsvgp", "ohsvgp", "pseudovideo"),
    *("torch", "numpy", "scikit-learn"),
)


def machine_facts() -> dict[str, object]:
    """Versions of the software, and the machine."""
    versions = {name: version(name) for name in _PACKAGES} | {"python": platform.python_version()}
    return {"versions": versions, "machine": platform.platform()}


def summaries_of(values: Sequence[Mapping[str, float | None]]) -> dict[str, Summary]:
    """Summary of each metric over the entries of a row."""
    return {name: summarise([found[name] for found in values]) for name in values[0]}


def method_facts(
    title: str,
    summaries: Mapping[str, Summary],
    *,
    seeds: Sequence[int],
    temperatures: Sequence[float],
    train_seconds: Sequence[float],
) -> dict[str, object]:
    """What `report.json` says about a method."""
    return {
        "title": title,
        "seeds": list(seeds),
        "temperatures": list(temperatures),
        "train_seconds": list(train_seconds),
        "metrics": {
            name: {
                "mean": summary.mean,
                "standard_error": summary.standard_error,
                "values": list(summary.values),
            }
            for name, summary in summaries.items()
        },
    }


def seconds_of(*folders: Path) -> float:
    """Time spent training in the run folders that hold a finished run."""
    ends = (read_finished(folder) for folder in folders)
    return round(sum(end["seconds"] for end in ends if end is not None), 3)


def method_list(methods: Mapping[str, Mapping[str, Any]]) -> str:
    """Markdown list of the methods, from `report.json`'s entries."""
    return "\n".join(
        f"- `{name}`: {found['title']}; trained in "
        f"{sum(found['train_seconds']) / len(found['train_seconds']):.1f} s a seed"
        + (
            f"; temperatures {', '.join(f'{t:.3f}' for t in found['temperatures'])}"
            if found["temperatures"]
            else ""
        )
        for name, found in methods.items()
    )


def machine_line(report: Mapping[str, Any]) -> str:
    """Versions and machine in one line."""
    versions = ", ".join(f"{name} {number}" for name, number in report["versions"].items())
    return f"{versions}; {report['machine']}."


def pictures(plots: Sequence[Path]) -> str:
    """Markdown of the plots."""
    return "\n\n".join(f"![{path.stem}](plots/{path.name})" for path in plots)
