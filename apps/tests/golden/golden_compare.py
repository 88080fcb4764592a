"""Compare two records of `golden_record.py`: all numbers to the last bit, times left out.

    python golden_compare.py BASE NEW [--base-flags TOML] [--accept KIND ...]

Prints a line a command, and exits with 1 if anything differs that is not accepted. Kinds of
differences: `exit`, `files` (which there are), `numbers`, `pictures`, `tables` (rows of text),
`text` (all other words), `settings` (defaults, `config.json`, and `settings` in other files) and
`state` (what checkpoints hold beside weights).
"""

import argparse
import csv
import hashlib
import io
import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from golden_record import FLAGS, renamed_flags
from PIL import Image, ImageSequence
from safetensors.torch import load_file

# Times, facts of the machine, and hashes of files that are compared themselves.
IGNORED = re.compile(
    r"(^|\.)(\w*seconds\w*|versions|machine|sha256|format|size)(\.|$)|^(kind|seal|files)(\.|$)"
)
HIDDEN = (
    (re.compile(r"[^\r\n]*\d+%\|[^\r\n]*|\r"), ""),  # progress bars
    (re.compile(r"\d{8}-\d{6}"), "TIME"),
    (re.compile(r"about [^\n]* of training[^\n]*\n"), ""),
    (re.compile(r"events\.out\.tfevents\.\S+"), "events"),
    (re.compile(r"\b\d[\d.,]*(?= (?:s|ms|minutes?|seconds?)\b)"), "#"),
    (re.compile(r"\b\d+\.\d+\.\d+[\w.+]*"), "VERSION"),
    (re.compile(r"\b(?:Linux|macOS|Windows)-[^\s\"]+"), "MACHINE"),
    (re.compile(r"/\S*/(?:old|new)/work/[\w-]+"), "FOLDER"),
)
ROW = re.compile(r"\s*\|.*|\s*\S.*? {2,}.*\d.*")
NUMBER = re.compile(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?")
Leaves = dict[str, tuple[str, Any]]


def shown(text: str) -> str:
    """Text without progress bars, times, versions and machines."""
    for pattern, name in HIDDEN:
        text = pattern.sub(name, text)
    return text


def read_help(text: str) -> dict[str, tuple[list[str], list[str], str]]:
    """Flags of a help text: their first name, then all names, choices, and the default."""
    found: dict[str, tuple[list[str], list[str], str]] = {}
    entries = re.split(r"^│ (?=-)", text.replace("\n╰", "\n│ -"), flags=re.MULTILINE)
    for entry in entries[1:]:
        lines = [line.strip("│ ") for line in entry.splitlines()]
        names = re.findall(r"(?:^|, )(--[a-z][\w.-]*)", lines[0])
        choices = re.search(r"\{([\w,.-]+)\}", lines[0])
        default = re.search(r".*\(default: ?(.*)\)", " ".join(lines))
        if names:
            values = choices[1].split(",") if choices and choices[1] != "None" else []
            found[names[0]] = (names, values, default[1].strip() if default else "")
    return found


def step_leaves(
    record: Mapping[str, Any], contents: Path, changed: set[str], flags: Mapping[str, str]
) -> Leaves:
    """Kind and value by place of all that is compared of a step, of the files that have changed.

    `flags` are the names that flags have in its tree, by those in the list of commands.
    """
    arguments, out = record["arguments"], record["out"]
    bench = arguments[:1] == ["bench"]
    files = sorted(map(shown, record["files"]))
    found: Leaves = {"exit": ("exit", record["exit"]), "files": ("files", files)}
    if {"--help", "--help-all"} & {*arguments} and "│ -" in out:
        old = {new.split()[0]: name.split()[0] for name, new in flags.items() if new}
        for name, (_, choices, default) in read_help(out).items():
            found[f"help: {old.get(name, name)}"] = ("settings", (choices, default))
    else:
        found |= _text_leaves("out", out, masked=bench)
    found |= _text_leaves("err", record["err"], masked=bench)
    for path in sorted(set() if bench else changed & record["files"].keys()):
        leaves = _file_leaves(path, contents / record["files"][path])
        found |= {f"{shown(path)}: {place}": leaf for place, leaf in leaves.items()}
    return found


def _text_leaves(name: str, text: str, *, masked: bool = False) -> Leaves:
    lines = [line.rstrip() for line in shown(text).splitlines() if line.strip()]
    if masked:  # of timings only names of rows and columns
        lines = [re.sub(r"[ -]+|\b(?:met|missed)\b", " ", NUMBER.sub("#", row)) for row in lines]
    rows = [line for line in lines if ROW.fullmatch(line)]
    words = [line for line in lines if not ROW.fullmatch(line)]
    return {f"{name}, rows": ("tables", rows), f"{name}, words": ("text", words)}


def _file_leaves(path: str, content: Path) -> Leaves:
    """What a file holds."""
    match Path(path).suffix:
        case ".md" | ".txt":
            return _text_leaves("text", content.read_text("utf-8"))
        case ".png" | ".gif":
            with Image.open(content) as image:
                frames = [np.asarray(f.convert("RGBA")) for f in ImageSequence.Iterator(image)]
            return {"pixels": ("pictures", [_array(frame) for frame in frames])}
        case ".csv":
            values: Any = list(csv.reader(content.read_text("utf-8").splitlines()))
        case ".html":  # the tables of report.md, and its pictures
            return {}
        case ".json":
            values = json.loads("".join(shown(content.read_text("utf-8")).splitlines()))
        case ".jsonl":
            values = [json.loads(row) for row in shown(content.read_text("utf-8")).splitlines()]
        case ".npz":
            with np.load(content, allow_pickle=False) as arrays:
                values = {name: _array(array) for name, array in arrays.items()}
        case ".safetensors":
            values = load_file(content)
            if "checkpoints/" in path:
                state = io.BytesIO(values["state"].numpy().tobytes())
                values["state"] = torch.load(state, weights_only=True)
        case _:
            values = {} if "tfevents" in path else {"bytes": _digest(content.read_bytes())}
    return _flat(values, path) if values else {}


def _flat(value: Any, path: str, place: str = "") -> Leaves:
    """The values in lists and mappings, each with its place."""
    if IGNORED.search(place):
        return {}
    items = value.items() if isinstance(value, Mapping) else None
    items = enumerate(value) if isinstance(value, list | tuple) else items
    if items is None or not value:
        kind = "state" if place.startswith("state.") and "checkpoints/" in path else "numbers"
        if path.endswith("config.json") or place.split(".")[0] == "settings":
            kind = "settings"
        return {place: (kind, _array(value) if isinstance(value, torch.Tensor) else value)}
    found: Leaves = {}
    for key, item in items:
        found |= _flat(item, path, f"{place}.{key}".lstrip("."))
    return found


def _array(array: Any) -> str:
    """Type, shape, mean and hash."""
    if isinstance(array, torch.Tensor):
        array = array.detach()
        array = (array.view(torch.int16) if array.dtype == torch.bfloat16 else array).numpy()
    mean = f" mean {array.mean(dtype=np.float64):.6g}" if array.dtype.kind in "fiub" else ""
    return f"{array.dtype}{list(array.shape)}{mean} {_digest(array.tobytes())}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def read_steps(folder: Path) -> dict[str, dict[str, Any]]:
    """Records of a folder by their names, `SCENARIO/STEP`, with what each step has changed."""
    found: dict[str, dict[str, Any]] = {}
    before: dict[str, str] = {}
    for path in sorted(folder.glob("*/*.json")):
        step = json.loads(path.read_text("utf-8"))
        before = {} if path.stem == "01" else before
        changed = {name for name, digest in step["files"].items() if before.get(name) != digest}
        found[f"{path.parent.name}/{path.stem}"] = step | {"changed": changed}
        before = step["files"]
    return found


def differences(base: Leaves, new: Leaves) -> Iterator[tuple[str, str, object, object]]:
    """Yield kind and place of what is not equal to the last bit, and both values."""
    for place in base | new:
        (kind, one), (other_kind, other) = (
            leaves.get(place, (None, "absent")) for leaves in (base, new)
        )
        if repr(one) == repr(other):
            continue
        if isinstance(one, list) and isinstance(other, list):  # only what is not in both
            lost, found = [x for x in one if x not in other], [x for x in other if x not in one]
            one, other = (lost, found) if lost or found else (one, other)
        yield kind or other_kind or "", place, one, other


def main() -> int:
    """Print a line a step, and say whether all that is not accepted is equal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--base-flags", type=Path, default=FLAGS)
    parser.add_argument("--accept", nargs="*", default=[])
    parser.add_argument("--show", type=int, default=3, help="differences of a kind to show")
    options = parser.parse_args()
    trees = ((options.base, options.base_flags), (options.new, FLAGS))
    base, new = (read_steps(folder) for folder, _ in trees)
    count, refused = 0, 0
    for name in sorted(base | new):
        missing = ("exit", "step", name in base, name in new)
        arguments, found = (base.get(name) or new[name])["arguments"], [missing]
        if name in base and name in new:
            changed, leaves = base[name]["changed"] | new[name]["changed"], []
            for steps, (folder, path) in zip((base, new), trees, strict=True):
                flags = renamed_flags(arguments, path)
                leaves.append(step_leaves(steps[name], folder / "contents", changed, flags))
            found = list(differences(*leaves))
        kinds = sorted({kind for kind, *_ in found})
        bad = not set(options.accept).issuperset(kinds)
        verdict = "DIFFERS" if bad else "accepted" if kinds else "equal"
        print(f"{verdict:8} {name}: {shlex.join(arguments)}"[:150])
        for kind in kinds:
            same = [difference for difference in found if difference[0] == kind]
            for _, place, one, other in same[: options.show]:
                print(f"    {kind}: {place}: {str(one)[:200]} -> {str(other)[:200]}")
            if len(same) > options.show:
                print(f"    {kind}: and {len(same) - options.show} more")
        count, refused = count + 1, refused + bad
    print(f"{count} commands, {refused} differ")
    return int(refused > 0 or count == 0)


if __name__ == "__main__":
    sys.exit(main())
