"""A page that draws the answers of a stream, for a browser, which reads it anew as they come."""

import json
import time
from html import escape
from pathlib import Path

from ohsvgp.integrations.live.judge import Judge
from probseq.files import write_atomic

_HTML = Path(__file__).with_name("page.html")


def write_page(path: Path, title: str, judge: Judge, *, ended: bool) -> None:
    """Write the page of the latest answers, all or nothing; one that has ended stays as it is."""
    values = {"answers": judge.answers, "forecasts": judge.forecasts}
    stream = json.dumps(values | {"ended": ended, "written": time.time()})
    text = _HTML.read_text("utf-8").replace("Live stream", escape(title))
    write_atomic(path, text.replace("/* stream */", stream.replace("<", "\\u003c")))
