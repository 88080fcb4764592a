"""Show each script of learn/ as a page with its output and pictures, and as a notebook.

A script has cells in the percent format, which editors know: `# %%` begins code, `# %% [markdown]`
text. The page and its pictures are files of the tree, which this writes:

    uv run --group docs python apps/docs/hooks/tutorials.py [NAME ...]

The notebook, and the links to it and to the script, are added when the site is built.
"""

import logging
import os
import re
import sys
from pathlib import Path

import jupytext
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbclient import NotebookClient
from nbconvert import MarkdownExporter
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

# One thread: as good as the same numbers on every machine.
THREADS = {"OMP_NUM_THREADS": "1"}
SECONDS = 900  # until a kernel has started; cells may take longer
WIDE = 1000  # pixels; pictures with more have small print
LEARN = Path(__file__).parents[1] / "learn"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the notebooks of all tutorials."""
    for script in LEARN.glob("*.py"):
        content = jupytext.writes(jupytext.read(script, fmt="py:percent"), fmt="ipynb")
        files.append(File.generated(config, f"learn/{script.stem}.ipynb", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link script and notebook below the title of a tutorial, and show wide pictures wide."""
    path = Path(page.file.abs_src_path or "")
    if not path.with_suffix(".py").is_file():
        return markdown
    name, (title, rest) = path.stem, markdown.lstrip().split("\n", 1)
    for picture in re.findall(r"\]\((pictures/[^)]+)\)", rest):
        if int.from_bytes((LEARN / picture).read_bytes()[16:20]) > WIDE:  # of a PNG, its width
            rest = rest.replace(f"]({picture})", f"]({picture}){{ .wide }}")
    links = f"[Script]({name}.py){{download}} · [Notebook]({name}.ipynb){{download}}\n"
    return f"{title}\n\n{links}\n{rest}"


def execute(notebook: NotebookNode) -> None:
    """Run the cells of a notebook and keep their outputs in it."""
    os.environ |= THREADS
    # A figure at the end of a cell is shown; the page leaves this cell out.
    notebook.cells.insert(0, new_code_cell("%matplotlib inline"))
    notebook.metadata.kernelspec = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    NotebookClient(notebook, timeout=None, startup_timeout=SECONDS, coalesce_streams=True).execute()
    del notebook.cells[0]
    for cell in notebook.cells:  # warnings name folders of this machine
        if outputs := cell.get("outputs"):
            cell.outputs = [own for own in outputs if own.get("name") != "stderr"]


def write(script: Path) -> None:
    """Run a tutorial, and write its page and pictures."""
    notebook, folder = jupytext.read(script, fmt="py:percent"), LEARN / "pictures"
    execute(notebook)
    resources = {"unique_key": script.stem, "output_files_dir": folder.name}
    body, made = MarkdownExporter().from_notebook_node(notebook, resources=resources)
    folder.mkdir(exist_ok=True)
    for picture in folder.glob(f"{script.stem}_*.png"):
        picture.unlink()
    for name, content in made["outputs"].items():
        (LEARN / name).write_bytes(content)
    text = re.sub(r" +$", "", body, flags=re.M).strip()
    title = text.partition("\n")[0].removeprefix("# ")
    text = re.sub(r"\n+!\[png\](.+)\n*", rf"\n\n![{title}]\1\n\n", text).rstrip()
    text = text.replace("![png]", f"![{title}]")  # of several pictures in a row the second
    script.with_suffix(".md").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    for name in sys.argv[1:] or sorted(path.stem for path in LEARN.glob("*.py")):
        logging.info("Running %s", name)
        write(LEARN / f"{name}.py")
