"""Warn where inducing variables cannot hold a stream."""

import warnings
from typing import NamedTuple

from ohsvgp.state import UpdateInfo

# Nats lost per new observation above which an update warns: predictions with errors of more than
# four standard deviations occurred only above it.
_WARN_NATS_PER_POINT, _WARN_MIN_NATS = 0.1, 1.0


class LostInformationWarning(UserWarning):
    """An update lost much of what the model knew: M inducing variables cannot hold the stream."""


class InformationLoss(NamedTuple):
    """Count the information that the updates of a model have lost."""

    total: float = 0.0  # nats in all
    observed: int = 0  # observations in all
    since_move: int = 0  # observations since the inducing set last moved
    # Whether the latest update, counted against the observations since the last move, or all
    # together lost more than a nat, and more than a tenth of a nat per observation
    large: bool = False

    def after(self, info: UpdateInfo) -> "InformationLoss":
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
        return InformationLoss(total, observed, 0 if carried > 0 else since, large)


def warn_of_loss(info: UpdateInfo, num_inducing: int) -> None:
    """Warn the caller of ``OnlineGP.update`` of what the update lost."""
    old, new = float(info.lost_information.max()), float(info.unexplained.max())
    warnings.warn(
        f"{num_inducing} inducing variables cannot hold the stream: this update lost {old:.3g} "
        f"nats of what was known and {new:.3g} of {info.n_new} new observations, and predictions "
        "may be surer than they are right. Take a larger num_inducing or another basis (of counts "
        "in thousands, a Gaussian of their logarithms); UpdateInfo tells lost_information and "
        "unexplained of every update",
        LostInformationWarning,
        stacklevel=3,
    )
