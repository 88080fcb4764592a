"""Metrics of probabilistic predictions: pure functions on whole evaluation sets.

Plots live in :mod:`probseq.metrics.plots`, which needs matplotlib (extra ``plots``).
"""

from probseq.metrics.calibration import (
    CalibrationBins,
    calibration_bins,
    expected_calibration_error,
    maximum_calibration_error,
)
from probseq.metrics.classification import accuracy, brier, matthews_correlation, nll
from probseq.metrics.continual import forgetting
from probseq.metrics.evaluation import evaluate, evaluate_ood
from probseq.metrics.ood import (
    KLMatching,
    energy_score,
    entropy_score,
    feature_scores,
    max_softmax_score,
    ood_metrics,
    sample_scores,
)
from probseq.metrics.post_hoc import mean_log_probs, scale_log_probs, search_temperature
from probseq.metrics.ranking import RocCurve, auroc, average_precision, fpr_at_tpr, roc_curve
from probseq.metrics.regression import (
    COVERAGE_LEVELS,
    LaplaceMixture,
    coverage_calibration_error,
    is_constant,
    mae,
    rmse,
)
from probseq.metrics.selective import (
    Selection,
    aurc,
    e_aurc,
    risk_coverage_curve,
    select_with_error,
    selective_error,
)
from probseq.metrics.sets import (
    SCORES,
    SHIFTED,
    Predictions,
    class_predictions,
    ensemble,
    evaluate_numbers,
    evaluate_sets,
    severities_of,
)

__all__ = [
    "COVERAGE_LEVELS",
    "SCORES",
    "SHIFTED",
    "CalibrationBins",
    "KLMatching",
    "LaplaceMixture",
    "Predictions",
    "RocCurve",
    "Selection",
    "accuracy",
    "aurc",
    "auroc",
    "average_precision",
    "brier",
    "calibration_bins",
    "class_predictions",
    "coverage_calibration_error",
    "e_aurc",
    "energy_score",
    "ensemble",
    "entropy_score",
    "evaluate",
    "evaluate_numbers",
    "evaluate_ood",
    "evaluate_sets",
    "expected_calibration_error",
    "feature_scores",
    "forgetting",
    "fpr_at_tpr",
    "is_constant",
    "mae",
    "matthews_correlation",
    "max_softmax_score",
    "maximum_calibration_error",
    "mean_log_probs",
    "nll",
    "ood_metrics",
    "risk_coverage_curve",
    "rmse",
    "roc_curve",
    "sample_scores",
    "scale_log_probs",
    "search_temperature",
    "select_with_error",
    "selective_error",
    "severities_of",
]
