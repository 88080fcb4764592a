"""`report.html`: the page of a run as one file without outside links.

It is made of `report.md`, `config.json`, `report.json` and the pictures beside them, so that
`probseq report RUN` makes it again at any time.
"""

import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from probseq_apps.engine.files import CONFIG, flatten, write_atomic

PAGE = "report.html"
_KINDS = {".png": "image/png", ".gif": "image/gif", ".svg": "image/svg+xml", ".jpg": "image/jpeg"}
_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;color:#1b1f24;max-width:72rem;margin:0 auto;padding:1rem}
h1{font-size:1.5rem}h2{font-size:1.2rem;margin-top:2rem}p,ul{max-width:50rem}
.findings{background:#eef4fb;border-left:4px solid #0072b2;padding:.1rem 1rem;margin:1rem 0}
.wide{overflow-x:auto;margin:1rem 0}table{border-collapse:collapse;font-size:.9rem}
th,td{padding:.25rem .7rem;text-align:right;white-space:nowrap;border-bottom:1px solid #d8dee4}
th:first-child,td:first-child{text-align:left}
.sorts th{cursor:pointer}.sorts th:hover,.sorts th:focus{background:#eef4fb}
th[aria-sort=ascending]::after{content:" ▴"}th[aria-sort=descending]::after{content:" ▾"}
.settings td{text-align:left;white-space:normal;overflow-wrap:anywhere}
figure{margin:1.5rem 0}img{max-width:100%;height:auto}figcaption{color:#57606a;font-size:.85rem}
code{background:#f2f5f8;padding:0 .2rem;overflow-wrap:anywhere}pre{overflow-x:auto}
@media(max-width:40rem){body{font-size:15px;padding:.6rem}th,td{padding:.2rem .4rem}}
"""
_SCRIPT = """
document.querySelectorAll('table.sorts').forEach(table=>{
 const heads=[...table.querySelectorAll('th')],body=table.tBodies[0];
 const value=(row,k)=>{const text=row.cells[k].textContent.trim();
  const number=parseFloat(text.replace(/,/g,''));
  return isNaN(number)?(k||text==='—'?null:text):number};
 heads.forEach((head,k)=>{head.tabIndex=0;
  const sort=()=>{const up=head.getAttribute('aria-sort')!=='ascending';
   heads.forEach(other=>other.removeAttribute('aria-sort'));
   head.setAttribute('aria-sort',up?'ascending':'descending');
   [...body.rows].sort((a,b)=>{const x=value(a,k),y=value(b,k);
    if(x===null||y===null)return (x===null)-(y===null);
    return (up?1:-1)*(x<y?-1:x>y?1:0)}).forEach(row=>body.append(row))};
  head.onclick=sort;head.onkeydown=event=>{if(event.key==='Enter')sort()}})});
"""


def write_html(folder: Path) -> Path:
    """Make `report.html` of what a run's folder holds, and return its path."""
    if not (folder / "report.md").is_file():
        raise ValueError(f"{folder} must hold a finished run with a report.md")
    blocks = _findings_first(_blocks((folder / "report.md").read_text(encoding="utf-8")))
    title = next((block[2:] for block in blocks if block.startswith("# ")), folder.name)
    parts = [_element(block, folder) for block in blocks]
    for name, key, heading in (
        (CONFIG, None, "Settings"),
        ("report.json", "versions", "Versions"),
    ):
        if (folder / name).is_file():
            values = json.loads((folder / name).read_text(encoding="utf-8"))
            parts.append(_settings(heading, values if key is None else values.get(key, {})))
    path = folder / PAGE
    write_atomic(
        path,
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + f"\n<script>{_SCRIPT}</script></body></html>\n",
    )
    return path


def _blocks(markdown: str) -> list[str]:
    """Return paragraphs, lists, tables and fenced code."""
    found: list[str] = []
    for number, piece in enumerate(re.split(r"^```.*$", markdown, flags=re.MULTILINE)):
        if number % 2:
            found.append(f"```{piece}")
        else:
            found += [block.strip("\n") for block in re.split(r"\n\s*\n", piece) if block.strip()]
    return found


def _findings_first(blocks: list[str]) -> list[str]:
    """Move the section of findings (heading, legend, list) behind title and opening."""
    if "## Findings" not in blocks:
        return blocks
    start = blocks.index("## Findings")
    end = start + 1
    while end < len(blocks) and not blocks[end].startswith("- "):
        end += 1
    section = blocks[start : end + 1]
    rest = blocks[:start] + blocks[end + 1 :]
    return [*rest[:2], "<findings>", *section, "</findings>", *rest[2:]]


def _element(block: str, folder: Path) -> str:
    """Return a block of Markdown as HTML."""
    first, lines = block.partition("\n")[0], block.split("\n")
    if block == "<findings>":
        return '<section class="findings">'
    if block == "</findings>":
        return "</section>"
    if block.startswith("```"):
        return f"<pre>{escape(block[3:].strip())}</pre>"
    if heading := re.match(r"(#+) ", first):
        level = len(heading[1])
        rest = "\n".join(lines[1:]).strip()
        shown = f"<h{level}>{_inline(first[level + 1 :])}</h{level}>"
        return shown + (f"\n{_element(rest, folder)}" if rest else "")
    if first.startswith("|"):
        return _table([[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines])
    if first.startswith("- "):
        items = re.split(r"\n(?=- )", block)
        return f"<ul>{''.join(f'<li>{_inline(item[2:])}</li>' for item in items)}</ul>"
    if picture := re.fullmatch(r"!\[(.*?)\]\((.*?)\)", block):
        return _figure(picture[1], folder / picture[2])
    return f"<p>{_inline(block)}</p>"


def _inline(text: str) -> str:
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
    return re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", text)


def _table(rows: Sequence[Sequence[str]]) -> str:
    heads, _, *lines = rows
    # A row with a name alone begins a section, which is turned: its rows are the heads here.
    starts = [place for place, line in enumerate(lines) if len(line) > 1 and not any(line[1:])]
    if starts:
        ends = [*starts[1:], len(lines)]
        sections = [lines[start:end] for start, end in zip(starts, ends, strict=True)]
        turned = [
            zip([section[0][0], *heads[1:]], *section[1:], strict=True) for section in sections
        ]
        return "\n".join(_sorted_table([list(row) for row in table]) for table in turned)
    return _sorted_table([heads, *lines])


def _sorted_table(rows: Sequence[Sequence[str]]) -> str:
    heads, *lines = (
        "".join(f"<{kind}>{_inline(cell)}</{kind}>" for cell in row)
        for kind, row in zip(("th", *("td" for _ in rows[1:])), rows, strict=True)
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return (
        f'<div class="wide"><table class="sorts"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _figure(name: str, path: Path) -> str:
    if not path.is_file():
        return f"<p>{escape(name)} is not there: {escape(path.name)}</p>"
    kind = _KINDS.get(path.suffix.lower(), "application/octet-stream")
    content = b64encode(path.read_bytes()).decode("ascii")
    caption = escape(name.replace("-", " "))
    return (
        f'<figure><img alt="{caption}" src="data:{kind};base64,{content}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _settings(heading: str, values: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(json.dumps(value))}</td></tr>"
        for name, value in flatten(values)
    )
    return (
        f"<details><summary>{heading}</summary>"
        f'<div class="wide"><table class="settings"><tbody>{rows}</tbody></table></div></details>'
    )
