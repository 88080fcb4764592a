"""Each built wheel, installed with what it declares and nothing else, works on its own.

The third-party distributions come from the lock file and so, as a rule, from uv's cache: an
environment with torch in it takes a second, and no index is asked. That the wheels themselves
declare all of them is what `uv pip check` and the imports then show.
"""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.wheel, pytest.mark.slow]

IMPORT_EVERYTHING = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    # Reusable test suites need pytest, which a user of the library may not have.
    if ".testing" not in module.name and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print(package.__version__)
"""


def run(*command: str | Path, cwd: Path) -> str:
    finished = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, f"{command}\n{finished.stdout}\n{finished.stderr}"
    return finished.stdout


@pytest.fixture(scope="module")
def wheels(members, uv: str, root: Path, tmp_path_factory) -> dict[str, Path]:
    """Build all wheels from their source archives with the README's command, once."""
    folder = tmp_path_factory.mktemp("dist")
    command = [uv, "build", "--all-packages", "--no-sources", "--out-dir", str(folder)]
    # The build backend is in uv's cache, because the members are installed with it.
    offline = subprocess.run([*command, "--offline"], cwd=root, capture_output=True, check=False)
    if offline.returncode:
        run(*command, cwd=root)
    return {
        member.name: next(folder.glob(f"{member.name.replace('-', '_')}-*.whl"))
        for member in members
    }


def needed_members(member, members) -> list[str]:
    """Names of the member and of the members that it declares, directly or not."""
    known = {other.name: other for other in members}
    needed = [member.name]
    for name in needed:
        for line in known[name].project.get("dependencies", []):
            # The name, without extras and versions.
            dependency = re.split(r"[\[>]", line)[0]
            if dependency in known and dependency not in needed:
                needed.append(dependency)
    return needed


def test_a_wheel_holds_the_package_its_licence_and_no_tests(member, wheels) -> None:
    with zipfile.ZipFile(wheels[member.name]) as archive:
        names = archive.namelist()
    info = f"{member.name.replace('-', '_')}-{member.project['version']}.dist-info"
    assert f"{member.import_name}/__init__.py" in names
    assert f"{member.import_name}/py.typed" in names
    assert f"{info}/licenses/LICENSE" in names
    assert {Path(name).parts[0] for name in names} == {member.import_name, info}


@pytest.fixture(scope="module")
def environment(uv: str, tmp_path_factory) -> Path:
    """One virtual environment; each test makes it hold what it needs and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    run(uv, "venv", "--python", sys.executable, folder, cwd=folder)
    return folder


def test_a_wheel_installs_and_imports_without_siblings(
    member, members, wheels, environment: Path, uv: str, root: Path, tmp_path: Path
) -> None:
    needed = needed_members(member, members)
    if member.import_name not in {"probseq", "probseq_apps"}:
        assert sorted(needed) == sorted([member.name, "probseq"])

    locked = tmp_path / "pylock.toml"
    export = ["--no-dev", "--no-emit-workspace", "--frozen", "--output-file", locked]
    run(uv, "export", "--package", member.name, "--format", "pylock.toml", *export, cwd=root)
    scripts = environment / ("Scripts" if sys.platform == "win32" else "bin")
    python = ["--python", scripts / "python"]
    # `sync` removes what an earlier test installed beyond the locked distributions, wheels of ours
    # included. Links, or a temporary folder on another disk than uv's cache would get 5 GB.
    run(uv, "pip", "sync", *python, "--link-mode", "symlink", locked, cwd=tmp_path)
    assert not installed_members(uv, python, members, tmp_path)
    run(uv, "pip", "install", *python, "--no-deps", *map(wheels.get, needed), cwd=tmp_path)
    assert installed_members(uv, python, members, tmp_path) == set(needed)
    run(uv, "pip", "check", *python, cwd=tmp_path)

    printed = run(scripts / "python", "-c", IMPORT_EVERYTHING, member.import_name, cwd=tmp_path)
    assert printed.split()[-1] == member.project["version"]
    for script in member.project.get("scripts", {}):
        assert "classify" in run(scripts / script, "--help", cwd=tmp_path)


def installed_members(uv: str, python: list[str | Path], members, cwd: Path) -> set[str]:
    listing = run(uv, "pip", "freeze", *python, cwd=cwd).splitlines()
    return {line.partition(" @ ")[0] for line in listing} & {member.name for member in members}
