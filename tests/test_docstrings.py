"""Docstrings begin with what a thing does or is, and their examples run."""

import ast
import doctest
import importlib

import pytest
import torch


def modules_with_examples(member) -> list[str]:
    return [
        ".".join(path.relative_to(member.path / "src").with_suffix("").parts).removesuffix(
            ".__init__"
        )
        for path in sorted(member.source.rglob("*.py"))
        if ">>> " in path.read_text(encoding="utf-8")
    ]


def test_examples_run(member) -> None:
    modules = modules_with_examples(member)
    if not modules:
        pytest.skip(f"{member.name} has no examples in docstrings")
    for name in modules:
        torch.manual_seed(0)  # examples draw data and weights
        results = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
        assert results.attempted, f"{name}: the example is not in a docstring"
        assert not results.failed, f"{name}: see the captured output"


def test_docstrings_begin_with_no_question_word(member) -> None:
    first = [
        (path.name, docstring.split()[0])
        for path in sorted(member.source.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and (docstring := ast.get_docstring(node))
    ]
    questions = {"What", "How", "Where", "Which", "When", "Who", "Why", "Whether"}
    assert not [(file, word) for file, word in first if word in questions]
