"""Run the commands of `commands.toml` and record what they print and write.

    python golden_record.py OUT [--flags TOML] [PATTERN ...]

Every step of a scenario runs in this process, in the scenario's own folder, with the same state of
the interpreter. OUT then holds `SCENARIO/STEP.json` for each step, and `contents` the files that
were written, by their SHA-256. `--flags` is the list of renamed flags of the tree that runs.
"""

import argparse
import contextlib
import fnmatch
import hashlib
import importlib.util
import io
import itertools
import json
import os
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

COMMANDS, FLAGS = (Path(__file__).with_name(f"{name}.toml") for name in ("commands", "flags"))
WEIGHTS = {"own/vgg.pth", "own/inception.pth", "own/unet.pt"}
_stop_at: tuple[str, signal.Signals] | None = None


class Step(NamedTuple):
    """A command of a scenario: arguments, keys of its table, and modules that it needs."""

    arguments: list[str]
    stdin: str = ""
    stop: str = ""
    interrupt: str = ""
    launch: str = ""
    needs: tuple[str, ...] = ()


def load_steps(patterns: Sequence[str] = (), expect: str | None = None) -> dict[str, list[Step]]:
    """Steps by scenario, those of `each` included; of some names, or with a value of `expect`."""
    listed = tomllib.loads(COMMANDS.read_text("utf-8"))
    scenarios: dict[str, Any] = listed["scenarios"]
    for name, each in listed["each"].items():
        values = each["names"].split() if isinstance(each["names"], str) else each["names"]
        scenarios[name] = each | {"steps": [each["run"].replace("$EACH", v) for v in values]}
    return {
        name: [_step(step, scenario, listed["texts"]) for step in scenario["steps"]]
        for name, scenario in scenarios.items()
        if not patterns or any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
        if expect is None or scenario.get("expect") == expect
    }


def _step(given: str | dict[str, str], scenario: dict[str, Any], texts: dict[str, str]) -> Step:
    fields = {"run": given} if isinstance(given, str) else dict(given)
    while any("$" in text for text in fields.values()):
        fields = {key: Template(text).substitute(texts) for key, text in fields.items()}
    return Step(shlex.split(fields.pop("run")), **fields, needs=tuple(scenario.get("needs", ())))


def command_name(arguments: Sequence[str]) -> str:
    """`generate run` of `generate run --frames 8`."""
    return " ".join(itertools.takewhile(lambda word: not word.startswith("-"), arguments))


def renamed_flags(arguments: Sequence[str], path: Path) -> dict[str, str]:
    """What the flags of a command are called in a tree, by what they are called in the list."""
    listed = tomllib.loads(path.read_text("utf-8")) if path.is_file() else {}
    return listed.get(command_name(arguments), {})


def renamed(arguments: list[str], path: Path = FLAGS) -> list[str]:
    """Arguments with the names that flags have in a tree."""
    for old, new in renamed_flags(arguments, path).items():
        words = old.split()
        for place in range(len(arguments) - len(words), -1, -1):
            if arguments[place : place + len(words)] == words:
                arguments = [*arguments[:place], *new.split(), *arguments[place + len(words) :]]
    return arguments


def record(out: Path, scenarios: dict[str, list[Step]], flags: Path = FLAGS) -> None:
    """Run scenarios, see the module's text; OUT is emptied of older records."""
    from golden_files import write_files

    out = out.absolute()
    shutil.rmtree(out, ignore_errors=True)
    (out / "contents").mkdir(parents=True)
    used = {word for steps in scenarios.values() for step in steps for word in step.arguments}
    write_files(out / "files", weights=not used.isdisjoint(WEIGHTS))
    sys.addaudithook(_stop)
    os.cpu_count = lambda: 1  # commands do their jobs in this process
    os.sched_getaffinity = lambda _: {0}
    for name, steps in scenarios.items():
        if not all(map(importlib.util.find_spec, steps[0].needs)):
            continue
        folder = out / "work" / name
        shutil.copytree(out / "files", folder, copy_function=_copy)
        (out / name).mkdir()
        given = {path for path in folder.rglob("*") if path.is_file()}
        for number, step in enumerate(steps, 1):
            started = time.process_time()
            result = _run(step, renamed(step.arguments, flags), folder)
            written: dict[str, str] = {}
            for path in sorted(path for path in folder.rglob("*") if path.is_file()):
                if path not in given and path.name != ".lock":
                    digest = hashlib.sha256(path.read_bytes()).hexdigest()
                    written[str(path.relative_to(folder))] = digest
                    if not (out / "contents" / digest).exists():
                        shutil.copy(path, out / "contents" / digest)
            text = json.dumps(result | {"files": written}, indent=1, ensure_ascii=False)
            (out / name / f"{number:02d}.json").write_text(text, "utf-8")
            seconds = time.process_time() - started
            print(f"{seconds:5.1f} s  {name} {number}: {shlex.join(step.arguments)}"[:150])
        shutil.rmtree(folder)
    shutil.rmtree(out / "work", ignore_errors=True)
    shutil.rmtree(out / "files")


def _copy(source: str, target: str) -> None:
    large = source.endswith((".pth", ".pt"))
    os.symlink(source, target) if large else shutil.copy(source, target)


def _run(step: Step, arguments: list[str], folder: Path) -> dict[str, Any]:
    """Arguments of a step, its exit status, standard output and standard error."""
    if step.launch:  # what programs of others say on standard error is not ours
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        command = [*shlex.split(step.launch), *arguments]
        variables = os.environ | {"COLUMNS": "100", "PATH": path}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        done = subprocess.run(command, cwd=folder, env=variables, text=True, check=False, **pipes)
        said = {"exit": done.returncode, "out": done.stdout, "err": ""}
    else:
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
        with (
            _fresh_state(step, folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = _call(arguments)
        texts = (stream.buffer.getvalue().decode("utf-8") for stream in (out, err))
        said = dict(zip(("exit", "out", "err"), (code, *texts), strict=True))
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
    import torch

    environment, before, stdin, compiler = dict(os.environ), Path.cwd(), sys.stdin, torch.compile
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    os.environ["COLUMNS"] = "100"
    os.chdir(folder)
    sys.stdin = io.StringIO(step.stdin)
    if step.stop or step.interrupt:
        _stop_at = (step.stop, signal.SIGTERM) if step.stop else (step.interrupt, signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.compile = partial(torch.compile, backend="eager")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.showwarning = _show_warning
            yield
    finally:
        os.chdir(before)
        os.environ.clear()
        os.environ.update(environment)
        sys.stdin, torch.compile, _stop_at = stdin, compiler, None
        for number, handler in handlers.items():
            signal.signal(number, handler)
        torch.set_default_dtype(torch.float32)
        if "matplotlib.pyplot" in sys.modules:
            sys.modules["matplotlib.pyplot"].close("all")


def _show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    """Without the place in the code."""
    print(f"{category.__name__}: {message}", file=sys.stderr)


def _stop(event: str, arguments: tuple[Any, ...]) -> None:
    """Raise the step's signal when a file gets the name that it waits for."""
    global _stop_at
    if _stop_at is not None and event == "os.rename" and _stop_at[0] in str(arguments[1]):
        number, _stop_at = _stop_at[1], None
        signal.raise_signal(number)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--flags", type=Path, default=FLAGS)
    parser.add_argument("--expect", help="only scenarios with this value of `expect`")
    parser.add_argument("patterns", nargs="*")
    options = parser.parse_intermixed_args()
    record(options.out, load_steps(options.patterns, options.expect), options.flags)
