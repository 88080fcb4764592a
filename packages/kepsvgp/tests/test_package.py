"""The package keeps its version in one place and stands on its own."""

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import kepsvgp

MEMBER = Path(__file__).parents[1]
SIBLINGS = {"sgpa", "cgpt", "kepsvgp", "ohsvgp", "pseudovideo", "probseq_apps"} - {"kepsvgp"}


def test_version_agrees_with_metadata_and_pyproject() -> None:
    project = tomllib.loads((MEMBER / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == "kepsvgp"
    assert kepsvgp.__version__ == importlib.metadata.version("kepsvgp") == project["version"]


def test_import_brings_in_no_sibling() -> None:
    listing = subprocess.run(
        [sys.executable, "-c", "import sys, kepsvgp; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert "kepsvgp" in listing
    assert SIBLINGS.isdisjoint(listing)
