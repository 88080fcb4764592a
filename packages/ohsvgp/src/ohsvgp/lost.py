"""Warn where inducing variables cannot hold a stream."""

import warnings
from typing import NamedTuple

from ohsvgp.state import UpdateInfo

__all__ = ["Losses", "LostInformationWarning", "warn_of_loss"]

# Nats lost per new observation from which on an update warns: errors of more than four predicted
# standard deviations were found above it only.
_MUCH = 0.1
_LEAST = 1.0
_LARGE = (
    ". Counts as large as these tell their rate so precisely that few variables hold it: take a "
    "Gaussian likelihood of their logarithms, whose noise is fitted"
)


class LostInformationWarning(UserWarning):
    """An update lost much of what the model knew: M inducing variables cannot hold the stream."""


class Losses(NamedTuple):
    """What the updates of a model have lost so far.

    Attributes:
        total: nats in all.
        seen: observations in all.
        since_move: observations since the inducing set last moved.
        warned: whether it was so much that a warning was due.
    """

    total: float = 0.0
    seen: int = 0
    since_move: int = 0
    warned: bool = False

    def after(self, info: UpdateInfo) -> "Losses":
        """Add an update; ``warned`` if more than a nat, and a tenth per observation, was lost.

        By the update, counted against the observations since the last move, or in all.
        """
        carried = float(info.lost_information.max())
        lost = carried + float(info.unexplained.max())
        total, seen = self.total + lost, self.seen + info.n_new
        # A window that grows in steps pays at a step for all observations since the last one.
        since = self.since_move + info.n_new
        much = any(
            nats > max(_LEAST, _MUCH * count) for nats, count in ((lost, since), (total, seen))
        )
        return Losses(total, seen, 0 if carried > 0 else since, self.warned or much)


def warn_of_loss(info: UpdateInfo, *, large_counts: bool = False) -> None:
    """Tell the caller of ``OnlineGP.update`` what the update lost.

    Args:
        info: of the update.
        large_counts: whether targets are counts of many thousands, which know f to a hundredth.

    Warns:
        LostInformationWarning: always.
    """
    old, new = float(info.lost_information.max()), float(info.unexplained.max())
    warnings.warn(
        f"{info.rank} inducing variables cannot hold the stream: this update lost {old:.3g} nats "
        f"of what was known and {new:.3g} of {info.n_new} new observations, and predictions may be "
        "surer than they are right. Take a larger num_inducing or another basis; UpdateInfo tells "
        f"lost_information and unexplained of every update{_LARGE if large_counts else ''}",
        LostInformationWarning,
        stacklevel=3,
    )
