"""Compare two records of `golden_record.py`: all numbers to the last bit, times left out.

    python golden_compare.py BASE NEW [--base-flags TOML] [--accept KIND ...]

Prints a line a command, and exits with 1 if anything differs that is not accepted. Kinds of
differences: `exit`, `files` (which there are), `numbers`, `pictures`, `tables`, `text` (all other
words), `settings` (defaults, `config.json`, and `settings` elsewhere) and `state` (of checkpoints).
"""

import argparse
import csv
import hashlib
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageSequence
from safetensors.torch import load_file

from golden_record import COMMANDS

# Times, and facts of the machine. The sizes and hashes that a manifest has of other files are theirs.
IGNORED = re.compile(r"(^|\.)(\w*seconds\w*|versions|machine|sha256|size)(\.|$)")
_HIDDEN = (
    (re.compile(r"\d{8}-\d{6}"), "TIME"),
    (re.compile(r"events\.out\.tfevents\.\S+"), "events"),
    (re.compile(r"\b\d[\d.,]*(?= (?:s|ms|minutes?|seconds?)\b)"), "#"),
    (re.compile(r"\b\d+\.\d+\.\d+[\w.+]*"), "VERSION"),
    (re.compile(r"\b(?:Linux|macOS|Windows)-\S+"), "MACHINE"),
)
_BAR = re.compile(r"[^\r\n]*\d+%\|[^\r\n]*|\r")
_ROW = re.compile(r"\s*\|.*|\s*\S.*? {2,}.*\d.*")
_NUMBER = re.compile(r"[-+]?\d[\d.,]*(e[-+]?\d+)?")
_FLAG = re.compile(r"(?:^│ (?:-h, )?|, )(--[a-z][\w.-]*)")

Leaves = dict[str, tuple[str, object]]


class Difference(NamedTuple):
    """Something that is not equal: its kind, where it stands, and what stands there."""

    kind: str
    place: str
    base: object
    new: object


def shown(text: str) -> str:
    """Text without progress bars, times, versions and machines."""
    text = _BAR.sub("", text)
    for pattern, name in _HIDDEN:
        text = pattern.sub(name, text)
    return text


def read_help(text: str) -> dict[str, str]:
    """The default of each flag that a help lists; names of one flag are joined by commas."""
    entries = [" ".join(entry) for entry in _help_entries(text)]
    found: dict[str, str] = {}
    for entry in entries:
        default = re.search(r"\(default: ?((?:(?!\(default:).)*)\)\s*$", entry)
        names = ",".join(_FLAG.findall(entry.split("  ")[0]))
        found[names] = default[1].strip() if default else ""
    return found


def _help_entries(text: str) -> Iterator[list[str]]:
    entry: list[str] = []
    for line in text.splitlines():
        if re.match(r"│ +\S", line) is None or re.match(r"│ -", line):
            if entry:
                yield entry
            entry = [line.rstrip("│ ")] if line.startswith("│ -") else []
        elif entry:
            entry.append(line.strip("│ "))
    if entry:
        yield entry


def step_leaves(
    record: Mapping[str, Any], contents: Path, changed: set[str], flags: Mapping[str, str]
) -> Leaves:
    """Everything that is compared of a step, by its place.

    Args:
        record: what `golden_record` wrote of it.
        contents: folder of the files' contents.
        changed: files to look into.
        flags: what flags that have another name here are called in the list of commands.
    """
    bench = record["arguments"][0] == "bench"
    found: Leaves = {"exit": ("exit", record["exit"])}
    found["files"] = ("files", sorted(shown(path) for path in record["files"]))
    if "--help" in record["arguments"][1:] and "│ -" in record["out"]:
        for names, default in read_help(record["out"]).items():
            old = ",".join(flags.get(name, name) for name in names.split(","))
            found[f"help: {old}"] = ("settings", default)
    else:
        found |= _text_leaves("out", record["out"], masked=bench)
    found |= _text_leaves("err", record["err"], masked=bench)
    for path in sorted(changed & record["files"].keys()):
        content = contents / record["files"][path]
        for place, leaf in _file_leaves(path, content, masked=bench).items():
            found[f"{shown(path)}: {place}"] = leaf
    return found


def _text_leaves(name: str, text: str, *, masked: bool) -> Leaves:
    lines = shown(text).splitlines()
    if masked:  # only names of rows and columns
        lines = [re.sub(r"[ -]+", " ", _NUMBER.sub("#", line)) for line in lines]
        lines = [re.sub(r"\b(?:met|missed)\b", "#", line) for line in lines]
    rows = [line.rstrip() for line in lines if _ROW.fullmatch(line)]
    words = [line.rstrip() for line in lines if line.strip() and not _ROW.fullmatch(line)]
    return {f"{name}, rows": ("tables", rows), f"{name}, words": ("text", words)}


def _file_leaves(path: str, content: Path, *, masked: bool) -> Leaves:
    """What a file holds."""
    ending = Path(path).suffix
    if ending in (".md", ".txt"):
        return _text_leaves("", content.read_text("utf-8"), masked=masked)
    if ending in (".png", ".gif"):
        with Image.open(content) as image:
            frames = [np.asarray(frame.convert("RGBA")) for frame in ImageSequence.Iterator(image)]
        return {"pixels": ("pictures", [_array(frame) for frame in frames])}
    if ending == ".csv":
        with content.open(encoding="utf-8", newline="") as file:
            return _flat(list(csv.reader(file)), path)
    if ending in (".json", ".jsonl"):
        text = content.read_text("utf-8")
        values = json.loads(text) if ending == ".json" else list(map(json.loads, text.splitlines()))
        return _flat(_masked(values) if masked else values, path)
    if ending == ".npz":
        with np.load(content, allow_pickle=False) as arrays:
            return _flat({name: _array(array) for name, array in arrays.items()}, path)
    if ending == ".safetensors":
        return _flat({name: _array(t) for name, t in load_file(content).items()}, path)
    if ending == ".pt":
        return _flat(torch.load(content, weights_only=True), path)
    # Files of events have times in them; what they are for is compared elsewhere.
    return {} if "tfevents" in path else {"bytes": ("numbers", _digest(content.read_bytes()))}


def _flat(value: object, path: str, place: str = "") -> Leaves:
    if IGNORED.search(place):
        return {}
    if isinstance(value, Mapping):
        inner = {f"{place}.{key}".lstrip("."): item for key, item in value.items()}
    elif isinstance(value, list | tuple):
        inner = {f"{place}.{key}".lstrip("."): item for key, item in enumerate(value)}
    else:
        leaf = _array(value) if isinstance(value, torch.Tensor) else value
        return {place: (_kind(path, place), leaf)}
    if not inner:
        return {place: (_kind(path, place), [])}
    return {key: leaf for name, item in inner.items() for key, leaf in _flat(item, path, name).items()}


def _kind(path: str, place: str) -> str:
    if path.endswith("config.json") or place.split(".")[0] == "settings":
        return "settings"
    return "state" if path.endswith((".pt", "manifest.json")) else "numbers"


def _masked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _masked(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_masked(item) for item in value]
    return value if isinstance(value, str) else "#"


def _array(array: Any) -> str:
    """Type, shape, mean and hash."""
    if isinstance(array, torch.Tensor):
        array = array.detach()
        array = array.view(torch.int16) if array.dtype == torch.bfloat16 else array
        array = array.numpy()
    array = np.ascontiguousarray(array)
    mean = f" mean {array.mean(dtype=np.float64):.6g}" if array.dtype.kind in "fiub" else ""
    return f"{array.dtype}{list(array.shape)}{mean} {_digest(array.tobytes())}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def read_steps(folder: Path) -> dict[str, dict[str, Any]]:
    """Records of a folder by their names, `SCENARIO/STEP`, in order."""
    paths = sorted(folder.glob("*/*.json"))
    return {f"{p.parent.name}/{p.stem}": json.loads(p.read_text("utf-8")) for p in paths}


def changed_files(name: str, steps: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Files that a step wrote or changed."""
    scenario, _, number = name.partition("/")
    before = steps.get(f"{scenario}/{int(number) - 1:02d}", {"files": {}})["files"]
    return {path for path, digest in steps[name]["files"].items() if before.get(path) != digest}


def old_names(arguments: list[str], path: Path) -> dict[str, str]:
    """What the flags that a tree's list renames for a command were called."""
    listed = tomllib.loads(path.read_text("utf-8")).get("renamed", {}) if path.is_file() else {}
    found: dict[str, str] = {}
    for command, flags in listed.items():
        if f"{' '.join(arguments)} ".startswith(f"{command} "):
            found |= {new.split()[0]: old.split()[0] for old, new in flags.items()}
    return found


def compare(base: Path, new: Path, base_flags: Path) -> Iterator[tuple[str, list[Difference]]]:
    """Yield each step's name, and what differs.

    Args:
        base: folder of the records of the old tree.
        new: that of the new tree.
        base_flags: list of commands of the old tree, for its names of flags.
    """
    steps = [read_steps(folder) for folder in (base, new)]
    for name in sorted(steps[0].keys() | steps[1].keys()):
        if not all(name in found for found in steps):
            yield name, [Difference("exit", "step", *(name in found for found in steps))]
            continue
        changed = set[str]().union(*(changed_files(name, found) for found in steps))
        leaves = [
            step_leaves(found[name], folder / "contents", changed, old_names(found[name]["arguments"], flags))
            for found, folder, flags in zip(steps, (base, new), (base_flags, COMMANDS), strict=True)
        ]
        yield name, list(differences(*leaves))


def differences(base: Leaves, new: Leaves) -> Iterator[Difference]:
    """Yield what is not equal to the last bit."""
    for place in base | new:
        kind = (base.get(place) or new[place])[0]
        one, other = (found[place][1] if place in found else "absent" for found in (base, new))
        if repr(one) == repr(other):
            continue
        if isinstance(one, list) and isinstance(other, list):
            lost, found = ([x for x in a if x not in b] for a, b in ((one, other), (other, one)))
            one, other = (lost, found) if lost or found else (one, other)
        yield Difference(kind, place, one, other)


def main() -> int:
    """Print a line a step, and say whether all that is not accepted is equal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--base-flags", type=Path, default=COMMANDS)
    parser.add_argument("--accept", nargs="*", default=[])
    parser.add_argument("--show", type=int, default=3, help="differences of a kind to show")
    options = parser.parse_args()
    count, bad = 0, 0
    steps = read_steps(options.new) | read_steps(options.base)
    for name, found in compare(options.base, options.new, options.base_flags):
        kinds = sorted({difference.kind for difference in found})
        refused = sorted(set(kinds) - set(options.accept))
        verdict = "DIFFERS" if refused else "accepted" if kinds else "equal"
        command = shlex.join(steps[name]["arguments"])
        print(f"{verdict:8} {name} {' '.join(kinds)}: {command}"[:160])
        for kind in kinds:
            same = [difference for difference in found if difference.kind == kind]
            for difference in same[: options.show]:
                print(f"    {kind}: {difference.place}: {difference.base} -> {difference.new}"[:400])
            if len(same) > options.show:
                print(f"    {kind}: and {len(same) - options.show} more")
        count, bad = count + 1, bad + bool(refused)
    print(f"{count} commands, {bad} differ")
    return int(bad > 0 or count == 0)


if __name__ == "__main__":
    sys.exit(main())
