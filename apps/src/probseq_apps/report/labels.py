"""What metrics are called in tables, and which end of them is good; importable without torch."""

from typing import Literal

Direction = Literal["higher", "lower"]

LABELS: dict[str, tuple[str, Direction]] = {
    "accuracy": ("accuracy", "higher"),
    "mcc": ("MCC", "higher"),
    "nll": ("NLL", "lower"),
    "ece": ("ECE", "lower"),
    "classwise-ece": ("ECE, classwise", "lower"),
    "mce": ("MCE", "lower"),
    "brier": ("Brier", "lower"),
    "aurc": ("AURC", "lower"),
    "e-aurc": ("E-AURC", "lower"),
    "failure-auroc": ("failure AUROC", "higher"),
    "failure-fpr95": ("failure FPR95", "lower"),
    "mae": ("MAE", "lower"),
    "rmse": ("RMSE", "lower"),
    "coverage-ece": ("coverage error", "lower"),
    "auroc": ("AUROC", "higher"),
    "aupr-out": ("AUPR-out", "higher"),
    "aupr-in": ("AUPR-in", "higher"),
    "fpr95": ("FPR95", "lower"),
    "fid": ("FID", "lower"),
    "is": ("IS", "higher"),
    "psnr": ("PSNR (dB)", "higher"),
}

ARROWS: dict[Direction, str] = {"higher": "↑", "lower": "↓"}


def direction_of(metric: str) -> Direction | None:
    """Which end of a metric is good.

    Args:
        metric: full name, as in `report.json`.

    Returns:
        None for one that is not in the list.
    """
    found = LABELS.get(metric.rpartition("/")[2])
    return None if found is None else found[1]
