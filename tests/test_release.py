"""`.ci/release` builds each member, and installs it by name from an index of our wheels alone."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Release = Callable[..., subprocess.CompletedProcess[str]]


def git(repository: Path, *words: str) -> str:
    name = ("-c", "user.name=Nobody", "-c", "user.email=nobody@example.org")
    command = ["git", "-C", str(repository), *name, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def published(root: Path, members, tracked_files, uv: str, tmp_path_factory) -> Iterator[Path]:
    """A copy of the repository in which each member has the tag of its version."""
    copy = tmp_path_factory.mktemp("published")
    for path in tracked_files:
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / path, copy / path)
    git(copy, "init", "-q", "-b", "main")
    git(copy, "add", "-A")
    git(copy, "commit", "-q", "-m", "All members")
    for member in members:
        git(copy, "tag", f"{member.name}-v{member.project['version']}")
    yield copy
    shutil.rmtree(copy)


@pytest.fixture
def repository(published: Path, tmp_path: Path) -> Path:
    """A clone to change."""
    copy = tmp_path / "repository"
    git(published, "clone", "-q", str(published), str(copy))
    return copy


def release(repository: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(repository / ".ci" / "release"), *words]
    # The copy has an environment of its own.
    environment = {k: v for k, v in os.environ.items() if k not in {"VIRTUAL_ENV", "PYTHONPATH"}}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.wheel
@pytest.mark.slow
def test_a_member_installs_by_name_and_runs_its_readme(member, published: Path, tmp_path) -> None:
    version = member.project["version"]
    done = release(published, member.name, version, "--check", "--dist", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    stem = f"{member.name.replace('-', '_')}-{version}"
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{stem}.tar.gz",
        f"{stem}-py3-none-any.whl",
    }
    with zipfile.ZipFile(tmp_path / f"{stem}-py3-none-any.whl") as wheel:
        assert f"{stem}.dist-info/licenses/LICENSE" in wheel.namelist()


@pytest.mark.wheel
@pytest.mark.slow
def test_a_release_writes_version_changelog_citation_and_bounds(repository: Path) -> None:
    edit(repository / "shared/CHANGELOG.md", "## [Unreleased]\n", "## [Unreleased]\n\n- News.\n")
    git(repository, "commit", "-q", "-a", "-m", "News")
    done = release(repository, "probseq", "7.0.0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "git tag probseq-v7.0.0" in done.stdout
    assert '\nversion = "7.0.0"\n' in (repository / "shared" / "pyproject.toml").read_text()
    changelog = (repository / "shared" / "CHANGELOG.md").read_text()
    assert re.search(r"## \[Unreleased\]\n\n## \[7\.0\.0\] - 20\S+\n\n- News\.\n", changelog)
    assert "\nversion: 7.0.0\n" in (repository / "CITATION.cff").read_text()
    for path in [*repository.glob("packages/*/pyproject.toml"), repository / "apps/pyproject.toml"]:
        assert '"probseq>=7.0.0,<8"' in path.read_text()
    # What needs it can't be released before it is.
    git(repository, "commit", "-q", "-a", "-m", "Release probseq 7.0.0")
    done = release(repository, "sgpa", "7.0.0")
    assert "needs probseq 7.0.0, which has no tag probseq-v7.0.0" in done.stderr


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_a_release_that_would_need_what_is_not_published_is_refused(repository: Path) -> None:
    for words, told in (
        (("no-such-member", "1.0.0"), "MEMBER must be one of probseq, "),
        (("sgpa", "1.0"), "VERSION must be three numbers"),
        (("sgpa", "0.0.1"), "VERSION must be above "),
        (("sgpa", "9.9.9", "--check"), "has version "),
    ):
        assert told in release(repository, *words).stderr
    edit(repository / "packages/sgpa/src/sgpa/__init__.py", '"""', '"""New. ')
    assert "commit or stash first" in release(repository, "kepsvgp", "9.0.0").stderr
    git(repository, "commit", "-q", "-a", "-m", "New")
    refused = release(repository, "probseq-apps", "9.0.0").stderr
    assert "packages/sgpa/src/sgpa/__init__.py is not that of sgpa-v" in refused
    changelog = repository / "packages/kepsvgp/CHANGELOG.md"
    before, _, after = changelog.read_text(encoding="utf-8").partition("## [Unreleased]\n")
    released = after[after.index("\n## [") :]
    changelog.write_text(f"{before}## [Unreleased]\n{released}", encoding="utf-8")
    git(repository, "commit", "-q", "-a", "--allow-empty", "-m", "Nothing new")
    assert "has nothing under '## [Unreleased]'" in release(repository, "kepsvgp", "9.0.0").stderr
    assert not git(repository, "status", "--porcelain")
