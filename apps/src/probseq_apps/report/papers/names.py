"""Names of the papers' tables, and what else they may be called."""

from difflib import get_close_matches

from probseq_apps.report.papers.files import PAPERS, raw_paper

# Both files are of the thesis, whose tables have names of their own.
_OF_THESIS = ("thesis", "ohsvgp")


def table_names() -> tuple[str, ...]:
    """All tables: `3.2`, `B.1`, ..., `4.1`, `cgpt:I`, ..., `kep:9`."""
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


def paper_and_key(name: str) -> tuple[str, str]:
    """The file that holds a table, and the table's name in it.

    Args:
        name: from ``resolve_name``.
    """
    prefix, _, key = name.rpartition(":")
    return prefix or next(paper for paper in _OF_THESIS if key in _keys(paper)), key


def _aliases() -> dict[str, str]:
    aliases: dict[str, str] = {}
    for paper in PAPERS:
        for key in _keys(paper):
            full = f"{_shown_prefix(paper)}{key}"
            for start in (paper, "thesis") if paper in _OF_THESIS else (paper,):
                aliases |= {f"{start}:{key}": full, f"{start}-{key}": full}
            aliases[full] = full
            # Roman numerals are CGPT's alone.
            if key.isalpha():
                aliases[key] = full
    return aliases


def _shown_prefix(paper: str) -> str:
    return "" if paper in _OF_THESIS else f"{paper}:"


def _keys(paper: str) -> list[str]:
    return list(raw_paper(paper)["tables"])
