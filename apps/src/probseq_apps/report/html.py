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

from PIL import Image, ImageSequence

from probseq_apps.engine.files import CONFIG, flatten, write_atomic

PAGE = "report.html"
DETAILS = "## Details"  # from here on, sections are to be opened
_WIDEST = 1600  # pixels of a picture, more than the page is wide


def write_html(folder: Path) -> Path:
    """Write `report.html` from the files of a run's folder, and return its path."""
    blocks = _blocks((folder / "report.md").read_text(encoding="utf-8"))
    title = next((block[2:] for block in blocks if block.startswith("# ")), folder.name)
    elements = [_element(block, folder) for block in blocks]
    if DETAILS in blocks:
        elements = _in_sections(blocks, elements)
        lead = next((k for k, text in enumerate(elements) if '<div class="wide">' in text), 0)
        elements[lead] = elements[lead].replace('class="wide"', 'class="wide lead"', 1)
    for heading, name in (("Settings", CONFIG), ("Versions", "report.json")):
        if (folder / name).is_file():
            values = json.loads((folder / name).read_text(encoding="utf-8"))
            elements.append(
                _settings(heading, values if name == CONFIG else values.get("versions", {}))
            )
    page = Template((files("probseq_apps.report") / "page.html").read_text(encoding="utf-8"))
    text = page.substitute(title=escape(title), body="\n".join(elements))
    write_atomic(folder / PAGE, text)
    return folder / PAGE


def _in_sections(blocks: Sequence[str], elements: Sequence[str]) -> list[str]:
    """Return a page whose headings of the second level begin sections that are closed."""
    page: list[str] = []
    for block, element in zip(blocks, elements, strict=True):
        if heading := re.match(r"## (.*)\n*", block):
            page += ["</details>"] * ("<details>" in page)
            page += ["<details>", f"<summary>{_inline(heading[1])}</summary>"]
            element = element.partition("</h2>")[2]
        page.append(element)
    return [*page, *(["</details>"] * ("<details>" in page))]


def _blocks(markdown: str) -> list[str]:
    """Return paragraphs, lists, tables and fenced code."""
    blocks: list[str] = []
    for number, piece in enumerate(re.split(r"^```.*$", markdown, flags=re.MULTILINE)):
        if number % 2:
            blocks.append(f"```{piece}")
        else:
            blocks += [block.strip("\n") for block in re.split(r"\n\s*\n", piece) if block.strip()]
    return blocks


def _element(block: str, folder: Path) -> str:
    """Return a block of Markdown as HTML."""
    if block.startswith("```"):
        return f"<pre>{escape(block[3:].strip())}</pre>"
    if heading := re.match(r"(#+) (.*)\n*", block):
        level, rest = len(heading[1]), block[heading.end() :].strip()
        title = f"<h{level}>{_inline(heading[2])}</h{level}>"
        return f"{title}\n{_element(rest, folder)}" if rest else title
    if block.startswith("|"):
        lines = block.split("\n")
        return _tables([[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines])
    if block.startswith("- "):
        items = (f"<li>{_inline(item)}</li>" for item in re.split(r"\n?^- ", block, flags=re.M)[1:])
        return f"<ul>{''.join(items)}</ul>"
    if picture := re.fullmatch(r"!\[(.*?)\]\((.*?)\)", block):
        return _figure(picture[1], folder / picture[2])
    return f"<p>{_inline(block)}</p>"


def _inline(text: str) -> str:
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
    text = re.sub(r"(?<=\d)(±[\d.]+)", r"<small>\1</small>", text)
    text = re.sub(r" \*$", "<small> *</small>", text)
    return re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", text)


def _tables(rows: Sequence[Sequence[str]]) -> str:
    """Return tables that sort: one, or those of the sections that rows with a name alone begin.

    Sections are turned: their rows become heads.
    """
    heads, _, *lines = rows
    starts = [place for place, line in enumerate(lines) if len(line) > 1 and not any(line[1:])]
    turned = [
        list(zip([lines[start][0], *heads[1:]], *lines[start + 1 : end], strict=True))
        for start, end in pairwise([*starts, len(lines)])
    ]
    return "\n".join(map(_sorted_table, turned or [[heads, *lines]]))


def _sorted_table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = (
        "".join(f"<{kind}>{_inline(cell)}</{kind}>" for cell in row)
        for kind, row in zip(("th", *("td" for _ in rows[1:])), rows, strict=True)
    )
    lines = "".join(f"<tr>{line}</tr>" for line in body)
    return (
        f'<div class="wide"><table class="sorts"><thead><tr>{head}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def _figure(name: str, path: Path) -> str:
    if not path.is_file():
        return f"<p>{escape(name)} is not there: {escape(path.name)}</p>"
    kind, content = _packed(path)
    return (
        f'<figure><img alt="{escape(name)}" src="data:image/{kind};base64,'
        f'{b64encode(content).decode("ascii")}"><figcaption>{escape(name)}</figcaption></figure>'
    )


def _packed(path: Path) -> tuple[str, bytes]:
    """Return kind and content of a picture or a film, as small WebP where that is smaller."""
    content, packed = path.read_bytes(), BytesIO()
    with Image.open(path) as image:
        frames = [frame.convert("RGB") for frame in ImageSequence.Iterator(image)]
        for frame in frames:
            frame.thumbnail((_WIDEST, frame.height))
        times = [frame.info.get("duration", 0) for frame in ImageSequence.Iterator(image)]
    options: Any = {"save_all": True, "append_images": frames[1:], "duration": times, "loop": 0}
    frames[0].save(packed, "WEBP", quality=80, method=2, **options)
    kinds = {path.suffix[1:]: content, "webp": packed.getvalue()}
    return min(kinds.items(), key=lambda item: len(item[1]))


def _settings(heading: str, values: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(json.dumps(value))}</td></tr>"
        for name, value in flatten(values)
    )
    return (
        f"<details><summary>{heading}</summary>"
        f'<div class="wide"><table class="settings"><tbody>{rows}</tbody></table></div></details>'
    )
