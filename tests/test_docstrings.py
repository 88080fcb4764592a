"""The examples in docstrings run."""

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
