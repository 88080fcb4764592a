import numpy as np
import pytest
import torch

from pseudovideo.diffusion.frame_windows import Stage, draw_windows, stage_window, stages


def rows(window):
    """Windows as pairs of tuples, slot by slot in plain Python."""
    return [
        (
            tuple(int(f) for f, o in zip(*pair, strict=True) if o),
            tuple(int(f) for f, n in zip(frames, latent, strict=True) if n),
        )
        for frames, observed, latent in zip(*window, strict=True)
        for pair in [(frames, observed)]
    ]


def test_the_stages_are_the_context_window_to_the_letter():
    assert stages(4, 2) == (Stage((), (0, 1)), Stage((0, 1), (2,)), Stage((1, 2), (3,)))
    assert len(stages(8, 4)) == 5
    assert stages(8, 4)[-1] == Stage((3, 4, 5, 6), (7,))


@pytest.mark.parametrize(("num_frames", "context"), [(2, 1), (4, 2), (8, 4), (18, 5), (5, 4)])
def test_every_frame_is_generated_once_and_from_frames_that_are_there(num_frames, context):
    there: list[int] = []
    for stage in stages(num_frames, context):
        assert set(stage.observed) <= set(there)
        assert all(frame > max(stage.observed, default=-1) for frame in stage.latent)
        there += stage.latent
    assert there == list(range(num_frames))
    assert len(stages(num_frames, context)) == num_frames - context + 1


@pytest.mark.parametrize(("num_frames", "context"), [(4, 0), (4, -1), (4, 4), (4, 5), (1, 1)])
def test_a_context_that_leaves_no_frame_to_generate_is_refused(num_frames, context):
    with pytest.raises(ValueError, match=f"context must be from 1 to .*, got {context}"):
        stages(num_frames, context)


def test_the_window_of_a_stage_has_no_padding():
    window = stage_window(Stage((3, 4), (5,)), 2)
    assert rows(window) == [((3, 4), (5,))] * 2
    assert (window.observed ^ window.latent).all()


def test_training_windows_are_the_samplers_stages_as_often_as_they_have_latent_frames():
    plan = stages(4, 2)
    window = draw_windows(
        6_000, num_frames=4, context=2, generator=torch.Generator().manual_seed(0)
    )
    assert window.frames.shape == (6_000, 3)
    drawn = rows(window)
    counts = [drawn.count(tuple(stage)) for stage in plan]
    assert sum(counts) == 6_000
    # Five standard deviations of a share of 1/2.
    np.testing.assert_allclose(counts, [3_000, 1_500, 1_500], atol=5 * (6_000 / 4) ** 0.5)
