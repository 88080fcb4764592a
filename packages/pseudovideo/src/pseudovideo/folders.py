"""Folders of files beside a `config.json`, which holds what they are and the sha256 of each.

A writer works aside and puts its files in place when all are written and on the disk, `config.json`
last: one that is killed leaves the folder as it was, or with files that their hashes refuse.
"""

import contextlib
import hashlib
import json
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

from probseq.files import sha256, sync, write_atomic

CONFIG = "config.json"
_FORMAT = 1
_ASIDE = ".tmp-"


@contextlib.contextmanager
def write_folder(folder: Path, kind: str, config: dict[str, Any]) -> Generator[Path]:
    """Give a directory aside to write the files of a folder into, then put them in place.

    Args:
        folder: made if it is not there; what it holds stays until all is written.
        kind: the class whose folder it is.
        config: what `config.json` tells of it: plain values of JSON.

    Yields:
        The directory to write into.

    Raises:
        ValueError: `folder` is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"folder must be a directory, got the file {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(f"{_ASIDE}*"):  # of writers that were killed
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()
    with tempfile.TemporaryDirectory(dir=folder, prefix=_ASIDE) as name:
        aside = Path(name)
        yield aside
        files = sorted(aside.iterdir())
        values = {"format": _FORMAT, "class": kind, "config": config}
        hashes = {path.name: sha256(path) for path in files}
        hashes[CONFIG] = _hash_values(values, hashes)
        for path in files:
            sync(path)
            path.replace(folder / path.name)
        write_atomic(folder / CONFIG, json.dumps({**values, "sha256": hashes}, indent=2) + "\n")


class SavedFolder:
    """A folder that `write_folder` wrote; its `config.json` is read and checked at once.

    Args:
        folder: the folder.
        kind: the class whose folder it must be; None for any.
        files: names of all its files but `config.json`.
        optional: names of files that it may have beside them.

    Attributes:
        files: names of those that it has, `config.json` among them.
        kind: the class whose folder it is.
        config: what it tells of itself.

    Raises:
        FileNotFoundError: a file is missing; the message names it.
        ValueError: `config.json` is damaged, or tells of another class or version.
    """

    def __init__(
        self,
        folder: Path,
        kind: str | None,
        files: tuple[str, ...],
        optional: tuple[str, ...] = (),
    ) -> None:
        for name in (CONFIG, *files):
            if not (folder / name).is_file():
                raise FileNotFoundError(
                    f"{folder} must hold a saved {kind or 'model'}, and has no file {name}"
                )
        path = folder / CONFIG
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} is damaged: {error.msg} in line {error.lineno}") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is damaged: {error}") from error
        if not isinstance(values, dict) or "format" not in values:
            raise ValueError(f"{path} is damaged: it must hold the format of the folder")
        if values["format"] != _FORMAT:
            raise ValueError(
                f"{path} must be of format {_FORMAT}, got {values['format']!r}: it was written by "
                "another version"
            )
        hashes = values.pop("sha256", None)
        if (
            values.keys() != {"format", "class", "config"}
            or not isinstance(values["config"], dict)
            or not isinstance(hashes, dict)
            or not {CONFIG, *files} <= hashes.keys() <= {CONFIG, *files, *optional}
            or hashes.pop(CONFIG) != _hash_values(values, hashes)
        ):
            raise ValueError(
                f"{path} is damaged or was changed by hand: it does not have the sha256 that it "
                "was written with"
            )
        if kind not in (None, values["class"]):
            raise ValueError(f"{folder} holds a {values['class']}, not a {kind}")
        self.files = frozenset({CONFIG, *hashes})
        self.kind, self.config = str(values["class"]), values["config"]
        self._folder, self._hashes = folder, hashes

    def checked(self, name: str) -> Path:
        """Return the path of a file whose content is what was written.

        Raises:
            FileNotFoundError: it is not there.
            ValueError: it is not.
        """
        path = self._folder / name
        if not path.is_file():
            raise FileNotFoundError(
                f"{self._folder} must hold a saved {self.kind}, and has no file {name}"
            )
        if sha256(path) != self._hashes[name]:
            raise ValueError(
                f"{path} is damaged, or belongs to other settings than those beside it: it does "
                f"not have the sha256 that {CONFIG} tells of"
            )
        return path


def _hash_values(values: dict[str, Any], hashes: dict[str, Any]) -> str:
    """Hash of all that `config.json` holds, but this hash."""
    text = json.dumps([values, hashes], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
