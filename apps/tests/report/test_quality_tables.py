"""Tables of what is measured of samples, against the same by hand."""

import pytest
import torch

from probseq.metrics.image import ImageFeatures
from probseq_apps.report.quality_tables import frame_table, quality_table
from pseudovideo.beyond.sample_evaluator import SampleEvaluator
from pseudovideo.corruptions import PseudoVideoConfig


def pictures(n=30, seed=0, channels=1):
    generator = torch.Generator().manual_seed(seed)
    bright = torch.randint(0, 256, (n, 1, 1, 1), generator=generator)
    grain = torch.randint(-20, 20, (n, channels, 8, 8), generator=generator)
    return (bright + grain).clamp(0, 255).to(torch.uint8)


class Classes:
    """Two pixels are features, three more the weights of classes."""

    name, dimension = "classes", 2

    def __call__(self, images):
        weights = images.flatten(1)[:, :3].add(1.01).float()
        shares = weights / weights.sum(dim=1, keepdim=True)
        return ImageFeatures(images.flatten(1)[:, :2], shares)


def test_tables_have_means_over_seeds():
    reference = SampleEvaluator(Classes(), pictures(60), pictures(30, seed=1))
    runs = [reference.measure(pictures(40, seed=seed)) for seed in (2, 3)]
    heads, rows = quality_table(
        {"model": runs, "real images": [reference.real(len(reference.test))]}
    )
    assert heads == ["quality of samples", "n", "KID ↓"]
    assert [row[:2] for row in rows] == [["model", "2"], ["real images", "1"]]
    mean = sum(run["kid"] for run in runs) / 2
    assert float(rows[0][2]) == pytest.approx(mean, rel=1e-2)
    assert quality_table({"few": [runs[0] | {"kid": None}, runs[0]]})[1][0][2] == "—"

    corruption = PseudoVideoConfig(num_frames=2, kind="blur")
    frames = reference.measure_videos(pictures(20).unflatten(0, (10, 2)), corruption)
    heads, rows = frame_table({"2-frame": [frames]})
    assert [row[0] for row in rows] == [
        f"2-frame, {x}" for x in ("frame 1", "image", "whole video")
    ]
    largest = max(one["fd"] for one in frames.values())
    digits = 4 - sum(largest >= bound for bound in (1, 10, 100, 1000))
    assert rows[0][2] == f"{frames['1']['fd']:.{digits}f}"
    assert len(heads) == len(rows[0])
