"""The shared package holds what two members or more use, and a written list of exceptions."""

import ast
from collections.abc import Iterator
from pathlib import Path

# Kernels, metrics, the backbone that attention is put into, and test suites are what `probseq` is
# for, whoever uses them.
BACKBONE = ("build", "head", "objective", "padded", "pooling", "prediction", "sequence", "text")
SHARED = (
    *("probseq.kernels", "probseq.metrics", "probseq.testing"),
    *(f"probseq.transformers.{name}" for name in (*BACKBONE, "vision", "warm_start")),
)
EXCEPTIONS = {
    "probseq.corruptions": "what users of any method corrupt validation images with",
    "probseq.laplace": "a posterior of the last layer of any classifier",
    "probseq.calibrated": "what any classifier becomes by calibration",
    "probseq.calibration": "calibrates any classifier, of this repository or not",
}


def module_files(members) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for member in members:
        for path in member.source.rglob("*.py"):
            parts = path.relative_to(member.source.parent).with_suffix("").parts
            files[".".join(part for part in parts if part != "__init__")] = path
    return files


def names_of_stub(package: str, path: Path) -> dict[str, str]:
    """Return the module that each name of a lazy package comes from."""
    stub = path.with_suffix(".pyi")
    if path.name != "__init__.py" or not stub.exists():
        return {}
    return {
        alias.name: f"{package}.{node.module}"
        for node in ast.parse(stub.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def imports(tree: ast.AST, files: dict[str, Path], stubs: dict[str, dict[str, str]]) -> set[str]:
    """Return the modules that a file uses, those behind names of lazy packages included."""

    def resolved() -> Iterator[str]:
        packages: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                packages |= {alias.asname or alias.name: alias.name for alias in node.names}
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                module = node.module or ""
                for name in (alias.name for alias in node.names):
                    within = f"{module}.{name}"
                    yield within if within in files else stubs.get(module, {}).get(name, module)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                package = packages.get(node.value.id, "")
                yield stubs.get(package, {}).get(node.attr, package)

    return set(resolved()) & files.keys()


def reached(member: str, graph: dict[str, set[str]]) -> set[str]:
    """Return the modules that a member's lead to, none of them by way of another member's."""
    ours = {member, "probseq"}
    graph = {name: to for name, to in graph.items() if name.partition(".")[0] in ours}
    seen, left = set[str](), [name for name in graph if name.partition(".")[0] == member]
    while left:
        module = left.pop()
        if module not in seen:
            seen.add(module)
            left += graph[module] & graph.keys()
    return seen


def used_by_one_member(members) -> set[str]:
    files = module_files(members)
    stubs = {name: names_of_stub(name, path) for name, path in files.items()}
    graph = {
        name: imports(ast.parse(path.read_text(encoding="utf-8")), files, stubs)
        for name, path in files.items()
    }
    names = {member.import_name for member in members} - {"probseq"}
    by_member = [reached(name, graph) for name in sorted(names)]
    shared = {
        name
        for name, path in files.items()
        if name.startswith("probseq.") and path.name != "__init__.py"
    }
    return {
        name
        for name in shared
        if not name.startswith(SHARED) and sum(name in modules for modules in by_member) < 2
    }


def test_a_shared_module_is_used_by_two_members_or_has_a_reason(members) -> None:
    assert used_by_one_member(members) == EXCEPTIONS.keys()
    assert len(EXCEPTIONS) <= 10
