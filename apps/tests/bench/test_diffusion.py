"""The UNets of `probseq bench generate`: that what is timed is what the rows say."""

import math

import pytest
import torch

from probseq_apps.bench import diffusion
from probseq_apps.bench.diffusion import (
    WINDOWS,
    UNetSizes,
    build_model,
    diffusion_rows,
    drawing,
    drawing_rows,
    forward,
    network_rows,
    step,
    video_model,
)
from pseudovideo.diffusion.image import ImageDiffusion
from pseudovideo.diffusion.video import VideoDiffusion

TINY = UNetSizes(image_size=16, base_channels=32, batch=2, drawn=3, steps=2)
CPU = torch.device("cpu")


@pytest.fixture
def seen(monkeypatch):
    """What the first convolution of any UNet is given: frames, and its weight's layout."""
    calls = []
    original = torch.nn.Conv2d.forward

    def look(self, x):
        if x.shape[1] in (3, 4) and x.shape[-1] == 16:
            last = self.weight.is_contiguous(memory_format=torch.channels_last)
            calls.append((len(x), x.shape[1], last, torch.is_inference_mode_enabled()))
        output = original(self, x)
        if x.shape[1] in (3, 4) and x.shape[-1] == 16:
            calls[-1] += (output.dtype,)
        return output

    monkeypatch.setattr(torch.nn.Conv2d, "forward", look)
    return calls


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("frames", WINDOWS)
def test_a_unet_is_given_so_many_frames_in_the_precision_that_the_row_says(frames, lean, seen):
    model = build_model(frames, TINY)
    assert isinstance(model, ImageDiffusion if frames == 1 else VideoDiffusion)
    layout = torch.channels_last if lean else torch.contiguous_format
    model = model.to(memory_format=layout)
    before = [parameter.clone() for parameter in model.parameters()]
    assert forward(model, TINY, CPU, lean=lean)() > 0
    assert step(model, TINY, CPU, lean=lean)() > 0
    # Videos have a channel that tells given frames.
    dtype = torch.bfloat16 if lean else torch.float32
    expected = (2 * frames, 3 if frames == 1 else 4, lean)
    assert seen == [(*expected, True, dtype), (*expected, False, dtype)]
    # The first step reaches what ends the network; all before is multiplied by zero.
    after = list(model.parameters())
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(parameter.dtype == torch.float32 for parameter in after)


@pytest.mark.parametrize("one_way", [False, True])
def test_videos_are_drawn_by_as_many_frames_as_the_model_tells(one_way, seen):
    model = video_model(5, TINY, one_way=one_way)
    drawing(model, TINY, CPU)()
    count = sum(call[0] for call in seen)
    assert count == TINY.drawn * model.evaluations_per_sample(TINY.steps)


def test_rows_are_made_of_the_seconds_that_were_found():
    found = {f"{part}-1-{kind}": 1.0 for part in ("forward", "step") for kind in ("exact", "lean")}
    found |= {"forward-3-exact": 6.0, "forward-3-lean": 2.0}
    found |= {"step-3-exact": 9.0, "step-3-lean": 18.0}
    rows = network_rows(3, TINY, found, CPU)
    assert [row.value for row in rows] == [6000, 2000, 3, 2, 9000, 18000, 0.5, 3]
    assert "2x3 frames of 3x16x16: forward pass" in rows[0].label
    assert [row.met for row in rows] == [None] * 8
    on_gpu = network_rows(3, TINY, found, torch.device("cuda"))
    assert [row.met for row in on_gpu if row.label == "  against float32"] == [True, False]
    assert len(network_rows(1, TINY, found, CPU)) == 6

    drawn = drawing_rows(TINY, {"both": 6.0, "one": 3.0}, {"both": 24000, "one": 8000})
    assert [row.value for row in drawn] == [2000, 1000, 2, 24000, 8000, 3]
    assert drawn[-1].met


def test_everything_is_measured(monkeypatch):
    monkeypatch.setattr(diffusion, "interleaved", _first_runs)
    rows = diffusion_rows(TINY._replace(batch=1, drawn=1), 1, CPU)
    assert all(math.isfinite(row.value) and row.value > 0 for row in rows)
    assert len(rows) == 6 + 8 + 8 + 6
    both, one = (row.value for row in rows if row.unit == "frames")
    # Stages of 4 and four times 5 frames; or of the latent ones, and each context once.
    assert (both, one) == (24 * 1000, 8 * 1000 + 16)


def _first_runs(cases, repeats):
    assert repeats == 1
    return {name: case() for name, case in cases.items()}
