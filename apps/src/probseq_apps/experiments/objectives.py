"""How much each method's penalty weighs beside the negative log likelihood."""

from typing import Protocol, runtime_checkable

from cgpt import alpha_schedule
from probseq_apps.experiments.method_settings import CgptSettings, SgpaSettings
from probseq_apps.experiments.methods import MethodSpec
from sgpa import kl_annealing


@runtime_checkable
class PenaltySettings(Protocol):
    """The settings on which the weight depends."""

    @property
    def sgpa(self) -> SgpaSettings:
        """Of SGPA."""
        ...

    @property
    def cgpt(self) -> CgptSettings:
        """Of CGPT and SCGPT."""
        ...


def penalty_weight(method: MethodSpec, settings: PenaltySettings, progress: float) -> float:
    """Weight of the penalty in a method's loss, `nll + weight * penalty`.

    SGPA's KL divergence is annealed (thesis Eq. 3.18), CGPT's regulariser has its α (CGPT Eq. 28);
    the penalties of the others, KEP-SVGP's with its η inside, count in full. Methods without a
    penalty have one of zero.

    Args:
        method: the method.
        settings: weights at the start and at the end.
        progress: share of the training that is done.
    """
    if method.attention == "sgpa":
        return settings.sgpa.kl_scale * kl_annealing(progress, settings.sgpa.kl_anneal)
    if method.attention in ("cgpt", "scgpt"):
        own = settings.cgpt
        return alpha_schedule(progress, start=own.alpha_start, end=own.alpha)
    return 1.0
