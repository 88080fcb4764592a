"""What the scenarios with `expect` in `commands.toml` print and write, to three digits.

    python golden_expected.py

writes `expected.json` anew. It runs them twice, with all instructions of the processor and with the
oldest only, and leaves out what differs by more than round-off: that is chaotic, and says nothing
on another machine.
"""

import json
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from golden_compare import NUMBER, read_help, read_steps, shown, step_leaves
from golden_record import command_name, load_steps, renamed

EXPECTED = Path(__file__).with_name("expected.json")
__all__ = ["command_name", "load_steps", "read_help", "renamed"]  # also for the tests
SPEEDS = ("fast", "slow")
OLD = {
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "OPENBLAS_CORETYPE": "Prescott",
}
Summary = dict[str, Any]


def run_scenarios(expect: str, folder: Path, environment: dict[str, str] | None = None) -> None:
    """Record the scenarios with a value of `expect`, in another process."""
    script = Path(__file__).with_name("golden_record.py")
    command = [sys.executable, str(script), str(folder), "--expect", expect]
    variables = os.environ | {"OMP_NUM_THREADS": "1"} | (environment or {})
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)} failed:\n{done.stderr[-3000:]}")


def summarise(folder: Path) -> dict[str, Summary]:
    """Of each step exit status, files made and deleted, rows of tables, and numbers by place."""
    found: dict[str, Summary] = {}
    before: set[str] = set()
    for name, step in read_steps(folder).items():
        files = set(map(shown, step["files"]))
        before = set() if name.endswith("/01") else before
        leaves = step_leaves(step, folder / "contents", step["changed"], {})
        rows = [row for kind, value in leaves.values() if kind == "tables" for row in value]
        numbers = {p: _number(value) for p, (kind, value) in leaves.items() if kind == "numbers"}
        found[name] = {
            "exit": step["exit"],
            "made": sorted(files - before),
            "deleted": sorted(before - files),
            "rows": [re.sub(r"[ *-]+", " ", NUMBER.sub("#", row)) for row in rows],
            "numbers": {place: value for place, value in numbers.items() if value is not None},
        }
        before = files
    return found


def _number(value: Any) -> float | None:
    """A value to four digits, where it is a finite number."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return float(f"{number:.4g}") if math.isfinite(number) else None


def unequal(expected: Summary, found: Summary, tolerance: float) -> Iterator[str]:
    """Yield the keys in which two summaries of a step differ, and places of numbers that do."""
    yield from (key for key in expected if key != "numbers" and expected[key] != found[key])
    for place, value in expected["numbers"].items():
        other = found["numbers"].get(place, math.nan)
        if not math.isclose(value, other, rel_tol=tolerance, abs_tol=1e-9):
            yield place


def main() -> None:
    """Write what is expected."""
    kept: dict[str, dict[str, Summary]] = {}
    for speed in SPEEDS:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out"
            run_scenarios(speed, out)
            kept[speed] = summarise(out)
            run_scenarios(speed, out, OLD)
            others = summarise(out)
        for name, summary in kept[speed].items():
            chaotic = set(unequal(summary, others[name], tolerance=2e-4))
            if chaotic - summary["numbers"].keys():
                raise RuntimeError(f"{name} differs in {chaotic - summary['numbers'].keys()}")
            for place in chaotic:
                del summary["numbers"][place]
            print(f"{name}: {len(summary['numbers'])} numbers, {len(chaotic)} left out")
    EXPECTED.write_text(json.dumps(kept, indent=0, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
