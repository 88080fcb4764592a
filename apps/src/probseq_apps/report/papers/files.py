"""The files that hold the papers' tables."""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

PAPERS = ("thesis", "ohsvgp", "cgpt", "kep")


@cache
def raw_paper(paper: str) -> dict[str, Any]:
    """Everything that a paper's file says, as plain values.

    Args:
        paper: one of `PAPERS`.
    """
    text = (files("probseq_apps.report.papers") / f"{paper}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
