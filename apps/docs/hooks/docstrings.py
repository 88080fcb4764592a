"""Read our docstrings as Markdown, and comments of constants and fields as their docstrings."""

import re
from itertools import dropwhile, takewhile
from typing import Any

from griffe import Attribute, Docstring, Extension, Module, Object

ROLE = re.compile(r":(?P<role>[a-z]+):`(?P<text>[^`]+)`")
EXAMPLE = re.compile(r"^( *)Example:$", re.M)
DISPLAY = re.compile(r"^(?P<indent> *)\.\. math::(?P<tex>.*\n(?:(?P=indent) +.*\n?|\n)*)", re.M)


class Docstrings(Extension):
    """Rewrite each docstring before it is parsed."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring is not None:
            text = EXAMPLE.sub(r"\1Examples:", obj.docstring.value)
            obj.docstring.value = ROLE.sub(role, DISPLAY.sub(display, text))

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Rewrite the docstring of a package, which is told of only beside that of its stub."""
        self.on_object(obj=pkg)

    def on_attribute(self, *, attr: Attribute, **_: Any) -> None:
        """Take the comment beside a field, or those above a constant."""
        place = {"class-attribute", "module-attribute"} & attr.labels
        if attr.docstring is not None or not place or attr.name.startswith("_"):
            return
        if comment := comment_of(attr):
            attr.docstring = Docstring(ROLE.sub(role, comment), parent=attr)


def role(match: re.Match[str]) -> str:
    r"""Return an equation as `\(...\)`, and the name of something in the code as code."""
    text = match["text"]
    if match["role"] == "math":
        return rf"\({text}\)"
    return f"`{text.removeprefix('~')}`"


def display(match: re.Match[str]) -> str:
    """Return an equation that stands in lines of its own between double dollars."""
    indent, lines = match["indent"], match["tex"].split("\n")
    tex = " ".join(line.strip() for line in lines if line.strip())
    if "&" in tex and r"\begin" not in tex:
        tex = rf"\begin{{aligned}} {tex} \end{{aligned}}"
    return f"\n{indent}$${tex}$$\n\n"


def comment_of(attribute: Attribute) -> str:
    """Return the comment at the end of an attribute's line, or the one above its block."""
    lines = attribute.lines_collection[attribute.filepath]
    first, last = attribute.lineno or 1, attribute.endlineno or 1
    _, mark, beside = lines[last - 1].partition("  # ")
    if mark or not attribute.parent or not attribute.parent.is_module:
        return beside
    block = takewhile(str.strip, reversed(lines[: first - 1]))
    comment = [*takewhile(is_comment, dropwhile(lambda line: not is_comment(line), block))]
    return " ".join(line.removeprefix("# ") for line in reversed(comment))


def is_comment(line: str) -> bool:
    """Return whether a line is a comment of a module."""
    return line.startswith("# ")
