"""What the package says about itself."""

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import cgpt

MEMBER = Path(__file__).parents[1]
SIBLINGS = {"sgpa", "kepsvgp", "ohsvgp", "pseudovideo", "probseq_apps", "matplotlib"}


def test_version_agrees_with_metadata_and_pyproject() -> None:
    project = tomllib.loads((MEMBER / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == "cgpt-transformer"
    assert cgpt.__version__ == importlib.metadata.version("cgpt-transformer") == project["version"]


def test_import_brings_in_no_sibling_and_no_plots() -> None:
    listing = subprocess.run(
        [sys.executable, "-c", "import sys, cgpt; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert "cgpt" in listing
    assert SIBLINGS.isdisjoint(listing)


def test_every_public_name_is_there() -> None:
    assert all(hasattr(cgpt, name) for name in cgpt.__all__)


def test_the_readme_s_table_names_all_that_is_public() -> None:
    table = (MEMBER / "README.md").read_text(encoding="utf-8").split("## API")[1].split("\n\n")[1]
    absent = {name for name in cgpt.__all__ if f"`{name}`" not in table}
    assert absent == {"__version__"}
