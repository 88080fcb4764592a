"""What the default ``alpha`` does to predictions of a real series."""

import numpy as np
import torch

from ohsvgp import Gaussian, OnlineGP, UniformGrid
from ohsvgp.bases import Basis
from probseq.kernels import RBF


def held_out_nlpd(
    basis: Basis, solar: tuple[np.ndarray, np.ndarray], **options: float
) -> tuple[float, float]:
    """Mean NLPD of held-out points after ten tasks, and coverage of 95 % intervals; three splits.

    Hyperparameters are those of greatest evidence on the whole series.
    """
    t, y = solar
    scores, inside = [], []
    for seed in range(3):
        test = np.zeros(len(t), dtype=bool)
        test[np.random.default_rng(seed).choice(len(t), 78, replace=False)] = True
        gp = OnlineGP(
            RBF(1, lengthscale=0.40, outputscale=0.77), Gaussian(0.0075), basis, t0=t[0], **options
        )
        for part in np.array_split(np.flatnonzero(~test), 10):
            gp.update(t[part], y[part])
        scores.append(-gp.log_prob(t[test], y[test]))
        law = gp.predict(t[test], include_noise=True)
        inside.append((law.mean - torch.from_numpy(y[test])).abs() < 1.96 * law.variance.sqrt())
    return float(torch.cat(scores).mean()), float(torch.cat(inside).double().mean())


def test_the_default_alpha_is_less_overconfident_where_much_is_lost(
    solar: tuple[np.ndarray, np.ndarray],
) -> None:
    default, covered = held_out_nlpd(UniformGrid(50), solar)
    variational, too_few = held_out_nlpd(UniformGrid(50), solar, alpha=0.0)
    assert default < variational - 0.1
    assert too_few < covered < 0.99
