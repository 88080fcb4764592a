"""Names of the papers' tables, and what else they may be called."""

from difflib import get_close_matches

from probseq_apps.report.papers.files import PAPERS, raw_paper


def table_names() -> tuple[str, ...]:
    """All tables: `3.2`, `B.1`, ..., `cgpt:I`, ..., `kep:9`."""
    return tuple(f"{_shown_prefix(paper)}{key}" for paper in PAPERS for key in _keys(paper))


def resolve_name(name: str) -> str:
    """The table that a name means.

    Case does not matter, and `cgpt-II`, `II` and `thesis:B.6` are understood as well; a plain
    number belongs to no paper in particular.

    Args:
        name: as typed.

    Raises:
        ValueError: there is no such table; the message names the nearest one.
    """
    known = {alias.lower(): full for alias, full in _aliases().items()}
    typed = name.strip().lower()
    if typed in known:
        return known[typed]
    nearest = get_close_matches(typed, list(known), n=1, cutoff=0.5)
    hint = f"; did you mean {known[nearest[0]]!r}?" if nearest else ";"
    raise ValueError(f"unknown table {name!r}{hint} known: {', '.join(table_names())}")


def _aliases() -> dict[str, str]:
    aliases: dict[str, str] = {}
    for paper in PAPERS:
        for key in _keys(paper):
            full = f"{_shown_prefix(paper)}{key}"
            for alias in (full, f"{paper}:{key}", f"{paper}-{key}"):
                aliases[alias] = full
            # Roman numerals are CGPT's alone.
            if key.isalpha():
                aliases[key] = full
    return aliases


def _shown_prefix(paper: str) -> str:
    return "" if paper == "thesis" else f"{paper}:"


def _keys(paper: str) -> list[str]:
    return list(raw_paper(paper)["tables"])
