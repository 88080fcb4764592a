"""Show each script of learn/ as a page with its output and pictures, and as a notebook.

A script has cells in the percent format, which editors know: `# %%` begins code, `# %% [markdown]`
text. The page, the notebook and the script itself become files of the site; none is written to
the tree.
"""

import logging
import os
import re
from copy import deepcopy
from pathlib import Path

import jupytext
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import MarkdownExporter
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

# One thread: as good as the same numbers on every machine.
THREADS = {"OMP_NUM_THREADS": "1"}
SECONDS = 900  # until a kernel has started; cells may take longer
WIDE = 1000  # pixels; pictures with more have small print
LOGGER = logging.getLogger("mkdocs.hooks.tutorials")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages, pictures and notebooks of all tutorials."""
    for script in [file for file in files if file.src_uri.startswith("learn/") and is_script(file)]:
        path = Path(script.abs_src_path or "")
        notebook = jupytext.read(path, fmt="py:percent")
        if config.extra["run_tutorials"]:
            LOGGER.info("Running %s", script.src_uri)
            execute(notebook, path)
        for uri, content in pages(notebook, path.stem).items():
            files.append(File.generated(config, f"learn/{uri}", content=content))
    return files


def is_script(file: File) -> bool:
    """Return whether a file of the site is a tutorial's script."""
    return file.src_uri.endswith(".py")


def execute(notebook: NotebookNode, path: Path) -> None:
    """Run the cells of a notebook and keep their outputs in it.

    Raises:
        PluginError: a cell raises.
    """
    os.environ |= THREADS
    # A figure at the end of a cell is shown; the page leaves this cell out.
    notebook.cells.insert(0, new_code_cell("%matplotlib inline", id="inline"))
    notebook.metadata.kernelspec = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    try:
        NotebookClient(
            notebook, timeout=None, startup_timeout=SECONDS, coalesce_streams=True
        ).execute()
    except CellExecutionError as error:
        raise PluginError(f"{path.name} stops: {error}") from error
    for cell in notebook.cells:  # warnings name folders of this machine
        if outputs := cell.get("outputs"):
            cell.outputs = [own for own in outputs if own.get("name") != "stderr"]


def pages(notebook: NotebookNode, name: str) -> dict[str, str | bytes]:
    """Return the page, the pictures and the notebook of a tutorial by their file names."""
    shown = deepcopy(notebook)
    shown.cells = [cell for cell in shown.cells if cell.get("id") != "inline"]
    body, resources = MarkdownExporter().from_notebook_node(
        shown, resources={"unique_key": name, "output_files_dir": "pictures"}
    )
    links = f"[Script]({name}.py){{download}} · [Notebook]({name}.ipynb){{download}}\n"
    for picture, content in resources["outputs"].items():
        if int.from_bytes(content[16:20]) > WIDE:  # of a PNG file, its width
            body = re.sub(rf"\]\({re.escape(picture)}\)", r"\g<0>{ .wide }", body)
    title, rest = body.lstrip().split("\n", 1)
    return {
        f"{name}.md": f"{title}\n\n{links}\n{rest}",
        f"{name}.ipynb": jupytext.writes(notebook, fmt="ipynb"),
        **resources["outputs"],
    }
