"""What the scenarios with `expect` in `commands.toml` print and write, to three digits.

    python golden_expected.py [fast] [slow]

writes `expected.json` anew, or a part of it. It runs them with all instructions of the processor
and with older ones only, and leaves out what differs by more than round-off: that is chaotic, and
says nothing on another machine. Left out too is what one flipped prediction or rank changes.
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
FILES = re.compile(r"out\b|(.*/)?(report\.json|metrics\.jsonl|results/.*\.json): ")
FINITE = re.compile(r"-?\d+(\.\d*)?(e-?\d+)?")
JUMPY = re.compile(r"acc|ece|mce|mcc|auroc|aupr|aurc|fpr|perplexity|coverage|psnr|error|best|score")
BASE = {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}
BASE |= {"ONEDNN_MAX_CPU_ISA": "SSE41", "OPENBLAS_CORETYPE": "Prescott"}
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
AVX2 |= {"ONEDNN_MAX_CPU_ISA": "AVX2", "OPENBLAS_CORETYPE": "Haswell"}
Summary = dict[str, Any]


def run_scenarios(expect: str, environment: dict[str, str] | None = None) -> dict[str, Summary]:
    """Run the scenarios with a value of `expect` in another process, and summarise each step."""
    script = Path(__file__).with_name("golden_record.py")
    variables = os.environ | {"OMP_NUM_THREADS": "1"} | (environment or {})
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(script), folder, "--expect", expect]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{shlex.join(command)} failed:\n{done.stderr[-3000:]}")
        return _summarise(Path(folder))


def _summarise(folder: Path) -> dict[str, Summary]:
    """Of each step exit status, files made and deleted, rows of tables, and numbers by place."""
    found: dict[str, Summary] = {}
    before: set[str] = set()
    for name, step in read_steps(folder).items():
        files = set(map(shown, step["files"]))
        before = set() if name.endswith("/01") else before
        # A log that is written again within the same milliseconds is equal to the one before.
        logs = {path for path in step["files"] if path.endswith("metrics.jsonl")}
        leaves = step_leaves(step, folder / "contents", step["changed"] | logs, {})
        tables = [v for p, (kind, v) in leaves.items() if kind == "tables" and p[:3] != "err"]
        found[name] = {
            "exit": step["exit"],
            "made": sorted(files - before),
            "deleted": sorted(before - files),
            "rows": [
                re.sub(r"[ *-]+", " ", NUMBER.sub("#", row)) for rows in tables for row in rows
            ],
            "numbers": {
                place: float(f"{float(value):.4g}")
                for place, (kind, value) in leaves.items()
                if kind == "numbers" and FILES.match(place) and not JUMPY.search(place)
                if isinstance(value, int | float | str) and FINITE.fullmatch(str(value))
            },
        }
        before = files
    return found


def unequal(expected: Summary, found: Summary, tolerance: float = 2e-3) -> Iterator[str]:
    """Yield the keys in which two summaries of a step differ, and places of numbers that do."""
    yield from (key for key in expected if key != "numbers" and expected[key] != found[key])
    for place, value in expected["numbers"].items():
        other = found["numbers"].get(place, math.nan)
        if not math.isclose(value, other, rel_tol=tolerance, abs_tol=tolerance / 1000):
            yield place


def main() -> None:
    """Write what is expected."""
    kept: dict[str, dict[str, Summary]] = {}
    if EXPECTED.exists():
        kept = json.loads(EXPECTED.read_text("utf-8"))
    for speed in sys.argv[1:] or ("fast", "slow"):
        kept[speed], *others = (run_scenarios(speed, given) for given in ({}, AVX2, BASE))
        for name, summary in kept[speed].items():
            chaotic = {place for other in others for place in unequal(summary, other[name], 3e-4)}
            if wrong := chaotic - summary["numbers"].keys():
                raise RuntimeError(f"{name} differs in {wrong}")
            for place in chaotic:
                del summary["numbers"][place]
            print(f"{name}: {len(summary['numbers'])} numbers, {len(chaotic)} left out")
        kept[speed] = _changed(kept[speed])
        EXPECTED.write_text(json.dumps(kept, indent=0, ensure_ascii=False) + "\n", "utf-8")


def _changed(steps: dict[str, Summary]) -> dict[str, Summary]:
    """Return steps without the numbers that the step before has in the same places."""
    before: Summary = {}
    short: dict[str, Summary] = {}
    for name, step in steps.items():
        before = {} if name.endswith("/01") else before
        numbers = {p: v for p, v in step["numbers"].items() if before.get(p) != v}
        short[name], before = {**step, "numbers": numbers}, step["numbers"]
    return short


if __name__ == "__main__":
    main()
