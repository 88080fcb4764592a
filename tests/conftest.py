"""What the cross-package tests share: the members of the workspace, its files, and uv."""

import os
import shutil
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Member:
    """One distribution of the workspace, as its pyproject.toml describes it."""

    path: Path
    pyproject: dict[str, Any]

    @property
    def project(self) -> dict[str, Any]:
        return self.pyproject["project"]

    @property
    def name(self) -> str:
        return self.project["name"]

    @property
    def import_name(self) -> str:
        (package,) = self.pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
        return Path(package).name

    @property
    def source(self) -> Path:
        return self.path / "src" / self.import_name


def read_members() -> list[Member]:
    """Read the members that the workspace names, the same way as uv does."""
    workspace = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return [
        Member(path, tomllib.loads((path / "pyproject.toml").read_text(encoding="utf-8")))
        for pattern in workspace["tool"]["uv"]["workspace"]["members"]
        for path in sorted(ROOT.glob(pattern))
        if (path / "pyproject.toml").is_file()
    ]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def members() -> list[Member]:
    return read_members()


@pytest.fixture(params=read_members(), ids=lambda member: member.name)
def member(request: pytest.FixtureRequest) -> Member:
    return request.param


@pytest.fixture(scope="session")
def tracked_files() -> list[Path]:
    """Paths that git tracks, relative to the root."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a git checkout, or git is not installed: the tracked files are unknown")
    listing = subprocess.run(
        # A checkout that belongs to another user is read all the same: nothing is written.
        ["git", "-c", "safe.directory=*", "ls-files", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    paths = [Path(name) for name in listing.split("\0") if name]
    return [path for path in paths if (ROOT / path).exists()]


@pytest.fixture(scope="session")
def uv() -> str:
    """The uv that runs the tests, or the one on the path."""
    program = os.environ.get("UV") or shutil.which("uv")
    if program is None:
        pytest.skip("uv is not installed: pip install uv")
    return program
