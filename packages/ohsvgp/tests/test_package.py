"""Names, versions and dependencies of the package."""

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import ohsvgp

MEMBER = Path(__file__).parents[1]
SIBLINGS = {"sgpa", "cgpt", "kepsvgp", "ohsvgp", "pseudovideo", "probseq_apps"} - {"ohsvgp"}


def test_version_agrees_with_metadata_and_pyproject() -> None:
    project = tomllib.loads((MEMBER / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == "ohsvgp"
    assert ohsvgp.__version__ == importlib.metadata.version("ohsvgp") == project["version"]


def test_import_brings_in_no_sibling() -> None:
    listing = subprocess.run(
        [sys.executable, "-c", "import sys, ohsvgp; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert "ohsvgp" in listing
    assert SIBLINGS.isdisjoint(listing)


def test_the_mathematics_of_hippo_knows_no_basis() -> None:
    files = (MEMBER / "src" / "ohsvgp" / "hippo").glob("*.py")
    assert not [file.name for file in files if "ohsvgp.bases" in file.read_text(encoding="utf-8")]
