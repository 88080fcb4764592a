"""Distances and scores of images against torchmetrics."""

import pytest
import torch
from torch import nn

from probseq.metrics.image import frechet_distance, inception_score, kernel_distance


class _Rows(nn.Module):
    """What torchmetrics takes for a network: images that are features already."""

    num_features = 5

    def forward(self, rows):
        return rows.flatten(1)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_distances_and_scores_are_torchmetrics_own():
    library = pytest.importorskip("torchmetrics.image")
    generator = torch.Generator().manual_seed(0)
    real, fake = (
        scale * torch.randn(80, 5, generator=generator, dtype=torch.float64) + 0.2
        for scale in (1.0, 1.4)
    )
    fid = library.fid.FrechetInceptionDistance(
        feature=_Rows(), normalize=True, input_img_size=(1, 1, 5)
    ).set_dtype(torch.float64)
    kid = library.kid.KernelInceptionDistance(feature=_Rows(), subsets=2, subset_size=80)
    for side, is_real in ((real, True), (fake, False)):
        fid.update(side[:, None, None], real=is_real)
        kid.update(side[:, None, None], real=is_real)
    assert float(fid.compute()) == pytest.approx(float(frechet_distance(real, fake)), rel=1e-6)
    ours = float(kernel_distance(real, fake))
    assert float(kid.compute()[0]) == pytest.approx(ours, rel=1e-6)
    score = library.inception.InceptionScore(feature=_Rows(), splits=1)
    score.update(fake[:, None, None])
    expected = inception_score(fake.softmax(dim=1), splits=1).mean
    assert float(score.compute()[0]) == pytest.approx(expected, rel=1e-6)
