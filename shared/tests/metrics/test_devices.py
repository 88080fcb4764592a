"""The same numbers on a GPU, without a copy of the data to the host."""

import pytest
import torch

from probseq import metrics as m


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_gives_the_numbers_of_the_cpu(make_probs):
    probs, labels = make_probs(dtype=torch.float32)
    logits = probs.log()
    correct = probs.argmax(1) == labels
    confidence = probs.amax(1)
    samples, targets = logits.T.contiguous(), logits[:, 0].contiguous()
    calls = {
        "nll": (m.nll, probs, labels),
        "accuracy": (m.accuracy, probs, labels),
        "brier": (m.brier, probs, labels),
        "mcc": (m.matthews_correlation, probs, labels),
        "ece": (m.expected_calibration_error, probs, labels),
        "mce": (m.maximum_calibration_error, probs, labels),
        "aurc": (m.aurc, confidence, correct),
        "e_aurc": (m.e_aurc, confidence, correct),
        "auroc": (m.auroc, confidence, correct),
        "fpr": (m.fpr_at_tpr, confidence, correct),
        "aupr": (m.average_precision, confidence, correct),
        "ood": (lambda a, b: m.ood_metrics(a, b)["fpr95"], confidence, confidence - 0.1),
        "kl": (lambda p, y: m.KLMatching.fit(p, y).score(p).mean(), probs, labels),
        "energy": (lambda z, _: m.energy_score(z).mean(), logits, labels),
        "entropy": (lambda p, _: m.entropy_score(p).mean(), probs, labels),
        "rmse": (m.rmse, confidence, targets),
        "coverage": (m.coverage_calibration_error, samples, targets),
    }
    for name, (metric, first, second) in calls.items():
        on_gpu = metric(first.cuda(), second.cuda())
        assert on_gpu.is_cuda, name
        assert float(on_gpu) == pytest.approx(float(metric(first, second)), rel=1e-6), name
