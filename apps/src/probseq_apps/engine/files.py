"""Files that no crash tears and that tell when they were altered, and the folder of a run.

Importable without torch.
"""

import contextlib
import hashlib
import io
import json
import shutil
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from probseq import files

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 1
CONFIG, METRICS, FINISHED = "config.json", "metrics.jsonl", "finished.json"
CHECKPOINTS, MANIFEST = "checkpoints", "manifest.json"

# All that a run writes; nothing else in a folder is ever deleted. The configuration goes last, so
# that a folder whose deletion was cut short still counts as a run.
_REPORTS = ("report.json", "report.md", "report.html", "plots")
_ENTRIES = (FINISHED, *_REPORTS, "tensorboard", METRICS, CHECKPOINTS, CONFIG)
_OTHER = "does not hold what was written: copy it again, or delete it and make it anew"


class DamagedFileError(ValueError):
    """A file is not what was written; the message names it."""


class RunExistsError(FileExistsError):
    """The folder already holds a run, or files that are no run's."""


class ForeignFileError(DamagedFileError):
    """A file is none of probseq's; the message names it."""


class ConfigMismatchError(ValueError):
    """A run is to be resumed with another configuration than it was started with."""


@contextlib.contextmanager
def writing(path: Path, *errors: type[Exception]) -> Generator[None]:
    """Name the file in an error of the machine, such as a full disk, and say what to do."""
    try:
        yield
    except (OSError, *errors) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OSError(
            f"{path} cannot be written: {reason}; make room or name another folder, and go on "
            "with --resume"
        ) from error


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replace a file at once; its folder is made."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomic(path, content)


def write_json(path: Path, values: Mapping[str, object]) -> None:
    """Write plain values with the format's version and their own hash; the folder is made."""
    content = json.loads(json.dumps({"format": FORMAT, **values}, allow_nan=False))
    content["sha256"] = _digest(content)
    write_atomic(path, json.dumps(content, indent=2) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read what `write_json` wrote; raise a ValueError that names the file for all else."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path} is damaged and cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise DamagedFileError(f"{path} is damaged: it must hold a JSON object")
    values = cast("dict[str, Any]", content)
    if "format" not in values:
        raise ForeignFileError(f"{path} is damaged, or was not written by probseq")
    if values["format"] != FORMAT:
        raise ValueError(
            f"{path} has format {values['format']!r}, and this version of probseq reads format "
            f"{FORMAT}: read it with the version that wrote it"
        )
    digest = values.pop("sha256", None)
    if isinstance(digest, dict):  # of each file, as models have it
        raise ForeignFileError(
            f"{path} is of a model that save_pretrained wrote, and no run's: name the run's folder"
        )
    if digest != _digest(values):
        raise DamagedFileError(f"{path} {_OTHER}")
    del values["format"]
    return values


def _digest(values: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def save_arrays(path: Path, tensors: Mapping[str, "Tensor"]) -> None:
    """Write tensors as plain arrays by name, with their hash, all or nothing."""
    import numpy as np

    arrays: dict[str, Any] = {name: value.numpy() for name, value in tensors.items()}
    content = io.BytesIO()
    np.savez(content, sha256=np.array(_arrays_digest(arrays)), **arrays)
    write_atomic(path, content.getvalue())


def load_arrays(path: Path) -> dict[str, "Tensor"]:
    """Read what `save_arrays` wrote; raise a DamagedFileError for all else."""
    import numpy as np
    import torch

    content = io.BytesIO(path.read_bytes())
    try:
        with np.load(content, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except MemoryError:
        raise
    except Exception as error:  # damaged archives end in errors of a dozen kinds
        raise DamagedFileError(
            f"{path} is damaged and cannot be read as arrays ({error}): copy it again, or delete "
            "it and make it anew with --resume"
        ) from error
    if "sha256" not in arrays:
        raise ForeignFileError(f"{path} has no sha256: it was not written by probseq")
    if str(arrays.pop("sha256")) != _arrays_digest(arrays):
        raise DamagedFileError(f"{path} {_OTHER} with --resume")
    return {name: torch.from_numpy(value) for name, value in arrays.items()}


def _arrays_digest(arrays: Mapping[str, Any]) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(arrays.items()):
        digest.update(f"{name} {value.dtype.str} {value.shape}".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()


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


def write_manifest(folder: Path, **facts: object) -> None:
    """List the files of a folder with size and hash, beside facts; nothing unlisted is loaded."""
    excluded = (MANIFEST, f".tmp-{MANIFEST}")  # the second is left by a writer that was killed
    paths = [path for path in sorted(folder.iterdir()) if path.name not in excluded]
    for path in paths:
        files.sync(path)
    write_json(folder / MANIFEST, {**facts, "files": {p.name: _entry(p) for p in paths}})


def _entry(path: Path) -> dict[str, object]:
    return {"sha256": files.sha256(path), "size": path.stat().st_size}


def check_manifest(folder: Path) -> dict[str, Any]:
    """Return a folder's manifest; raise if it, or a listed file, is gone or altered."""
    manifest = read_json(folder / MANIFEST)
    listed = manifest.get("files")
    entries: dict[Any, Any] = listed if isinstance(listed, dict) else {"": listed}
    for name, entry in entries.items():
        path = folder / name
        if not isinstance(entry, dict) or path.name != name:
            raise DamagedFileError(f"{folder / MANIFEST} is damaged: entry {name!r} is no file's")
        if not path.is_file():
            raise DamagedFileError(f"{path} is missing")
        if entry != _entry(path):
            raise DamagedFileError(f"{path} does not hold what was written")
    return manifest


def prepare_run_dir(
    path: Path,
    config: Mapping[str, object],
    *,
    resume: bool = False,
    overwrite: bool = False,
    patterns: Sequence[str] = (),
) -> None:
    """Make a folder ready for a run and store its configuration; raise if it holds something else.

    Without a run to resume one starts. A run to overwrite is deleted, with the folders that match
    `patterns`; other files stay.
    """
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"run folder {path} must be a folder, and it is a file")
    names = {entry.name for entry in path.iterdir()} if path.is_dir() else set[str]()
    names.discard(f".tmp-{CONFIG}")  # left by a start that was killed
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
    if not overwrite:
        _compare(path, json.loads(json.dumps(config)))
    else:
        with sole_use(path):  # nobody loses the files that he is working with
            for entry in [
                match for pattern in (*patterns, *_ENTRIES) for match in path.glob(pattern)
            ]:
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()
        write_json(path / CONFIG, config)


@contextlib.contextmanager
def sole_use(path: Path) -> Generator[None]:
    """Keep other processes out of a run's folder; a process that dies gives it back."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    with (path / CONFIG).open("r+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunExistsError(
                f"another process works in {path}: wait for its end, or choose another folder"
            ) from error
        yield


def read_finished(path: Path) -> dict[str, Any] | None:
    """Read how a finished run ended; None while it is not finished."""
    return read_json(path / FINISHED) if (path / FINISHED).exists() else None


def _compare(path: Path, config: Mapping[str, object]) -> None:
    if not (path / CONFIG).exists():
        raise ConfigMismatchError(
            f"{path} holds a run without {CONFIG}, so nobody can tell how it was started: "
            "overwrite it or choose another folder"
        )
    stored, current = dict(flatten(read_json(path / CONFIG))), dict(flatten(config))
    pairs = {k: [d.get(k, "(absent)") for d in (stored, current)] for k in sorted(stored | current)}
    lines = [f"{k}: {a!r} in the run, {b!r} now" for k, (a, b) in pairs.items() if a != b]
    if lines:
        raise ConfigMismatchError(
            f"{path} was started with another configuration: {'; '.join(lines)}; "
            "resume it as it was started, or choose another folder"
        )


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Turn nested mappings into dotted keys."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
