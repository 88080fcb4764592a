"""Who may import whom: the contracts in pyproject.toml, and what these can't say."""

import ast
import importlib
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import grimp
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# Slow to import or not always there: only ever imported where used.
HEAVY = {"matplotlib", "lpips", "torch_fidelity", "torchvision", "pyarrow"}
LIBRARIES = ["probseq", "sgpa", "cgpt", "kepsvgp", "ohsvgp", "pseudovideo"]
# Parts of `probseq` that are imported by their own names.
OWN_NAMES = (
    "probseq.gaussians, probseq.kernels, probseq.metrics.image, probseq.metrics.plots, "
    "probseq.figures"
)
# Reusable test suites, imported only by test files, which have pytest.
TEST_SUITES = "testing"
TEST_TOOLS = {"pytest", "hypothesis"}
# Folders of what a package has beside its paper.
BESIDE_THE_PAPER = ("beyond", "integrations", "plots")
UNPICKLERS = {"_pickle", "dill", "cloudpickle", "joblib", "shelve"}


def top_level_name(module: str) -> str:
    # The one module of torch that needs another distribution.
    return "tensorboard" if module == "torch.utils.tensorboard" else module.partition(".")[0]


def imported_modules(tree: ast.AST) -> Iterator[str]:
    """Names of all modules that a file imports, late imports and `require(...)` included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or ""
        elif isinstance(node, ast.Call) and called_name(node) in {"require", "import_module"}:
            yield from (arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant))


def called_name(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def imported_on_import(statements: list[ast.stmt]) -> Iterator[str]:
    """Names of the modules that are loaded when the file itself is imported."""
    for node in statements:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from imported_on_import(node.orelse)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from imported_modules(node)
        else:
            for field in ("body", "orelse", "finalbody", "handlers"):
                yield from imported_on_import(getattr(node, field, []))


def parsed_sources(member) -> dict[Path, ast.Module]:
    return parsed_below(member.source)


@cache
def parsed_below(folder: Path) -> dict[Path, ast.Module]:
    return {
        path: ast.parse(path.read_text(encoding="utf-8"), str(path))
        for path in sorted(folder.rglob("*.py"))
    }


def declared_distributions(member) -> set[str]:
    project = member.project
    extras = project.get("optional-dependencies", {})
    lines = [
        *project.get("dependencies", []),
        *(line for extra in extras.values() for line in extra),
    ]
    return {canonicalize_name(Requirement(line).name) for line in lines}


def test_imports_keep_the_contracts_of_pyproject(root: Path) -> None:
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([program, "--no-cache"], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_files_of_the_paper_import_nothing_that_is_not_in_it(member) -> None:
    graph = grimp.build_graph(member.import_name, cache_dir=None)
    beside = tuple(f"{member.import_name}.{name}" for name in BESIDE_THE_PAPER)
    wrong = [
        f"{name} imports {target}"
        for name in graph.modules
        for target in graph.find_modules_directly_imported_by(name)
        if target.startswith(beside) and not name.startswith(beside)
    ]
    assert not wrong


def module_name(member, path: Path) -> str:
    parts = path.relative_to(member.source).with_suffix("").parts
    return ".".join((member.import_name, *(part for part in parts if part != "__init__")))


def test_no_file_of_the_command_line_has_more_than_500_lines(members) -> None:
    (apps,) = (member for member in members if member.import_name == "probseq_apps")
    lines = {
        path.name: len(path.read_text("utf-8").splitlines()) for path in apps.source.rglob("*.py")
    }
    assert not {name: count for name, count in lines.items() if count > 500}


def providers_of_modules(members) -> dict[str, list[str]]:
    """Distributions that bring each module; an editable install tells nothing of its modules."""
    ours = {member.import_name: [member.name] for member in members}
    return {**importlib.metadata.packages_distributions(), **ours}


def test_a_member_declares_every_distribution_that_it_imports(member, members) -> None:
    distributions = providers_of_modules(members)
    declared = declared_distributions(member)
    undeclared = []
    for path, tree in parsed_sources(member).items():
        tools = TEST_TOOLS if TEST_SUITES in path.relative_to(member.source).parts else set()
        for module in imported_modules(tree):
            name = top_level_name(module)
            if name in sys.stdlib_module_names or name in tools or name == member.import_name:
                continue
            providers = {canonicalize_name(found) for found in distributions.get(name, [name])}
            if providers.isdisjoint(declared):
                undeclared.append(f"{path.relative_to(member.path)} imports {module}")
    assert not undeclared


def test_a_member_declares_no_distribution_that_it_never_imports(member, members) -> None:
    if "**Not built yet.**" in (member.path / "README.md").read_text(encoding="utf-8"):
        pytest.skip(f"{member.name} is not built yet: it declares what it will stand on")
    distributions = providers_of_modules(members)
    imported = {
        canonicalize_name(provider)
        for tree in parsed_sources(member).values()
        for module in imported_modules(tree)
        for provider in distributions.get(top_level_name(module), [top_level_name(module)])
    }
    assert declared_distributions(member) <= imported


def test_late_imports_name_an_extra_that_brings_the_library(member, members) -> None:
    extras = {other.name: other.project.get("optional-dependencies", {}) for other in members}
    distributions = providers_of_modules(members)
    for path, tree in parsed_sources(member).items():
        for node in ast.walk(tree):
            if not (
                isinstance(node, ast.Call) and called_name(node) == "require" and node.keywords
            ):
                continue
            named = {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords}
            module = top_level_name(ast.literal_eval(node.args[0]))
            lines = extras[named["distribution"]][named["extra"]]
            brought = {canonicalize_name(Requirement(line).name) for line in lines}
            providers = {canonicalize_name(name) for name in distributions.get(module, [module])}
            assert brought & providers, f"{path}:{node.lineno}: the extra does not bring {module}"


def test_libraries_import_heavy_modules_late(member) -> None:
    if member.import_name not in LIBRARIES:
        pytest.skip("the command line is not a library")
    early = [
        f"{path.relative_to(member.path)} imports {module}"
        for path, tree in parsed_sources(member).items()
        for module in imported_on_import(tree.body)
        if top_level_name(module) in HEAVY
    ]
    assert not early


def modules_after(statement: str, **environment: str) -> set[str]:
    """Names of all modules that a new Python has loaded after a statement."""
    finished = subprocess.run(
        [sys.executable, "-c", f"import sys\n{statement}\nprint(*sys.modules)"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(finished.stdout.split())


def test_importing_a_library_and_its_settings_loads_no_torch(member) -> None:
    if member.import_name not in LIBRARIES:
        pytest.skip("the command line is not a library")
    files = [path for name in ("spec.py", "settings.py") for path in member.source.rglob(name)]
    modules = [member.import_name, *(module_name(member, path) for path in files)]
    loaded = modules_after(f"import {', '.join(modules)}")
    assert loaded.issuperset(modules)
    assert {"torch", "numpy"}.isdisjoint(loaded)


@pytest.mark.parametrize("library", LIBRARIES)
def test_all_names_of_a_library_load_no_plotting_no_data_library_and_no_sibling(
    library: str,
) -> None:
    # With this variable set lazy_loader imports all names at once.
    parts = OWN_NAMES if library == "probseq" else library
    loaded = modules_after(f"from {library} import *\nimport {parts}", EAGER_IMPORT="1")
    assert loaded >= {library, "torch"}
    siblings = {*LIBRARIES, "probseq_apps"} - {"probseq", library}
    assert (HEAVY | TEST_TOOLS | siblings | {"sklearn"}).isdisjoint(loaded)


def test_a_lazy_package_has_the_names_that_its_stub_tells_editors_of(member) -> None:
    for stub in sorted(member.source.rglob("*.pyi")):
        statements = ast.parse(stub.read_text(encoding="utf-8")).body
        imports = [node for node in statements if isinstance(node, ast.ImportFrom)]
        imported = [alias.name for node in imports for alias in node.names]
        (listed,) = (
            ast.literal_eval(node.value) for node in statements if isinstance(node, ast.Assign)
        )
        module = importlib.import_module(
            ".".join((member.import_name, *stub.parent.relative_to(member.source).parts))
        )
        assert sorted(imported) == sorted(listed) == module.__all__ == dir(module)
        assert all(hasattr(module, name) for name in listed)


FORECAST = ["forecast", "--report", "page.html", "--out", "answers.csv", "--state", "state"]


@pytest.mark.parametrize(
    "arguments", [[], ["--help"], FORECAST], ids=["import", "help", "forecast"]
)
def test_the_command_line_answers_before_torch_is_loaded(arguments, tmp_path: Path) -> None:
    run = f"sys.argv[1:] = {arguments}; main()" if arguments else ""
    finished = subprocess.run(
        [
            sys.executable,
            "-c",
            "import atexit, sys\n"
            "atexit.register(lambda: print(*sys.modules))\n"
            "from probseq_apps.cli import main\n" + run,
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        input="".join(f"{t},{t % 5}\n" for t in range(40)),
    )
    assert finished.returncode == 0, finished.stderr
    assert len([*tmp_path.iterdir()]) >= 3 * (arguments == FORECAST)
    loaded = finished.stdout.splitlines()[-1].split()
    assert "probseq_apps.cli" in loaded
    assert {"torch", "sklearn", "matplotlib"}.isdisjoint(loaded)


def unsafe_loading(tree: ast.Module) -> Iterator[str]:
    """Name the places where a file from outside could run code when it is read.

    The one use of pickle that is let pass is an unpickler that decides itself what it builds.
    """
    guarded = [
        base
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any(
            isinstance(part, ast.FunctionDef) and part.name == "find_class" for part in node.body
        )
        for base in node.bases
    ]
    for node in ast.walk(tree):
        text = ast.unparse(node) if isinstance(node, ast.expr) else ""
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {top_level_name(name) for name in imported_modules(node)}
            if names & UNPICKLERS or (isinstance(node, ast.ImportFrom) and "pickle" in names):
                yield f"{node.lineno}: {ast.unparse(node)}"
        elif text.startswith("pickle.") and node not in guarded and "Error" not in text:
            yield f"{node.lineno}: {text}"
        elif isinstance(node, ast.Call):
            flags = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            safe_weights = flags.get("weights_only", "True") == "True"
            if ast.unparse(node.func) == "torch.load":
                safe_weights = flags.get("weights_only") == "True"
            if not safe_weights or flags.get("allow_pickle", "False") != "False":
                yield f"{node.lineno}: {text}"


def test_sources_unpickle_nothing_that_could_run_code(member) -> None:
    unsafe = [
        f"{path.relative_to(member.path)}:{place}"
        for path, tree in parsed_sources(member).items()
        for place in unsafe_loading(tree)
    ]
    assert not unsafe


@pytest.mark.parametrize(
    "source",
    [
        "import joblib",
        "from pickle import loads",
        "import pickle\npickle.load(file)",
        "import pickle\nclass Reader(pickle.Unpickler): pass",
        "import torch\ntorch.load(path)",
        "import torch\ntorch.load(path, weights_only=False)",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
    ],
)
def test_unsafe_loading_is_recognised(source: str) -> None:
    assert list(unsafe_loading(ast.parse(source)))
