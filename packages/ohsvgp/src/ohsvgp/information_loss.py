"""Warn where inducing variables cannot hold a stream."""

import warnings
from typing import NamedTuple

from torch import Tensor

from ohsvgp.state import UpdateInfo

# Nats lost per new observation above which an update warns: predictions with errors of more than
# four standard deviations occurred only above it.
_WARN_NATS_PER_POINT = 0.1
_WARN_MIN_NATS = 1.0
# Counts from here on know their rate to a hundredth.
_LARGE_COUNTS = 1e4
_LARGE_COUNTS_HINT = (
    ". Counts as large as these tell their rate so precisely that few variables hold it: take a "
    "Gaussian likelihood of their logarithms, whose noise is fitted"
)


class LostInformationWarning(UserWarning):
    """An update lost much of what the model knew: M inducing variables cannot hold the stream."""


class Losses(NamedTuple):
    """Count the information that the updates of a model have lost."""

    total: float = 0.0  # nats in all
    observed: int = 0  # observations in all
    since_move: int = 0  # observations since the inducing set last moved
    # Whether the latest update, counted against the observations since the last move, or all
    # together lost more than a nat, and more than a tenth of a nat per observation
    large: bool = False

    def after(self, info: UpdateInfo) -> "Losses":
        """Return the losses after one more update."""
        carried = float(info.lost_information.max())
        lost = carried + float(info.unexplained.max())
        total, observed = self.total + lost, self.observed + info.n_new
        # A window that grows in steps pays at a step for all observations since the last one.
        since = self.since_move + info.n_new
        large = any(
            nats > max(_WARN_MIN_NATS, _WARN_NATS_PER_POINT * n)
            for nats, n in ((lost, since), (total, observed))
        )
        return Losses(total, observed, 0 if carried > 0 else since, large)


def warn_of_loss(info: UpdateInfo, counts: Tensor | None) -> None:
    """Warn the caller of ``OnlineGP.update`` of what the update lost.

    Args:
        info: of the update.
        counts: its targets if they are counts: of many thousands they know f to a hundredth.

    Warns:
        LostInformationWarning: always.
    """
    old, new = float(info.lost_information.max()), float(info.unexplained.max())
    large = counts is not None and float(counts.mean()) > _LARGE_COUNTS
    hint = _LARGE_COUNTS_HINT if large else ""
    warnings.warn(
        f"{info.rank} inducing variables cannot hold the stream: this update lost {old:.3g} nats "
        f"of what was known and {new:.3g} of {info.n_new} new observations, and predictions may be "
        "surer than they are right. Take a larger num_inducing or another basis; UpdateInfo tells "
        f"lost_information and unexplained of every update{hint}",
        LostInformationWarning,
        stacklevel=3,
    )
