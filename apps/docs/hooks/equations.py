r"""Turn the equations of a page, `\(...\)` and `\[...\]`, into MathML, which needs no script.

In tables a number stays on one line with its error.
"""

import html
import re
from typing import Any

from latex2mathml.converter import convert

EQUATION = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<tex>.*?)\\[)\]]</(?P=tag)>', re.S
)
CELL = re.compile(r"<td.*?</td>", re.S)


def on_page_content(content: str, **_: Any) -> str:
    """Return a page with its equations in MathML, and unbroken numbers in its tables."""
    return EQUATION.sub(
        equation, CELL.sub(lambda cell: cell[0].replace(" ± ", "\xa0±\xa0"), content)
    )


def equation(match: re.Match[str]) -> str:
    """Return one equation in MathML."""
    display = "block" if match["tag"] == "div" else "inline"
    return convert(html.unescape(match["tex"]).strip(), display=display)
