"""The package as a distribution: version, and what its import brings in."""

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pseudovideo

MEMBER = Path(__file__).parents[1]
SIBLINGS = {"sgpa", "cgpt", "kepsvgp", "ohsvgp", "pseudovideo", "probseq_apps"} - {"pseudovideo"}


def test_version_agrees_with_metadata_and_pyproject() -> None:
    project = tomllib.loads((MEMBER / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == "pseudovideo"
    assert (
        pseudovideo.__version__ == importlib.metadata.version("pseudovideo") == project["version"]
    )


def test_import_brings_in_no_sibling() -> None:
    listing = subprocess.run(
        [sys.executable, "-c", "import sys, pseudovideo; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert "pseudovideo" in listing
    assert SIBLINGS.isdisjoint(listing)
