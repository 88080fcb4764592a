"""Tables of what is measured of samples, against the same by hand."""

import torch

from probseq.metrics.image import Features
from probseq_apps.report.quality_tables import frame_table, quality_table
from pseudovideo.beyond.reference import Reference
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
        return Features(images.flatten(1)[:, :2], shares)


def test_tables_have_means_over_seeds_with_their_intervals():
    reference = Reference(Classes(), pictures(60), pictures(30, seed=1))
    runs = [reference.measure(pictures(40, seed=seed)) for seed in (2, 3)]
    heads, rows = quality_table(
        {"model": runs, "real images": [reference.real(len(reference.test))]}
    )
    assert heads[:5] == [
        "quality of samples",
        "n",
        "FD(classes), unbiased ↓",
        "IS, unbiased ↑",
        "KID ↓",
    ]
    assert "LPIPS diversity" not in heads
    assert [row[:2] for row in rows] == [["model", "2"], ["real images", "1"]]
    low, high = (sum(run["intervals"]["recall"][end] for run in runs) / 2 for end in (0, 1))
    mean = sum(run["recall"] for run in runs) / 2
    assert rows[0][heads.index("recall ↑")] == f"{mean:.2f} [{low:.2f}, {high:.2f}]"
    few = reference.measure(pictures(3, seed=4))
    assert quality_table({"few": [few]})[0].count("recall ↑") == 0
    assert quality_table({"few": [few, runs[0]]})[1][0][heads.index("recall ↑")] == "—"

    corruption = PseudoVideoConfig(num_frames=2, kind="blur")
    frames = reference.measure_videos(pictures(20).unflatten(0, (10, 2)), corruption)
    heads, rows = frame_table({"2-frame": [frames]})
    assert [row[0] for row in rows] == [
        f"2-frame, {x}" for x in ("frame 1", "image", "whole video")
    ]
    largest = max(one["fd"] for one in frames.values())
    digits = 4 - sum(largest >= bound for bound in (1, 10, 100, 1000))
    assert rows[0][2] == f"{frames['1']['fd']:.{digits}f}"


def test_whole_videos_have_a_distance_of_their_own_where_it_is_known():
    frame = dict.fromkeys(("kid", "precision", "recall", "density", "coverage"), 0.5)
    frame |= {"fd": 1.0, "real_fd": 0.5, "num_videos": 40, "intervals": {"kid": (-1e-6, 0.6)}}
    measured = {"1": frame, "image": frame, "video": frame}
    assert frame_table({"blur": [measured]})[1][0][4] == "0.5000 [0.0000, 0.6000]"
    assert frame_table({"blur": [measured]})[0][-2:] == ["coverage ↑", "videos"]
    measured["video"] = frame | {"fvd": 2.345, "real_fvd": 1.2, "fvd_name": "FVD(motion)"}
    heads, rows = frame_table({"blur": [measured]})
    assert heads[-3:] == ["FVD(motion) ↓", "FVD(motion), real test videos", "videos"]
    assert rows[-1][-3:] == ["2.345", "1.200", "40"]
    assert [row[-3] for row in rows[:-1]] == ["—"] * 2
