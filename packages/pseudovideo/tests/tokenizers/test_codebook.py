import itertools

import numpy as np
import torch

from pseudovideo.tokenizers import codebook as codebook_module
from pseudovideo.tokenizers.codebook import cluster_sums, k_means, nearest_codes, random_points


def _points(n, d, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, dtype=torch.float64, generator=generator)


def test_the_nearest_code_is_that_of_a_loop():
    points, codebook = _points(50, 3), _points(9, 3, seed=1)
    expected = [np.argmin([float((x - e).norm()) for e in codebook]) for x in points]
    assert nearest_codes(points, codebook).tolist() == expected


def test_the_nearest_code_is_found_far_from_zero():
    """Inputs 100 of their spreads off zero, in float32."""
    points, codebook = _points(500, 8), _points(64, 8, seed=1)
    expected = torch.cdist(points, codebook).argmin(dim=1)
    found = nearest_codes((points + 100).float(), (codebook + 100).float())
    # Rounding of the inputs themselves is 4e-6.
    assert (found == expected).double().mean() > 0.99


def test_clusters_are_summed_as_in_a_loop_without_points_that_are_not_finite():
    points = _points(6, 2)
    points[4, 1] = torch.nan
    indices = torch.tensor([2, 0, 2, 2, 0, 0])
    counts, sums = cluster_sums(points, indices, 4)
    assert counts.tolist() == [2, 0, 3, 0]
    expected = [points[1] + points[5], 0 * points[0], points[[0, 2, 3]].sum(0), 0 * points[0]]
    torch.testing.assert_close(sums, torch.stack(expected))


def test_rows_are_drawn_without_repetition_while_there_are_enough():
    torch.manual_seed(0)
    points = torch.arange(10.0)[:, None]
    assert len(set(random_points(points, 10).flatten().tolist())) == 10
    counts = torch.bincount(random_points(points, 25).flatten().long(), minlength=10)
    assert sorted(counts.tolist()) == 5 * [2] + 5 * [3]


def test_k_means_never_raises_the_error_and_ends_at_its_fixed_point():
    points, start = _points(200, 2), _points(12, 2, seed=1)
    start[0] = 100.0  # no point chooses this code, and a single one the next
    points[0], start[1] = -60.0, -50.0
    errors = []
    for steps in range(6):
        codebook, counts = k_means(points, start, steps)
        errors.append(torch.cdist(points, codebook).amin(dim=1).square().sum().item())
        nearest = nearest_codes(points, codebook)
        assert torch.equal(counts, torch.bincount(nearest, minlength=12).double())
    assert all(after < before for before, after in itertools.pairwise(errors))
    codebook, _ = k_means(points, start, 100)
    assert (codebook[0] == 100).all()
    nearest = nearest_codes(points, codebook)
    for k in range(1, 12):
        torch.testing.assert_close(codebook[k], points[nearest == k].mean(dim=0))


def test_pieces_change_neither_the_nearest_codes_nor_the_sums(monkeypatch):
    points, codebook = torch.randn(50, 3, dtype=torch.float64), torch.randn(7, 3).double()
    whole = nearest_codes(points, codebook)
    counts, sums = cluster_sums(points, whole, 7)
    monkeypatch.setattr(codebook_module, "_PIECE", 16)
    assert torch.equal(nearest_codes(points, codebook), whole)
    pieces = cluster_sums(points, whole, 7)
    assert torch.equal(pieces[0], counts)
    torch.testing.assert_close(pieces[1], sums, rtol=1e-14, atol=1e-14)
