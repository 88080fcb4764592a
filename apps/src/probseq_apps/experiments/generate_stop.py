"""What is told when a step of `probseq generate` is stopped."""

import shlex
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from probseq_apps.experiments.settings import RunOptions


@contextmanager
def tell_how_to_resume(step: str, folder: Path, options: RunOptions) -> Generator[None]:
    """Context manager that names the command which goes on, when a signal ends what it holds.

    Args:
        step: `run`, `tokenizer`, `prior`, `diffusion` or `hvae`.
        folder: of the step.
        options: that it was started with.
    """
    try:
        yield
    except (SystemExit, KeyboardInterrupt):
        print(f"stopped; go on with: {resume_command(step, folder, options)}", file=sys.stderr)
        raise


def resume_command(step: str, folder: Path, options: RunOptions) -> str:
    """The command that goes on with a step; its folder keeps the settings, but not the data's.

    Args:
        step: `run`, `tokenizer`, `prior`, `diffusion` or `hvae`.
        folder: of the step.
        options: that it was started with.
    """
    words = ["probseq", "generate", step, "--run-dir", str(folder), "--resume"]
    if options.data_dir is not None:
        words += ["--data-dir", str(options.data_dir.resolve())]
    return shlex.join(words)
