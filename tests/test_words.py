"""Values have the names of what they hold: `losses`, not `found` or `kept`."""

import ast
import re
from pathlib import Path

WORDS = {
    *("found", "own", "given", "told", "kept", "law", "laws", "said", "looked", "met"),
    *("known", "place", "places", "one", "shown", "drawn", "seen", "here", "rest", "fits", "anew"),
}
PARTS = {"part", "parts"}
# Names of river's and of diffusers; attention in one direction only.
OF_OTHERS = {"learn_one", "predict_one", "one_way"}
OF_OTHERS |= {"sqrt_one_minus_alphas_cumprod", "one_minus_alphas_cumprod_prev"}
# Here a part is one of a data set, or `parts` a key of saved states.
HAVE_PARTS = {
    *(f"apps/src/probseq_apps/data/{name}.py" for name in ("fetch", "molecules", "parts", "sets")),
    *(f"apps/src/probseq_apps/data/{name}.py" for name in ("image_files", "image_folders")),
    *(f"apps/src/probseq_apps/data/{name}.py" for name in ("images", "texts")),
    *(f"apps/src/probseq_apps/experiments/{name}.py" for name in ("classify",)),
    "apps/src/probseq_apps/baselines/estimators.py",
    "shared/src/probseq/kernels/base.py",
    "shared/src/probseq/metrics/calibration.py",
}


def names(tree: ast.AST) -> set[str]:
    """Return the names that a file gives to values, functions and classes."""
    named = set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                named.add(name)
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                named.add(name)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                named.add(name)
            case _:
                pass
    return {name for name in named if not name.startswith("test_")}


def offenders(path: Path, root: Path) -> list[str]:
    file = path.relative_to(root).as_posix()
    words = WORDS if file in HAVE_PARTS else WORDS | PARTS
    return sorted(
        name
        for name in names(ast.parse(path.read_text(encoding="utf-8"))) - OF_OTHERS
        if words & set(re.split(r"[_\d]+", name.lower()))
    )


def test_values_are_named_by_what_they_hold(root: Path, members) -> None:
    paths = [path for member in members for path in sorted(member.source.rglob("*.py"))]
    by_file = {path.relative_to(root).as_posix(): offenders(path, root) for path in paths}
    wrong = {file: words for file, words in by_file.items() if words}
    assert not wrong, "name these values by what they hold"


def test_each_kind_of_name_is_seen() -> None:
    source = """
def law(own, *, kept_rows=0):
    self.told = [given for given in own if (met := given)]
    for found in own:
        match found:
            case [*parts]:
                return found.said
"""
    expected = {"law", "own", "kept_rows", "told", "given", "met", "found", "parts"}
    assert names(ast.parse(source)) == expected
