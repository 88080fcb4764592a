"""K-means on raw patches: as good as scikit-learn's, and what it can have exactly it has."""

from pathlib import Path

import pytest
import torch
from sklearn.cluster import KMeans
from torch import Tensor

from pseudovideo.tokenizers import PatchKMeans, TokenizerConfig, build_tokenizer, patch_kmeans
from pseudovideo.tokenizers.patches import patchify, unpatchify

SMALL = {"dim": 16, "num_heads": 2, "spatial_depth": 1}


def images(codebook_size: int, size: int = 16) -> TokenizerConfig:
    return TokenizerConfig(
        num_frames=1,
        temporal_patch=1,
        temporal_depth=0,
        image_size=size,
        channels=1,
        codebook_size=codebook_size,
        **SMALL,
    )


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_it_reaches_the_inertia_of_scikit_learn_on_digits(digits: Tensor) -> None:
    videos = digits[:600, None]
    points = patchify(videos, 1, 4).flatten(0, 3).numpy()
    reference = KMeans(32, n_init=1, max_iter=40, random_state=0).fit(points)
    model = PatchKMeans(images(32))
    history = model.fit(videos, iterations=40, generator=seeded())
    error = (model.reconstruct(videos) - videos).square().mean().item()
    assert error < 1.03 * float(reference.inertia_) / points.size
    # Started where scikit-learn ends, Lloyd's algorithm stays there: both have the same fixpoints.
    ours = patch_kmeans._assign(
        torch.as_tensor(points), torch.as_tensor(reference.cluster_centers_)
    )
    assert ours.errors.sum().item() == pytest.approx(float(reference.inertia_), rel=1e-4)
    assert (history.diff() <= 1e-7).all()
    assert error <= history[-1] + 1e-7


def test_tokens_are_those_of_the_nearest_patches(digits: Tensor) -> None:
    model = PatchKMeans(images(8))
    model.fit(digits[:50, None], iterations=3, generator=seeded())
    tokens = model.encode(digits[50:53, None])
    assert tokens.shape == (3, *model.grid.shape)
    codes = model.codebook.double()
    for b in range(3):
        for h in range(4):
            for w in range(4):
                patch = digits[50 + b, 0, 4 * h : 4 * h + 4, 4 * w : 4 * w + 4].double()
                distances = (codes - patch.flatten()).square().sum(-1)
                assert distances[tokens[b, 0, h, w]] <= distances.min() + 1e-5


def test_as_many_patches_as_codes_are_met_exactly_however_rare() -> None:
    """One patch in a thousand is not forgotten: empty codes move to what is badly served."""
    g = seeded()
    patches = torch.rand(6, 16, generator=g) * 2 - 1
    choice = torch.zeros(1000, 1, 2, 2, dtype=torch.int64)
    choice[:5, 0, 0, 0] = torch.arange(1, 6)
    videos = unpatchify(patches[choice], 1, 4)
    for seed in range(5):
        model = PatchKMeans(images(6, size=8))
        history = model.fit(videos, generator=seeded(seed))
        torch.testing.assert_close(model.reconstruct(videos), videos, rtol=0, atol=1e-5)
        assert len(history) < 25, "it stops where nothing changes"


def test_an_empty_code_moves_to_a_badly_served_patch_and_the_others_to_their_means() -> None:
    points = torch.tensor([[0.0], [0.2], [0.9], [1.1], [5.0]])
    codebook = torch.tensor([[0.0], [1.0], [-9.0]])
    found = patch_kmeans._assign(points, codebook)
    assert found.indices.tolist() == [0, 0, 1, 1, 1]
    torch.testing.assert_close(found.errors, torch.tensor([0, 0.04, 0.01, 0.01, 16.0]))
    moved = torch.cat([patch_kmeans._update(points, found, codebook, seeded(s)) for s in range(99)])
    torch.testing.assert_close(moved.view(99, 3)[:, :2].mean(0), torch.tensor([0.1, 7 / 3]))
    # 5 has 16/16.06 of the squared distance; 0 is met exactly and is never drawn.
    assert (moved.view(99, 3)[:, 2] == 5).float().mean() > 0.9
    served = torch.tensor([[0.0], [1.0], [5.0], [7.0]])
    exact = patch_kmeans._assign(served[:3].repeat(2, 1), served)
    assert torch.equal(
        patch_kmeans._update(served[:3].repeat(2, 1), exact, served, seeded()), served
    )


def test_the_start_is_spread_over_patches_far_from_each_other() -> None:
    crowd = 0.001 * torch.randn(1000, 4, generator=seeded())
    far = 5 * torch.eye(4)
    for seed in range(5):
        start = patch_kmeans._seed(torch.cat((crowd, far)), 5, seeded(seed))
        assert all((start == patch).all(dim=1).any() for patch in far)


def test_the_history_is_the_error_per_pixel_value(digits: Tensor) -> None:
    videos, model = digits[:20, None], PatchKMeans(images(8))
    history = model.fit(videos, iterations=100, generator=seeded())
    assert len(history) < 100
    # It stopped where nothing changes: the last error is that of the codes that are kept.
    error = (model.reconstruct(videos) - videos).double().square().mean()
    assert history[-1].item() == pytest.approx(error.item(), rel=1e-5)


def test_frames_are_clamped_to_the_range_of_images() -> None:
    """Codes of noisy frames may lie outside."""
    model = PatchKMeans(images(2, size=8))
    model.codebook.copy_(torch.tensor([[-1.5], [0.5]]).expand(2, 16))
    model.fitted.fill_(True)
    frames = model.decode(torch.tensor([[[[0, 1], [1, 0]]]]))
    assert frames.unique().tolist() == [-1.0, 0.5]


def test_fewer_kinds_of_patches_than_codes_do_no_harm() -> None:
    videos = torch.ones(8, 1, 1, 8, 8)
    videos[4:] = -1
    model = PatchKMeans(images(16, size=8))
    model.fit(videos, generator=seeded())
    assert torch.equal(model.reconstruct(videos), videos)


def test_videos_share_one_codebook_and_cost_the_bits_of_a_tokenizer(digits: Tensor) -> None:
    config = TokenizerConfig(
        num_frames=4, image_size=16, channels=1, codebook_size=16, temporal_depth=1, **SMALL
    )
    videos = torch.stack([digits[:100] * s for s in (0.25, 0.5, 0.75, 1.0)], dim=1)
    model = PatchKMeans(config)
    model.fit(videos, generator=seeded())
    assert model.grid == build_tokenizer(config).grid
    assert model.codebook.shape == (16, 2 * 16)
    tokens = model.encode(videos)
    assert tokens.shape == (100, 2, 4, 4)
    assert (model.reconstruct(videos) - videos).square().mean() < 0.2 * videos.var()
    torch.testing.assert_close(model.decode(tokens[3:5]), model.reconstruct(videos[3:5]))


def test_the_generator_decides_and_pieces_do_not(
    digits: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    videos = digits[:60, None]

    def codebook(seed: int) -> Tensor:
        model = PatchKMeans(images(8))
        model.fit(videos, iterations=5, generator=seeded(seed))
        return model.codebook

    whole = codebook(0)
    assert torch.equal(whole, codebook(0))
    assert not torch.equal(whole, codebook(1))
    monkeypatch.setattr(patch_kmeans, "_DISTANCES_AT_ONCE", 8 * 37)
    torch.testing.assert_close(codebook(0), whole, rtol=0, atol=1e-5)


def test_more_codes_serve_better(digits: Tensor) -> None:
    errors = [
        PatchKMeans(images(size)).fit(digits[:200, None], generator=seeded())[-1]
        for size in (2, 8, 32, 128)
    ]
    assert torch.stack(errors).diff().max() < 0


def test_a_draw_takes_each_row_in_proportion_to_its_weight_and_none_twice() -> None:
    weights = torch.tensor([1.0, 2.0, 0.0, 5.0])
    g = seeded()
    draws = torch.stack([patch_kmeans._draw(weights, 2, g) for _ in range(4000)])
    first = torch.bincount(draws[:, 0], minlength=4) / 4000
    # Four standard deviations of a share of 4,000 draws.
    torch.testing.assert_close(first, weights / 8, rtol=0, atol=4 * 0.5 / 4000**0.5)
    assert (draws[:, 0] != draws[:, 1]).all()
    second = torch.bincount(draws[draws[:, 0] == 3, 1], minlength=4)
    torch.testing.assert_close(
        second / second.sum(), torch.tensor([1 / 3, 2 / 3, 0, 0]), rtol=0, atol=0.04
    )


def test_it_is_stored_and_comes_back_bit_for_bit(digits: Tensor, tmp_path: Path) -> None:
    model = PatchKMeans(images(8))
    model.fit(digits[:50, None], iterations=2, generator=seeded())
    model.save_pretrained(tmp_path)
    back = PatchKMeans.from_pretrained(tmp_path)
    assert torch.equal(back.reconstruct(digits[:9, None]), model.reconstruct(digits[:9, None]))


def test_what_makes_no_codebook_is_refused(digits: Tensor) -> None:
    model = PatchKMeans(images(64))
    with pytest.raises(ValueError, match=r"must be fitted before it is used: call fit\(videos\)"):
        model.encode(digits[:1, None])
    with pytest.raises(ValueError, match="at least codebook_size=64 patches, got 48"):
        model.fit(digits[:3, None])
    with pytest.raises(ValueError, match="iterations must be a whole number of at least 1, got 0"):
        model.fit(digits[:10, None], iterations=0)


def test_nothing_is_decoded_before_there_are_codes() -> None:
    with pytest.raises(ValueError, match="must be fitted before it is used"):
        PatchKMeans(images(4, size=8)).decode(torch.zeros(1, 1, 2, 2, dtype=torch.int64))
