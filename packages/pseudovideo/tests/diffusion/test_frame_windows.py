import random

import numpy as np
import pytest
import torch

from pseudovideo.diffusion.frame_windows import (
    Stage,
    draw_windows,
    random_stage,
    stage_window,
    stages,
)


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


def test_spaced_frames_have_the_reference_implementations_distribution():
    # One set of frames alone: with one frame at most, what is drawn first is all there is.
    rng = random.Random(0)
    single = [random_stage(5, 1, rng) for _ in range(4_000)]
    assert all(not stage.observed and len(stage.latent) == 1 for stage in single)
    shares = np.bincount([stage.latent[0] for stage in single], minlength=5) / 4_000
    np.testing.assert_allclose(shares, 0.2, atol=5 * (0.16 / 4_000) ** 0.5)


def test_random_windows_follow_the_rule_worked_out_on_a_grid():
    # Sets of 1 or 2 of 3 frames, integrated on a fine grid of both uniform numbers.
    grid = (np.arange(1_000) + 0.5) / 1_000
    sets = {}
    for frame in range(3):
        sets[frozenset({frame})] = 0.5 / 3
    distance = np.exp(grid * np.log(3 / (2 - 0.999)))[:, None]
    first = grid * (3 - distance)
    for pair in {(a, b) for a in range(3) for b in range(a + 1, 3)}:
        share = (
            (first.astype(int) == pair[0]) & ((first + distance).astype(int) == pair[1])
        ).mean()
        sets[frozenset(pair)] = 0.5 * share
    assert sum(sets.values()) == pytest.approx(1.0)

    expected: dict[tuple, float] = {}

    def follow(latent, observed, probability):
        if len(latent | observed) == 2:
            expected[latent, observed] = expected.get((latent, observed), 0.0) + probability
            return
        # Sets that are all taken change nothing: the draw starts again.
        again = sum(p for drawn, p in sets.items() if not drawn - latent - observed)
        for drawn, p in sets.items():
            added = drawn - latent - observed
            if not added:
                continue
            share = probability * p / (1 - again)
            if len(added) > 2 - len(latent | observed):
                expected[latent, observed] = expected.get((latent, observed), 0.0) + share
            else:
                follow(latent | added, observed, share / 2)
                follow(latent, observed | added, share / 2)

    for drawn, p in sets.items():
        follow(drawn, frozenset(), p)
    assert sum(expected.values()) == pytest.approx(1.0)

    rng = random.Random(1)
    found: dict[tuple, int] = {}
    for _ in range(20_000):
        stage = random_stage(3, 2, rng)
        key = frozenset(stage.latent), frozenset(stage.observed)
        found[key] = found.get(key, 0) + 1
    assert found.keys() == {key for key, p in expected.items() if p > 0}
    for key, p in expected.items():
        assert found[key] / 20_000 == pytest.approx(p, abs=5 * (p / 20_000) ** 0.5)


@pytest.mark.parametrize(("num_frames", "context"), [(2, 1), (4, 2), (4, 3), (8, 4)])
def test_random_windows_use_at_most_one_frame_more_than_the_context(num_frames, context):
    window = draw_windows(
        200,
        num_frames=num_frames,
        context=context,
        masks="random",
        generator=torch.Generator().manual_seed(0),
    )
    assert window.frames.shape == (200, context + 1)
    for observed, latent in rows(window):
        used = observed + latent
        assert latent
        assert len(set(used)) == len(used) <= context + 1
        assert set(used) <= set(range(num_frames))
