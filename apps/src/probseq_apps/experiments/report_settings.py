"""Settings of `probseq report`; importable without torch, for the command line."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from probseq_apps.report.papers import resolve_name


@dataclass(frozen=True, kw_only=True)
class ReportSettings:
    """Which table of the papers, and which runs to put beside it."""

    run_folders: Annotated[
        Positional[tuple[Path, ...]],
        arg(
            metavar="[RUN_FOLDER ...]",
            help="Run folders, or folders of them; none: runs/. Without --table their report.html "
            "is made anew, and opened from a terminal.",
        ),
    ] = ()
    table: Annotated[str | None, arg(metavar="NAME")] = None
    """Name of the table: 3.2, 4.1, 5.1 to 5.5, B.1 and B.4 to B.32 are the thesis', cgpt:I to
    cgpt:V those of CGPT's paper, kep:1 to kep:9 those of KEP-SVGP's."""
    show_list: Annotated[bool, arg(name="list")] = False
    """List the tables."""
    output_dir: Path = Path("paper-tables")
    """Folder for the table as Markdown and as a picture; files of the same name are replaced."""

    def __post_init__(self) -> None:
        """Refuse an unknown table."""
        if self.table is not None:
            resolve_name(self.table)

    def check_given(self) -> None:
        """Refuse a command line that asks for nothing, or for two things."""
        asked = (self.table is not None, self.show_list)
        if all(asked) or not (any(asked) or self.run_folders):
            raise ValueError("report needs a RUN_FOLDER, --table NAME or --list")
