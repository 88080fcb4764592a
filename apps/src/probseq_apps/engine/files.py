"""The folder of a run: what it holds, when it may be written to, and writes that no crash tears."""

import contextlib
import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

CONFIG = "config.json"
METRICS = "metrics.jsonl"
CHECKPOINTS = "checkpoints"
FINISHED = "finished.json"

# All that a run writes; nothing else in a folder is ever deleted. The configuration goes last, so
# that a folder whose deletion was cut short still counts as a run.
_ENTRIES = (FINISHED, "report.json", "plots", "tensorboard", METRICS, CHECKPOINTS, CONFIG)


def sync(path: Path) -> None:
    """Force a file, or a folder's list of names, onto the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replace a file at once: temporary sibling, fsync, rename, fsync of the folder.

    Args:
        path: the file.
        content: text to be stored in UTF-8, or bytes.
    """
    temporary = path.with_name(f".tmp-{path.name}")
    temporary.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    sync(temporary)
    temporary.replace(path)
    sync(path.parent)


def sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# What numpy raises on a damaged file.
_DAMAGE = (OSError, EOFError, ValueError, TypeError, KeyError, BadZipFile, zlib.error)


def load_arrays(path: Path) -> dict[str, Any]:
    """Read plain arrays by name from an NPZ file; raise in one line if it is damaged."""
    import numpy as np

    with path.open("rb") as file:
        try:
            with np.load(file, allow_pickle=False) as arrays:
                return dict(arrays)
        except _DAMAGE as error:
            raise ValueError(
                f"{path} is damaged ({error}): delete it and let the command that wrote it go on"
            ) from error


class RunExistsError(FileExistsError):
    """The folder already holds a run, or files that are no run's."""


class ConfigMismatchError(ValueError):
    """A run is to be resumed with another configuration than it was started with."""


def prepare_run_dir(
    path: Path, config: Mapping[str, object], *, resume: bool = False, overwrite: bool = False
) -> None:
    """Make a folder ready for a run and store its configuration.

    Args:
        path: the run's folder.
        config: the whole configuration, as values that JSON can hold.
        resume: go on with the run that the folder holds; start one where it holds none.
        overwrite: delete the run that the folder holds; other files in it stay.

    Raises:
        RunExistsError: the folder is not empty and neither `resume` nor `overwrite` is asked for,
            or it holds files but no run, which has a configuration.
        ConfigMismatchError: the run to resume has another configuration; lists the keys.
        NotADirectoryError: the path is a file.
        ValueError: `resume` and `overwrite` are both asked for.
    """
    if resume and overwrite:
        raise ValueError("resume and overwrite exclude each other: ask for one of them")
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"run folder {path} must be a folder, and it is a file")
    names = {entry.name for entry in path.iterdir()} if path.is_dir() else set[str]()
    names.discard(f".tmp-{CONFIG}")  # left by a start that was killed
    config = json.loads(json.dumps(config, allow_nan=False))
    if names.intersection(_ENTRIES):
        if overwrite and CONFIG not in names:
            raise RunExistsError(
                f"{path} holds no {CONFIG}, so it is no run's: choose an empty or a new folder"
            )
        if overwrite:
            _delete_run(path)
        elif not resume:
            raise RunExistsError(
                f"{path} already holds a run: resume it, overwrite it, or choose another folder"
            )
        else:
            _compare(path, config)
            return
    elif names:
        raise RunExistsError(
            f"{path} holds files that belong to no run ({sorted(names)[0]}): "
            "choose an empty or a new folder"
        )
    path.mkdir(parents=True, exist_ok=True)
    write_atomic(path / CONFIG, json.dumps(config, indent=2) + "\n")


@contextlib.contextmanager
def sole_use(path: Path) -> Generator[None]:
    """Keep other processes out of a run's folder; a process that dies gives it back.

    Raises:
        RunExistsError: another process works in the folder.
    """
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
    marker = path / FINISHED
    return json.loads(marker.read_text(encoding="utf-8")) if marker.exists() else None


def write_finished(path: Path, result: Mapping[str, object]) -> None:
    """Mark a run as finished."""
    write_atomic(path / FINISHED, json.dumps(result, indent=2) + "\n")


def _delete_run(path: Path) -> None:
    for name in _ENTRIES:
        entry = path / name
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)


def _compare(path: Path, config: Mapping[str, object]) -> None:
    file = path / CONFIG
    if not file.exists():
        raise ConfigMismatchError(
            f"{path} holds a run without {CONFIG}, so nobody can tell how it was started: "
            "overwrite it or choose another folder"
        )
    old = dict(flatten(json.loads(file.read_text(encoding="utf-8"))))
    new = dict(flatten(config))
    missing = "(absent)"
    lines = [
        f"{key}: {old.get(key, missing)!r} in the run, {new.get(key, missing)!r} now"
        for key in sorted(old.keys() | new.keys())
        if old.get(key, missing) != new.get(key, missing)
    ]
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
