"""The documentation site builds strictly, works without a network, and has every public name."""

import importlib
import importlib.util
import json
import pkgutil
import re
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.slow

# What is public is named by the packages' faces, and by modules that are imported by their names.
OWN_MODULES = {"plots", "set_plots"}


@pytest.fixture(scope="module")
def site(root: Path, uv: str, tmp_path_factory) -> Path:
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed: uv sync --all-packages --group docs")
    folder = tmp_path_factory.mktemp("site")
    build = ["run", "--no-sync", "mkdocs", "build", "--strict", "-q", "-f", "apps/mkdocs.yml"]
    finished = subprocess.run(
        [uv, *build, "--site-dir", str(folder)],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return folder


def public_modules(member) -> Iterator[ModuleType]:
    """Yield the packages of a member with ``__all__``, and the modules that users import."""
    face = importlib.import_module(member.import_name)
    yield face
    for found in pkgutil.walk_packages(face.__path__, f"{face.__name__}."):
        parts = found.name.split(".")
        own = len(parts) == 2 and face.__name__ == "probseq"
        if found.ispkg or own or parts[-1] in OWN_MODULES or "testing" in parts:
            module = importlib.import_module(found.name)
            if hasattr(module, "__all__"):
                yield module


def where(module: ModuleType, name: str) -> set[str]:
    """Return the full names under which a page may have what a module offers."""
    thing: Any = getattr(module, name)
    names = {f"{module.__name__}.{name}"}
    if isinstance(getattr(thing, "__module__", None), str) and hasattr(thing, "__qualname__"):
        names.add(f"{thing.__module__}.{thing.__qualname__}")
    return names


def documented(site: Path) -> set[str]:
    """Return the names in the inventory of the site, which other projects link to."""
    packed = (site / "objects.inv").read_bytes().split(b"zlib.\n", 1)[1]
    return {line.split(" ", 1)[0] for line in zlib.decompress(packed).decode().splitlines()}


def test_every_public_name_has_a_place_in_the_api_pages(site: Path, members) -> None:
    names = documented(site)
    missing = {
        f"{module.__name__}.{name}"
        for member in members
        if member.import_name != "probseq_apps"  # a command line: its pages are `--help`
        for module in public_modules(member)
        for name in module.__all__
        if name != "__version__" and not where(module, name) & names
    }
    assert not missing


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    loaded = re.compile(
        r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?(?:https?:)?//|"""
        r"""<link[^>]*href=["']?(?:https?:)?//(?![^>]*rel=["']?canonical)"""
    )
    pages = list(site.rglob("*.html"))
    assert len(pages) > 15
    assert not [
        f"{page.relative_to(site)}: {found[0]}"
        for page in pages
        for found in loaded.finditer(page.read_text(encoding="utf-8"))
    ]


def test_every_page_is_found_by_search(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    pages = {page.relative_to(site).as_posix() for page in site.rglob("*.html")} - {"404.html"}
    assert pages <= {location or "index.html" for location in found}


def test_every_tutorial_is_a_page_with_pictures_a_script_and_a_notebook(
    site: Path, root: Path
) -> None:
    scripts = sorted((root / "apps" / "docs" / "learn").glob("*.py"))
    assert scripts
    for script in scripts:
        page = (site / "learn" / script.with_suffix(".html").name).read_text(encoding="utf-8")
        assert f'href="{script.name}"' in page
        assert f'href="{script.stem}.ipynb"' in page
        assert all(
            (site / "learn" / name).exists() for name in re.findall(r'src="(pic[^"]+)', page)
        )
        assert (site / "learn" / script.name).read_bytes() == script.read_bytes()
        notebook = json.loads((site / "learn" / f"{script.stem}.ipynb").read_text("utf-8"))
        assert any(cell["cell_type"] == "code" for cell in notebook["cells"])
