"""Schedules: the papers' formulas, diffusers' tables, and what is refused."""

import math

import pytest
import torch
from diffusers import DDPMScheduler

from pseudovideo.diffusion.schedules import check_betas, cosine_betas, linear_betas


def test_a_thousand_linear_betas_run_from_a_ten_thousandth_to_two_hundredths():
    betas = linear_betas(1000)
    expected = [1e-4 + (0.02 - 1e-4) * step / 999 for step in range(1000)]
    torch.testing.assert_close(betas, torch.tensor(expected, dtype=torch.float64))


def test_linear_betas_are_rescaled_so_that_the_last_step_keeps_as_much():
    kept = [float((1 - linear_betas(steps)).log().sum()) for steps in (1000, 4000)]
    assert kept[0] == pytest.approx(-10.12, abs=0.01)
    # Not the same number: the sum of log(1−β) has a second order, which shrinks.
    assert kept[1] == pytest.approx(kept[0], rel=0.01)
    assert float(linear_betas(4000)[-1]) == pytest.approx(0.005)


def test_cosine_betas_follow_the_squared_cosine_up_to_the_largest_beta():
    def kept(u):
        return math.cos((u + 0.008) / 1.008 * math.pi / 2) ** 2

    expected = [min(1 - kept((i + 1) / 50) / kept(i / 50), 0.999) for i in range(50)]
    betas = cosine_betas(50)
    torch.testing.assert_close(betas, torch.tensor(expected, dtype=torch.float64))
    assert betas[-1] == 0.999


@pytest.mark.parametrize(
    ("ours", "theirs"), [(linear_betas, "linear"), (cosine_betas, "squaredcos_cap_v2")]
)
def test_the_tables_are_diffusers(ours, theirs):
    expected = DDPMScheduler(num_train_timesteps=1000, beta_schedule=theirs).betas
    torch.testing.assert_close(ours(1000).float(), expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("steps", [-1, 0, 1, 20])
def test_too_few_linear_steps_are_refused(steps):
    with pytest.raises(
        ValueError,
        match=r"num_steps must be (at least 21 for the linear|a whole number of at least 1)",
    ):
        linear_betas(steps)
    check_betas(linear_betas(21))


def test_no_cosine_steps_are_refused():
    with pytest.raises(ValueError, match="num_steps must be a whole number of at least 1, got 0"):
        cosine_betas(0)


@pytest.mark.parametrize(
    ("betas", "message"),
    [
        ([0.1], "at least two steps"),
        ([[0.9, 0.9]], "float64 vector"),
        ([0.0, 0.999], r"in \(0, 1\), got values from 0 to 0.999"),
        ([0.9, 1.0], r"in \(0, 1\)"),
        ([0.9, float("nan")], r"in \(0, 1\)"),
        ([0.5, 0.5, 0.5], "at most 0.01 of the image's variance at the last step.*got 0.125"),
    ],
)
def test_betas_that_make_no_process_are_refused(betas, message):
    with pytest.raises(ValueError, match=message):
        check_betas(torch.tensor(betas, dtype=torch.float64))


def test_betas_in_single_precision_are_refused():
    with pytest.raises(ValueError, match=r"float64 vector.*got torch.float32"):
        check_betas(cosine_betas(10).float())
