"""What lies in the repository, and what must not."""

import ast
import os
import re
from pathlib import Path

import pytest
import torch

TOP_LEVEL = {
    *("packages", "shared", "apps", "tests", "pyproject.toml", "uv.lock", "README.md"),
    *("LICENSE", "CITATION.cff"),
}
# Written so that this file doesn't contain what it looks for.
MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:work|root|home/\w+|Users/\w+|opt|mnt)/(?=\w)")
LEFTOVERS = re.compile(
    r"^(?:<{7}|>{7}) |\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b|\bissue #?\d|\bcontract\.md\b", re.M
)


def texts(root: Path, tracked_files: list[Path]) -> dict[Path, str]:
    found = {}
    for path in tracked_files:
        try:
            found[path] = (root / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:  # a picture
            continue
    return found


def test_the_top_level_holds_what_the_layout_says(tracked_files: list[Path]) -> None:
    top = {path.parts[0] for path in tracked_files}
    assert {name for name in top if not name.startswith(".")} == TOP_LEVEL


def test_every_member_has_the_same_layout(member) -> None:
    for name in ("README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", "src", "tests"):
        assert (member.path / name).exists(), f"{member.name} has no {name}"
    assert [path.name for path in (member.path / "src").iterdir() if path.is_dir()] == [
        member.import_name
    ]
    assert list((member.path / "tests").rglob("test_*.py")), f"{member.name} has no tests"


def test_test_folders_are_no_packages(tracked_files: list[Path]) -> None:
    """With importlib mode an __init__.py would make equal file names clash."""
    assert not [
        path for path in tracked_files if "tests" in path.parts and path.name == "__init__.py"
    ]


@pytest.mark.parametrize("pattern", [MACHINE_PATHS, LEFTOVERS], ids=["machine paths", "leftovers"])
def test_no_file_holds_what_only_its_writer_understands(
    pattern: re.Pattern[str], root: Path, tracked_files: list[Path]
) -> None:
    found = [
        f"{path}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]!r}"
        for path, text in texts(root, tracked_files).items()
        for match in pattern.finditer(text)
    ]
    assert not found


def test_continuous_integration_runs_the_readmes_commands_as_they_stand(root: Path) -> None:
    readme = (root / "README.md").read_text(encoding="utf-8")
    script = (root / ".ci" / "run").read_text(encoding="utf-8")
    commands = re.findall(r"^(PIP_BREAK_SYSTEM_PACKAGES=1 .*?) +# ", readme, re.M)
    assert len(commands) == 2
    for command in commands:
        before, found, _ = script.partition(f"check bash -c '{command}'\n")
        assert found
        assert "export" not in before


def test_torch_was_loaded_after_its_number_of_threads_was_set() -> None:
    assert torch.get_num_threads() == int(os.environ["OMP_NUM_THREADS"])


def test_every_members_tests_can_run_in_several_processes(member) -> None:
    tools = {line.partition(">")[0] for line in member.pyproject["dependency-groups"]["dev"]}
    assert {"pytest", "pytest-xdist"} <= tools


def test_no_large_file_is_tracked(root: Path, tracked_files: list[Path]) -> None:
    files = {path for path in tracked_files if path.name != "uv.lock"}
    large = [path for path in files if (root / path).stat().st_size > 1_000_000]
    assert not large, "pictures in a README: at most 1 MB each; data and weights: not at all"


def lines_of_code(path: Path) -> list[str]:
    """Return a file's lines without comments, docstrings, imports and heads of functions."""
    text = path.read_text(encoding="utf-8")
    left_out = set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            left_out |= {*range(node.lineno, (node.end_lineno or 0) + 1)}
        elif isinstance(node, ast.FunctionDef):
            left_out |= {*range(node.lineno, node.body[0].lineno)}
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            left_out |= {*range(node.lineno, (node.end_lineno or 0) + 1)}
    stripped = [line.strip() for i, line in enumerate(text.splitlines(), 1) if i not in left_out]
    return [line for line in stripped if line and not line.startswith("#")]


def test_no_run_of_more_than_ten_lines_stands_twice(members) -> None:
    places: dict[tuple[str, ...], list[str]] = {}
    for path in (path for member in members for path in member.source.rglob("*.py")):
        lines = lines_of_code(path)
        for start in range(len(lines) - 10):
            places.setdefault(tuple(lines[start : start + 11]), []).append(str(path))
    assert [found for found in places.values() if len(found) > 1] == []


def test_sources_and_tests_stay_within_the_budget(root: Path, tracked_files: list[Path]) -> None:
    lines = {
        path: (root / path).read_text("utf-8").count("\n")
        for path in tracked_files
        if path.suffix == ".py"
    }
    sources = sum(number for path, number in lines.items() if "src" in path.parts)
    assert sources <= 48_000, "a feature buys its lines by removing others"
    assert sum(lines.values()) - sources <= 46_000


def test_no_class_name_stands_in_two_files(members) -> None:
    files: dict[str, list[str]] = {}
    for path in (path for member in members for path in member.source.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                files.setdefault(node.name, []).append(str(path))
    assert not {name: paths for name, paths in files.items() if len(paths) > 1}


def test_arguments_are_written_out(members) -> None:
    """A mapping called Any hides from the type checker what a call is given."""
    untyped = re.compile(r"^\s*\w+: Any = (?:\{|dict\()", re.M)
    paths = (path for member in members for path in member.source.rglob("*.py"))
    assert not [str(path) for path in paths if untyped.search(path.read_text(encoding="utf-8"))]
