"""`report.html`: the page of a run as one file without outside links.

It is made of `report.md`, `config.json`, `report.json` and the pictures beside them.
"""

import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from string import Template
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from PIL import Image, ImageSequence

from probseq.files import write_atomic
from probseq_apps.engine.files import CONFIG, flatten

PAGE = "report.html"
PLOT = "plot"  # title, in the file, of a picture that is drawn in black on white
DETAILS = "## Details"  # from here on, sections are to be opened
_WIDEST = 1600  # pixels of a picture, more than the page is wide


def write_html(folder: Path) -> Path:
    """Write `report.html` from the files of a run's folder, and return its path."""
    text = (folder / "report.md").read_text(encoding="utf-8")
    title = re.search(r"^# (.*)", text, re.MULTILINE)
    body = [_rendered(text, folder)]
    for heading, name in (("Settings", CONFIG), ("Versions", "report.json")):
        if (folder / name).is_file():
            values = json.loads((folder / name).read_text(encoding="utf-8"))
            body.append(_settings(heading, values if name == CONFIG else values["versions"]))
    page = Template((files("probseq_apps.report") / "page.html").read_text(encoding="utf-8"))
    content = page.substitute(
        title=escape(title[1] if title else folder.name), body="\n".join(body)
    )
    write_atomic(folder / PAGE, content)
    return folder / PAGE


def _rendered(markdown: str, folder: Path) -> str:
    """Return Markdown as HTML: tables that sort, pictures inside, sections closed."""
    reader = MarkdownIt("commonmark").enable("table")
    tokens = reader.parse(markdown)
    for opening, inline in pairwise(tokens):
        # A picture is no part of a paragraph.
        if [child.type for child in inline.children or ()] == ["image"]:
            opening.hidden = tokens[tokens.index(inline) + 1].hidden = True
    page = _Renderer(folder).render(tokens, reader.options, {})
    page = page.replace('<div class="wide">', '<div class="wide lead">', 1)
    before, *sections = re.split(r"<h2>(.*?)</h2>", page)
    closed = zip(sections[::2], sections[1::2], strict=True)
    return before + "".join(
        f"<details><summary>{heading}</summary>{section}</details>\n" for heading, section in closed
    )


class _Renderer(RendererHTML):
    """Tables that sort, errors in small letters, and the pictures of a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def table_open(self, *_: object) -> str:
        """Begin a table in a box that scrolls."""
        return '<div class="wide"><table class="sorts">'

    def table_close(self, *_: object) -> str:
        """End a table and its box."""
        return "</table></div>\n"

    def text(self, tokens: Sequence[Token], idx: int, options: object, env: object) -> str:
        """Write a text; phones leave errors out."""
        return re.sub(r"(?<=\d)( ?± ?[\d.]+)", r"<small>\1</small>", escape(tokens[idx].content))

    def image(self, tokens: Sequence[Token], idx: int, options: object, env: object) -> str:
        """Write a picture into the page."""
        token = tokens[idx]
        name, path = escape(token.content), self.folder / str(token.attrs["src"])
        if not path.is_file():
            return f"<p>{name} is not there: {escape(path.name)}</p>"
        kind, content, title = _packed(path)
        return (
            f'<figure class="{title}"><img alt="{name}" src="data:image/{kind};base64,'
            f'{b64encode(content).decode("ascii")}"><figcaption>{name}</figcaption></figure>\n'
        )


def _packed(path: Path) -> tuple[str, bytes, str]:
    """Return kind and content of a picture, as WebP if smaller, and `PLOT` or "photo"."""
    content, packed = path.read_bytes(), BytesIO()
    with Image.open(path) as image:
        title = PLOT if image.info.get("Title") == PLOT else "photo"
        mode = "RGBA" if "A" in image.getbands() else "RGB"
        frames = [frame.convert(mode) for frame in ImageSequence.Iterator(image)]
        for frame in frames:
            frame.thumbnail((_WIDEST, frame.height))
        times = [frame.info.get("duration", 0) for frame in ImageSequence.Iterator(image)]
    frames[0].save(
        packed,
        "WEBP",
        quality=80,
        method=2,
        save_all=True,
        append_images=frames[1:],
        duration=times,
        loop=0,
    )
    kinds = {path.suffix[1:]: content, "webp": packed.getvalue()}
    kind = min(kinds, key=lambda name: len(kinds[name]))
    return kind, kinds[kind], title


def _settings(heading: str, values: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(json.dumps(value))}</td></tr>"
        for name, value in flatten(values)
    )
    return (
        f"<details><summary>{heading}</summary>"
        f'<div class="wide"><table class="settings"><tbody>{rows}</tbody></table></div></details>'
    )
