"""One version for each member, wherever it is written down."""

import importlib
import importlib.metadata
import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

RELEASE_HEADING = re.compile(
    r"^## \[(?P<version>[^\]]+)\](?: - (?P<date>\d{4}-\d{2}-\d{2}))?$", re.M
)


def test_metadata_module_lock_and_changelog_agree_with_pyproject(member, root: Path) -> None:
    version = member.project["version"]
    assert importlib.metadata.version(member.name) == version
    assert importlib.import_module(member.import_name).__version__ == version

    lock = tomllib.loads((root / "uv.lock").read_text(encoding="utf-8"))
    locked = {entry["name"]: entry["version"] for entry in lock["package"] if "version" in entry}
    assert locked[member.name] == version

    changelog = (member.path / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = [
        heading
        for heading in RELEASE_HEADING.finditer(changelog)
        if heading["version"] != "Unreleased"
    ]
    assert releases, f"{member.name}: CHANGELOG.md has no '## [version] - date' heading"
    assert releases[0]["version"] == version
    assert releases[0]["date"], f"{member.name}: the newest release in CHANGELOG.md has no date"


def test_bounds_on_members_admit_the_versions_beside_them(member, members) -> None:
    """uv ignores the bounds between members inside the workspace, so nothing else checks them."""
    versions = {other.name: other.project["version"] for other in members}
    ours = [
        requirement
        for requirement in map(Requirement, member.project.get("dependencies", []))
        if requirement.name in versions
    ]
    for requirement in ours:
        assert versions[requirement.name] in requirement.specifier, str(requirement)
        operators = {specifier.operator for specifier in requirement.specifier}
        assert operators == {">=", "<"}, f"{requirement} needs a lower and an upper bound"
    assert bool(ours) == (member.name != "probseq")


def test_members_share_python_licence_and_build_backend(member, root: Path) -> None:
    assert member.project["requires-python"] == ">=3.11"
    assert member.project["license"] == "MIT"
    assert member.pyproject["build-system"]["build-backend"] == "hatchling.build"
    assert (member.path / "LICENSE").read_bytes() == (root / "LICENSE").read_bytes()
    assert (member.source / "py.typed").is_file()


def test_every_member_has_a_source_in_the_workspace(members, root: Path) -> None:
    workspace = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    sources = workspace["tool"]["uv"]["sources"]
    assert sources == {member.name: {"workspace": True} for member in members}


def test_the_citation_names_the_version_of_the_core(root: Path, members) -> None:
    (core,) = [member for member in members if member.name == "probseq"]
    citation = (root / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {core.project['version']}\n" in citation
