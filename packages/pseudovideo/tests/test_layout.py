"""The paper inside, everything else around it: what is ours is imported by no file of the paper."""

import ast
from pathlib import Path

import pytest

import pseudovideo

ROOT = Path(pseudovideo.__file__).parent
AROUND = ("beyond", "integrations", "plots")
PAPER = sorted(p for p in ROOT.rglob("*.py*") if p.relative_to(ROOT).parts[0] not in AROUND)
PAPER = [path for path in PAPER if path.suffix in (".py", ".pyi")]


def imported(tree):
    """Names of modules, late imports and those by name included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "pseudovideo." * (node.level > 0) + (node.module or "")
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.mark.parametrize("path", PAPER, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_of_the_paper_imports_nothing_that_is_not(path):
    names = set(imported(ast.parse(path.read_text("utf-8"))))
    around = {f"pseudovideo.{folder}" for folder in AROUND}
    assert not [n for n in names if any(n == a or n.startswith(f"{a}.") for a in around)]


def test_the_folders_around_the_paper_are_there():
    assert all((ROOT / folder / "__init__.py").is_file() for folder in AROUND)
    assert len(PAPER) > 40
