"""Settings of `probseq forecast`.

Importable without torch; docstrings of fields are the help.
"""

import re
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional

from ohsvgp.integrations.live import state as live
from probseq.settings import Count, Settings
from probseq_apps.settings.common import SOME, DefaultSelectors, require
from probseq_apps.settings.online import check_text

STANDARD_INPUT = Path("-")


class ForecastSettings(Settings):
    """Forecast."""

    file: Positional[Path] = STANDARD_INPUT
    """Readings; - for those of standard input."""
    time: tuple[str, ...] = ()
    """Column of the stamps, or those of date and time of day; none: it is found."""
    target: str | None = None
    """Column of the values; None: the only one that holds numbers."""
    horizon: str = str(live.HORIZON)
    """Steps to forecast, or a length of time, such as 24h."""
    season: Annotated[tuple[str, ...], SOME] = ("auto",)
    """Periods of patterns that repeat: where stamps are dates with a unit, as 24h, 7d or P1Y, else
    numbers; auto: those of the calendar and of the data are compared by evidence; or none."""
    step: str | None = None
    """Time between stamps to forecast, as the periods; None: the median of the latest gaps."""
    likelihood: Literal["gaussian", "poisson", "negative-binomial"] = "gaussian"
    """Of real values, or of counts; negative-binomial where these scatter more than Poisson's."""
    false_alarms: str = f"{live.FALSE_ALARMS:g}"
    """Outliers that are told of quiet lines: a share, or how many in a time, such as 1/day."""
    warmup: Count = live.WARMUP
    """First lines, which wait for their step and seasons."""
    out: Path | None = None
    """File of the answers: .csv, or .jsonl with all of each; with --state they are appended."""
    report: Path | None = None
    """Page with a picture: an .html file, or a folder that will have report.html. While lines
    come, a browser reads it anew."""
    state: Path | None = None
    """File of the state: made if it isn't there, else taken up with the model in it, whose flags
    may be left out and must not differ. Lines of FILE that it has absorbed are skipped."""
    every: Count = 1
    """Lines between two savings of the state; Ctrl-C and SIGTERM save it, too."""
    replay: bool = False
    """Standard input starts at the stream's first line: skip those that the state has absorbed."""
    sort: bool = False
    """Sort the lines of FILE by their stamps."""
    missing: tuple[str, ...] = ()
    """Values that stand for none, such as -9999, beside NA, N/A, NaN, null, none, - and nothing."""
    date_format: str | None = None
    """Of stamps, as "%d.%m.%Y %H:%M"; number; or unix, unix-ms, unix-us, unix-ns since 1970."""
    separator: str | None = None
    """Between cells; None: it is found."""
    decimal: Literal[".", ","] | None = None
    """Mark of decimals in numbers; None: it is found."""
    encoding: str = "utf-8-sig"
    """Of the lines, such as utf-8-sig or latin-1."""

    def check(self) -> None:
        """Refuse what cannot be read, and flags that do not go together."""
        check_text(self.encoding)
        if self.separator not in (None, " "):
            live.check_marks(self.separator, self.decimal or ".")
        require(not re.match("-|0$", self.horizon), f"horizon must be above 0, got {self.horizon}")
        alarms = re.fullmatch(r"(\d+\.?\d*|\.\d+)(e-?\d+)?(/.+)?", self.false_alarms)
        require(
            alarms,
            "false_alarms must be a share, or how many in a time, such as 0.002 or 1/day, got "
            f"{self.false_alarms!r}",
        )
        words = {"auto", "none"} & {*self.season}
        require(len(self.season) == 1 or not words, "season must be auto, or none, or periods")
        require(self.state or not self.replay, "replay needs state: name its file")
        alone = self.file != STANDARD_INPUT and self.state is None
        require(alone or not self.sort, "sort needs a FILE, and no state: sort the file itself")
        ends = self.out is None or self.out.suffix in (".csv", ".jsonl")
        require(ends, f"out must end in .csv or .jsonl, got {self.out}")
        for name, path in {"out": self.out, "report": self.report, "state": self.state}.items():
            require(path is None or path.parent.is_dir(), f"{name} needs its folder, got {path}")
        folder = self.state is not None and self.state.is_dir()
        require(not folder, f"state must be a file, got the folder {self.state}")
        require(self.file not in (self.out, self.report), f"{self.file} would be overwritten")


def forecast_defaults(selectors: DefaultSelectors) -> ForecastSettings:
    """Return the settings with the model of the state that is named."""
    # A file that cannot be read is no wrong usage: the stream refuses it when it begins.
    with suppress(ValueError, OSError, TypeError):
        saved = selectors.state and live.saved_settings(Path(selectors.state))
        return ForecastSettings.from_dict(saved or {})
    return ForecastSettings()
