"""Run the commands of `commands.toml` and record what they print and write.

    python golden_record.py OUT [--flags TOML] [PATTERN ...]

Every step of a scenario runs in this process, in the scenario's own folder, with the same state of
the interpreter. OUT then holds `NAME/STEP.json` for each step, and `contents` the files that were
written, by their SHA-256. `--flags` names the list whose table `renamed` says what flags are called
here; without it, it is the list of commands itself.
"""

import argparse
import contextlib
import fnmatch
import hashlib
import importlib.util
import io
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import traceback
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

COMMANDS = Path(__file__).parent / "commands.toml"
WIDTH = "100"
WEIGHTS = ("own/vgg.pth", "own/inception.pth", "own/unet.pt")
_stop_at: tuple[str, signal.Signals] | None = None


class Step(NamedTuple):
    """A command of a scenario.

    Attributes:
        scenario: its name.
        arguments: of `probseq`.
        stdin: what it reads.
        stop: it gets SIGTERM when it first gives a file a name that holds this.
        interrupt: it gets SIGINT then.
        launch: program and arguments that start it in a process of its own; empty for this one.
    """

    scenario: str
    arguments: list[str]
    stdin: str = ""
    stop: str = ""
    interrupt: str = ""
    launch: str = ""


def load_steps(patterns: Sequence[str], path: Path = COMMANDS) -> dict[str, list[Step]]:
    """Steps by scenario, those of `each` included.

    Args:
        patterns: names of scenarios, with wildcards; none for all.
        path: the list.
    """
    listed = tomllib.loads(path.read_text("utf-8"))
    scenarios: dict[str, dict[str, Any]] = listed["scenarios"]
    for name, each in listed["each"].items():
        values = each["names"].split() if isinstance(each["names"], str) else each["names"]
        scenarios[name] = {"steps": [each["run"].replace("$EACH", value) for value in values]}
    found: dict[str, list[Step]] = {}
    for name, scenario in scenarios.items():
        chosen = not patterns or any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
        if chosen and all(map(_is_there, scenario.get("needs", []))):
            found[name] = [_step(name, step, listed["texts"]) for step in scenario["steps"]]
    return found


def _is_there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _step(name: str, given: str | dict[str, str], texts: dict[str, str]) -> Step:
    fields = {"run": given} if isinstance(given, str) else dict(given)
    while any("$" in text for text in fields.values()):
        fields = {key: Template(text).substitute(texts) for key, text in fields.items()}
    return Step(name, shlex.split(fields.pop("run")), **fields)


def renamed(arguments: list[str], path: Path) -> list[str]:
    """Arguments with the names that flags have in the tree of a list of commands.

    Args:
        arguments: with the names of the list beside this file.
        path: the tree's list; where there is none, flags keep their names.
    """
    names = tomllib.loads(path.read_text("utf-8")).get("renamed", {}) if path.is_file() else {}
    for command, flags in names.items():
        if not f"{' '.join(arguments)} ".startswith(f"{command} "):
            continue
        for old, new in flags.items():
            words = old.split()
            places = range(len(arguments) - len(words), -1, -1)
            for place in places:
                if arguments[place : place + len(words)] == words:
                    arguments = arguments[:place] + new.split() + arguments[place + len(words) :]
    return arguments


def record(out: Path, patterns: Sequence[str] = (), flags: Path = COMMANDS) -> None:
    """Run scenarios, see the module's text.

    Args:
        out: where the records go; made, and emptied of older ones.
        patterns: which scenarios; none for all.
        flags: the list whose renamed flags are those of this tree.
    """
    from golden_files import write_files

    scenarios = load_steps(patterns)
    out = out.absolute()
    shutil.rmtree(out, ignore_errors=True)
    (out / "contents").mkdir(parents=True)
    used = {word for steps in scenarios.values() for step in steps for word in step.arguments}
    write_files(out / "files", weights=not used.isdisjoint(WEIGHTS))
    sys.addaudithook(_stop)
    for name, steps in scenarios.items():
        folder = out / "work" / name
        shutil.copytree(out / "files", folder, copy_function=_copy)
        (out / name).mkdir()
        seen = _files(folder)
        given = set(seen)
        for number, step in enumerate(steps, 1):
            started = time.process_time()
            result = _run(step, renamed(step.arguments, flags), folder)
            now = _files(folder, seen)
            for path in now.keys() - given:
                content = out / "contents" / now[path][1]
                if not content.exists():
                    shutil.copy(folder / path, content)
            written = {path: now[path][1] for path in sorted(now.keys() - given)}
            (out / name / f"{number:02d}.json").write_text(
                json.dumps(result | {"files": written}, indent=1, ensure_ascii=False), "utf-8"
            )
            seen = now
            seconds = time.process_time() - started
            print(f"{seconds:6.1f} s  {name} {number}: {shlex.join(step.arguments)}", flush=True)
        shutil.rmtree(folder)
    shutil.rmtree(out / "work", ignore_errors=True)
    shutil.rmtree(out / "files")


def _copy(source: str, target: str) -> None:
    large = source.endswith((".pth", ".pt"))
    os.symlink(source, target) if large else shutil.copy(source, target)


def _files(
    folder: Path, known: dict[str, tuple[tuple[int, int], str]] | None = None
) -> dict[str, tuple[tuple[int, int], str]]:
    """Time and size, and SHA-256, of each file; the hash of one that is as before is known."""
    found: dict[str, tuple[tuple[int, int], str]] = {}
    for path in folder.rglob("*"):
        if path.is_file():
            name, status = str(path.relative_to(folder)), path.stat()
            mark = (status.st_mtime_ns, status.st_size)
            before = (known or {}).get(name)
            same = before is not None and before[0] == mark
            digest = before[1] if same else hashlib.sha256(path.read_bytes()).hexdigest()
            found[name] = (mark, digest)
    return found


def _run(step: Step, arguments: list[str], folder: Path) -> dict[str, Any]:
    """Exit status, standard output and standard error of a step, and its arguments."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    if step.launch:
        command = [*shlex.split(step.launch), *arguments]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            command,
            cwd=folder,
            env=os.environ | {"COLUMNS": WIDTH, "PATH": path},
            input=step.stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        code, texts = done.returncode, (done.stdout, "")
    else:
        with _fresh_state(step, folder), contextlib.redirect_stdout(out):
            with contextlib.redirect_stderr(err):
                code = _call(arguments)
        texts = tuple(stream.buffer.getvalue().decode("utf-8") for stream in (out, err))
    said = {"exit": code, "out": texts[0], "err": texts[1]}
    for name, text in said.items():
        said[name] = text.replace(str(folder), "FOLDER") if isinstance(text, str) else text
    return {"arguments": step.arguments} | said


def _call(arguments: list[str]) -> int | str:
    from probseq_apps.cli import main

    try:
        return main(arguments)
    except SystemExit as stop:
        return 0 if stop.code is None else stop.code
    except Exception as error:  # with --debug, or a bug, which is recorded like all else
        if "--debug" not in arguments:
            traceback.print_exc()
        return f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def _fresh_state(step: Step, folder: Path) -> Iterator[None]:
    """The same state of the interpreter for each step, and nothing of it left behind.

    Models are compiled without a compiler of C++, which takes minutes.
    """
    global _stop_at
    import numpy as np
    import torch

    environment, before, stdin = dict(os.environ), Path.cwd(), sys.stdin
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    os.environ["COLUMNS"] = WIDTH
    os.chdir(folder)
    sys.stdin = io.StringIO(step.stdin)
    if step.stop or step.interrupt:
        _stop_at = (step.stop, signal.SIGTERM) if step.stop else (step.interrupt, signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    compiler, torch.compile = torch.compile, partial(torch.compile, backend="eager")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.showwarning = _show_warning
            yield
    finally:
        os.chdir(before)
        os.environ.clear()
        os.environ.update(environment)
        sys.stdin, _stop_at = stdin, None
        for number, handler in handlers.items():
            signal.signal(number, handler)
        torch.set_default_dtype(torch.float32)
        torch.compile = compiler
        if "matplotlib.pyplot" in sys.modules:
            sys.modules["matplotlib.pyplot"].close("all")


def _show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    """Without the place in the code."""
    print(f"{category.__name__}: {message}", file=sys.stderr)


def _stop(event: str, arguments: tuple[Any, ...]) -> None:
    global _stop_at
    if _stop_at is not None and event == "os.rename" and _stop_at[0] in str(arguments[1]):
        number, _stop_at = _stop_at[1], None
        signal.raise_signal(number)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--flags", type=Path, default=COMMANDS)
    parser.add_argument("patterns", nargs="*")
    options = parser.parse_args()
    record(options.out, options.patterns, options.flags)
