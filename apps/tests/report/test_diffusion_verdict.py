"""What is said of made-up numbers, and what is not."""

import pytest

from probseq_apps.report.diffusion_results import (
    INTERMEDIATE,
    LAST,
    diffusion_arms,
    frame_arms,
    total_steps,
)
from probseq_apps.report.diffusion_verdict import (
    blur_notes,
    diffusion_notes,
    exact_notes,
    fd_measure,
    image_notes,
    order_verdicts,
)

CLOSE = (-0.1, 0.0, 0.1)
FIRST, HIGH, MATCHED = (f"4-frame-{kind}" for kind in ("first-order", "high-order", "matched"))


@pytest.fixture
def made_up(diffusion_result):
    """Results of each arm around its distance, one for each entry of `spread`."""

    def make(numbers, *, spread=CLOSE):
        return [
            diffusion_result(arm, seed, mean + offset)
            for seed, offset in enumerate(spread)
            for arm, mean in numbers.items()
        ]

    return make


@pytest.fixture
def with_errors(diffusion_result):
    """Results with errors of frames 3 and 4 (the image) around those that are given."""

    def make(numbers, *, exact=None, spread=CLOSE):
        return [
            diffusion_result(
                arm,
                seed,
                10.0,
                errors={3: (mean + offset) / 1000, 4: 1e-4 + 1e-6 * offset},
                exact=None if exact is None else {3: exact[arm] / 1000, 4: 1e-4},
            )
            for seed, offset in enumerate(spread)
            for arm, mean in numbers.items()
        ]

    return make


def verdict(results):
    measure = fd_measure(results)
    (found,) = order_verdicts(diffusion_arms(results), measure)
    return found


@pytest.mark.parametrize(
    ("numbers", "state"),
    [
        ({FIRST: 17.0, HIGH: 12.0, MATCHED: 14.0}, "survives"),
        ({FIRST: 17.0, HIGH: 12.0, MATCHED: 12.05}, "fails matched"),
        ({FIRST: 17.0, HIGH: 12.0, MATCHED: 11.0}, "fails matched"),
        ({FIRST: 17.0, HIGH: 12.0}, "no matched"),
        ({FIRST: 12.05, HIGH: 12.0, MATCHED: 17.0}, "no gain"),
        ({FIRST: 11.0, HIGH: 12.0, MATCHED: 17.0}, "worse"),
        ({HIGH: 12.0, MATCHED: 17.0}, "no comparison"),
    ],
)
def test_high_order_noise_is_judged_by_first_order_and_then_by_matched_levels(
    made_up, numbers, state
):
    found = verdict(made_up(numbers))
    assert (found.state, found.frames) == (state, 4)


def test_the_numbers_are_told_with_their_errors(made_up):
    text = verdict(made_up({FIRST: 17.0, HIGH: 12.0, MATCHED: 12.05})).text
    # Standard deviation .1 over three seeds.
    assert text.startswith(
        f"FD(classifier) of the last frame, T = 4: {HIGH} 12.00±0.06 is clearly better than "
        f"{FIRST} 17.00±0.06, not clearly different from {MATCHED} 12.05±0.06."
    )
    assert "does not survive matched levels" in text
    assert "levels may be the whole of it" in text


def test_one_seed_decides_nothing(made_up):
    results = made_up({"1-frame": 13.0, FIRST: 17.0, HIGH: 12.0, MATCHED: 14.0}, spread=(0.0,))
    assert verdict(results).state == "undecided"
    notes = diffusion_notes(results)
    assert notes
    for note in notes:
        assert "clearly" not in note
        assert note.endswith("One seed has no error: nothing is decided.")


def test_lengths_are_judged_apart_and_images_alone_not_at_all(made_up):
    both = made_up({FIRST: 17.0, HIGH: 12.0, "8-frame-first-order": 12.0, "8-frame-high-order": 17})
    found = order_verdicts(diffusion_arms(both), fd_measure(both))
    assert [(v.frames, v.state) for v in found] == [(4, "no matched"), (8, "worse")]
    alone = made_up({"1-frame": 12.9, "1-frame-4000": 11.9})
    assert order_verdicts(diffusion_arms(alone), fd_measure(alone)) == []
    (note,) = diffusion_notes(alone)
    assert "1-frame-4000 11.90±0.06 (4,000 steps, 4,000 evaluations) is clearly better" in note


def test_videos_stand_against_images_with_the_steps_of_each(made_up):
    results = made_up({"1-frame": 13.0, HIGH: 12.0})
    (note,) = image_notes(diffusion_arms(results), fd_measure(results))
    # The first two frames together, then two frames one by one: three stages.
    assert note == (
        f"FD(classifier) of the last frame: {HIGH} 12.00±0.06 (3,000 steps, 8,000 evaluations) is "
        "clearly better than 1-frame 13.00±0.06 (1,000 steps, 1,000 evaluations)."
    )


@pytest.mark.parametrize(
    ("arm", "steps"),
    [("1-frame", 1000), ("1-frame-4000", 4000), (FIRST, 3000), ("8-frame-blur", 5000)],
)
def test_denoising_steps_are_those_of_all_stages(diffusion_result, arm, steps):
    (found,) = diffusion_arms([diffusion_result(arm, 0, 1.0)])
    assert total_steps(found.group) == steps


def test_blur_stands_against_noise_of_the_same_length(made_up):
    results = made_up({HIGH: 12.0, "4-frame-blur": 15.0, "8-frame-blur": 22.0})
    (note,) = blur_notes(diffusion_arms(results), fd_measure(results))
    assert "4-frame-blur 15.00±0.06" in note
    assert f"is clearly worse than {HIGH} 12.00±0.06" in note


def test_errors_of_frames_are_judged_before_the_image_and_at_it(with_errors):
    results = with_errors({FIRST: 23.0, HIGH: 20.0, MATCHED: 21.0})
    arms = frame_arms(results)
    (before,) = order_verdicts(arms, INTERMEDIATE)
    assert before.state == "survives"
    assert f"{HIGH} 20.00±0.06 is clearly better than {FIRST} 23.00±0.06" in before.text
    (image,) = order_verdicts(arms, LAST)
    assert image.state == "no gain"
    assert diffusion_notes(results)[:2] == [before.text, image.text]


def test_intermediate_errors_are_means_over_the_frames_before_the_image(diffusion_result):
    errors = {5: 0.003, 6: 0.002, 7: 0.001, 8: 0.9}
    (arm,) = frame_arms([diffusion_result("8-frame-high-order", 0, 1.0, errors=errors)])
    assert arm.group.summary(INTERMEDIATE.path).mean == pytest.approx(2.0)
    assert arm.group.summary(LAST.path).mean == pytest.approx(900.0)
    assert arm.group.summary(("model", "5")).mean == pytest.approx(3.0)
    assert arm.group.summary(("exact", "5")).mean is None


def test_two_frames_have_none_before_the_image_that_is_predicted(diffusion_result):
    results = [
        diffusion_result(f"2-frame-{kind}", seed, 10.0, errors={2: 1e-4})
        for kind in ("first-order", "high-order")
        for seed in (0, 1)
    ]
    arms = frame_arms(results)
    assert order_verdicts(arms, INTERMEDIATE) == []
    assert len(order_verdicts(arms, LAST)) == 1


def test_exact_errors_tell_how_much_there_was_to_gain(with_errors):
    exact = {FIRST: 20.0, HIGH: 18.0, MATCHED: 19.0}
    results = with_errors({FIRST: 22.0, HIGH: 18.9, MATCHED: 18.0}, exact=exact)
    (note,) = exact_notes(frame_arms(results))
    assert "first-order 1.10, high-order 1.05, matched 0.95" in note
    assert "10.0% below those of first-order when exact and 14.1% below in models" in note
    assert "5.3% below those of matched when exact and 5.0% above in models" in note
    assert "remark 5.4.2" not in note
    assert exact_notes(frame_arms(with_errors({FIRST: 22.0, HIGH: 18.9}))) == []


@pytest.mark.parametrize("far", [FIRST, HIGH])
def test_models_far_above_the_exact_errors_are_no_test_of_the_theorem(with_errors, far):
    numbers = {FIRST: 20.5, HIGH: 18.5} | {far: 50.0}
    (note,) = exact_notes(frame_arms(with_errors(numbers, exact={FIRST: 20.0, HIGH: 18.0})))
    assert "remark 5.4.2" in note


def test_an_arm_of_another_comparison_is_refused(diffusion_result):
    result = diffusion_result("4-frame-first-order", 0, 1.0)
    with pytest.raises(ValueError, match="4-frame-forst-order"):
        diffusion_arms([{**result, "arm": "4-frame-forst-order"}])
