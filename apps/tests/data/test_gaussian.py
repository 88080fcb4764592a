"""Gaussian images with the digits' covariance: their moments, and that few are cut."""

import torch

from probseq_apps.data.images import load_generation_data


def test_gaussian_digits_have_the_covariance_they_come_with():
    data = load_generation_data("gaussian-digits")
    assert data.train.shape == (50_000, 1, 8, 8)
    rows = torch.cat([data.train, data.test]).flatten(1).double() / 127.5 - 1
    n, covariance = len(rows), data.covariance
    variance = covariance.diagonal()
    # Standard errors of means and of covariances of n Gaussian rows.
    assert ((rows.mean(0) / (variance / n).sqrt()).abs() < 5).all()
    spread = ((variance[:, None] * variance + covariance.square()) / n).sqrt()
    assert (((rows.T.cov() - covariance) / spread).abs() < 5).all()
    # Gaussian: fourth moments are three times the squared variances.
    fourth = rows.pow(4).mean(0) / variance.square()
    assert ((fourth - 3).abs() < 5 * (96 / n) ** 0.5).all()
    assert ((data.train == 0) | (data.train == 255)).double().mean() < 1e-4
