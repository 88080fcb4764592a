"""The folder of a run and its files, in the one store of `probseq.files`.

Importable without torch.
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from errno import EDQUOT, EFBIG, ENOSPC
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probseq import files
from probseq.files import ASIDE, LOCK, Format

if TYPE_CHECKING:
    from torch import Tensor

RUN_FILE = Format("file of a run", 3)
CONFIG, METRICS, FINISHED = "config.json", "metrics.jsonl", "finished.json"
CHECKPOINTS = "checkpoints"
FULL_DISK = (ENOSPC, EDQUOT, EFBIG)  # numbers of errors
DATA_HASH = "data_sha256"  # in the configuration of a run on data of one's own

# All that a run writes; nothing else in a folder is ever deleted. The configuration goes last, so
# that a folder whose deletion was cut short still counts as a run.
_REPORTS = ("report.json", "report.md", "report.html", "table.csv", "table.tex", "plots")
_ENTRIES = (FINISHED, *_REPORTS, METRICS, CHECKPOINTS, CONFIG)


class RunExistsError(FileExistsError):
    """The folder already holds a run, or files that are no run's."""


class ConfigMismatchError(ValueError):
    """A run is to be resumed with another configuration than it was started with."""


def write_json(path: Path, values: Mapping[str, object]) -> None:
    """Write values that JSON can hold."""
    files.write_json(path, RUN_FILE, values)


def read_json(path: Path) -> dict[str, Any]:
    """Read what `write_json` wrote."""
    return files.read_json(path, RUN_FILE)


def save_arrays(path: Path, tensors: Mapping[str, "Tensor"]) -> None:
    """Write tensors as arrays by name."""
    files.write_arrays(path, RUN_FILE, {name: x.numpy() for name, x in tensors.items()})


def load_arrays(path: Path) -> dict[str, "Tensor"]:
    """Read what `save_arrays` wrote."""
    import torch

    arrays = files.read_arrays(path, RUN_FILE)
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def save_groups(path: Path, groups: Mapping[str, Mapping[str, "Tensor"]]) -> None:
    """Write tensors as arrays named `GROUP/FIELD`."""
    named = {f"{group}/{name}": t for group, of in groups.items() for name, t in of.items()}
    save_arrays(path, named)


def load_groups(path: Path) -> dict[str, dict[str, "Tensor"]]:
    """Read what `save_groups` wrote; a group's name may have slashes, a field's has none."""
    groups: dict[str, dict[str, Tensor]] = {}
    for key, value in load_arrays(path).items():
        name, _, field = key.rpartition("/")
        groups.setdefault(name, {})[field] = value
    return groups


def prepare_run_dir(
    path: Path,
    config: Mapping[str, object],
    *,
    resume: bool = False,
    overwrite: bool = False,
    patterns: Sequence[str] = (),
    longer: Mapping[str, Sequence[str]] = {},
) -> None:
    """Make a folder ready for a run and store its configuration; raise if it holds something else.

    Without a run to resume one starts. A run to overwrite is deleted, with the folders that match
    `patterns`; other files stay. Lengths of training, the keys of `longer`, may be larger than
    before: what then has to be made again, the patterns of that key and the reports, is deleted.
    """
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"run folder {path} must be a folder, and it is a file")
    names = _entries(path)
    if not names:
        return write_json(path / CONFIG, config)
    fault = ""
    if not names.intersection(_ENTRIES):
        fault = f"holds files that belong to no run ({min(names)}): choose an empty or a new folder"
    elif overwrite and CONFIG not in names:
        fault = f"holds no {CONFIG}, so it is no run's: choose an empty or a new folder"
    elif not (resume or overwrite):
        fault = "already holds a run: resume it, overwrite it, or choose another folder"
    if fault:
        raise RunExistsError(f"{path} {fault}")
    if overwrite:
        _delete(path, (*patterns, *_ENTRIES))
    elif grown := _compare(path, json.loads(json.dumps(config)), longer):
        _delete(path, [*_REPORTS, *(pattern for key in grown for pattern in longer[key])])
    else:
        return
    write_json(path / CONFIG, config)


def may_hold_run(path: Path) -> bool:
    """Return whether a folder holds a run, or nothing, or is not there yet."""
    names = _entries(path)
    return not path.is_file() and (not names or bool(names.intersection(_ENTRIES)))


def _entries(path: Path) -> set[str]:
    names = {entry.name for entry in path.iterdir()} if path.is_dir() else set[str]()
    return {name for name in names if not name.startswith((ASIDE, LOCK))}


def read_finished(path: Path) -> dict[str, Any] | None:
    """Read how a finished run ended; None while it is not finished."""
    return read_json(path / FINISHED) if (path / FINISHED).exists() else None


def _delete(folder: Path, patterns: Sequence[str]) -> None:
    """Delete what matches in a folder; of what lies behind a link below it the link alone."""
    for name in [x.relative_to(folder) for pattern in patterns for x in folder.glob(pattern)]:
        steps = [folder / step for step in (*reversed(name.parents[:-1]), name)]
        entry = next((step for step in steps if step.is_symlink()), folder / name)
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)


def _compare(
    path: Path, config: Mapping[str, object], longer: Mapping[str, Sequence[str]]
) -> list[str]:
    """Return the lengths that have grown; raise if anything else is another."""
    if not (path / CONFIG).exists():
        raise ConfigMismatchError(
            f"{path} holds a run without {CONFIG}, so nobody can tell how it was started: "
            "overwrite it or choose another folder"
        )
    stored, current = dict(flatten(read_json(path / CONFIG))), dict(flatten(config))
    pairs = {k: [d.get(k, "(absent)") for d in (stored, current)] for k in sorted(stored | current)}
    grown = [k for k, (a, b) in pairs.items() if k in longer and _is_less(a, b)]
    different = {k: pair for k, pair in pairs.items() if pair[0] != pair[1] and k not in grown}
    if different.keys() == {DATA_HASH}:
        raise ConfigMismatchError(
            f"the data are others than those that {path} was started with: bring them back, or "
            "choose another folder"
        )
    lines = [f"{k}: {a!r} in the run, {b!r} now" for k, (a, b) in different.items()]
    if lines:
        raise ConfigMismatchError(
            f"{path} was started with another configuration: {'; '.join(lines)}; "
            "resume it as it was started, or choose another folder"
        )
    return grown


def _is_less(first: object, second: object) -> bool:
    return isinstance(first, int) and isinstance(second, int) and first < second


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Turn nested mappings into dotted keys."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
