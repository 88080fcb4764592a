"""How a command runs, and where its files are: nothing here changes a number."""

from pathlib import Path

from probseq.settings import Count, Settings


class Output(Settings):
    """What is shown."""

    debug: bool = False
    """Show where an error came from."""
    quiet: bool = False
    """Print the result only, and errors."""


class Options(Output):
    """Files and running."""

    data_dir: Path | None = None
    """Folder that holds the data sets."""
    download: bool = False
    """Fetch a data set that is not in the data folder."""
    run_dir: Path | None = None
    """Folder of this run; None: runs/COMMAND-DATA-TIME."""
    resume: bool = False
    """Go on with the run in --run-dir where it stopped."""
    overwrite: bool = False
    """Delete the run in --run-dir first."""
    threads: Count = 1
    """CPU threads of torch; more than one pays for the models of paper size only."""
    workers: Count | None = None
    """Processes that train at the same time; None: up to 4, as many as the machine has processors,
    and one where it has a GPU."""

    def check(self) -> None:
        """Refuse options that don't go together."""
        if self.resume and self.overwrite:
            raise ValueError("resume and overwrite exclude each other: give one of them")
        if self.resume and self.run_dir is None:
            raise ValueError("resume needs run_dir: name the run to go on with")
