import math

import numpy as np
import pytest
import torch

from probseq.metrics.image import inception_score


def probabilities(n, k, seed=0, sharpness=2.0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, k, generator=generator, dtype=torch.float64)
    return (sharpness * logits).softmax(dim=1)


def by_loops(p, splits):
    """Exponential of the mean KL(p(y|x) ‖ p(y)) in each part, written out."""
    scores = []
    for part in range(splits):
        rows = p[part * len(p) // splits : (part + 1) * len(p) // splits].tolist()
        marginal = [sum(row[k] for row in rows) / len(rows) for k in range(len(rows[0]))]
        total = 0.0
        for row in rows:
            total += sum(
                a * (math.log(a) - math.log(b)) for a, b in zip(row, marginal, strict=True)
            )
        scores.append(math.exp(total / len(rows)))
    return np.mean(scores), np.std(scores)


@pytest.mark.parametrize(("n", "splits"), [(40, 1), (41, 4), (103, 10)])
def test_it_is_the_slow_loops_and_torch_fidelitys_score(n, splits):
    metric = pytest.importorskip("torch_fidelity.metric_isc")
    p = probabilities(n, 7, seed=n)
    found = inception_score(p, splits=splits)
    assert (found.splits, found.num_samples) == (splits, n)
    mean, std = by_loops(p, splits)
    assert (found.mean, found.std) == pytest.approx((mean, std), rel=1e-10, abs=1e-12)
    theirs = metric.isc_features_to_metric(p.log(), splits, shuffle=False)
    assert (found.mean, found.std) == pytest.approx(
        (theirs[metric.KEY_METRIC_ISC_MEAN], theirs[metric.KEY_METRIC_ISC_STD]),
        rel=1e-10,
        abs=1e-12,
    )


def test_certain_zeros_count_as_zero():
    p = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])
    kl = [math.log(1 / 0.75), 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)]
    assert inception_score(p, splits=1).mean == pytest.approx(math.exp(sum(kl) / 2), rel=1e-9)


def test_bad_probabilities_are_refused(plain_calls):
    p = probabilities(20, 4)
    with pytest.raises(ValueError, match=r"splits must be 1\.\.20.*got 21"):
        inception_score(p, splits=21)
    with pytest.raises(ValueError, match=r"splits must be 1\.\.20.*got 0"):
        inception_score(p, splits=0)
    with pytest.raises(ValueError, match="probabilities must be rows of probabilities"):
        inception_score(2 * p)
    with pytest.raises(ValueError, match=r"probabilities must have shape \(N, C\)"):
        inception_score(p[0])
