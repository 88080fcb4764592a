"""Which of diffusers' schedulers walk the process of a model, and in how many steps."""

import inspect
import math
from copy import deepcopy
from typing import Any

import torch

from probseq.errors import require
from pseudovideo.diffusion.gaussian import GaussianDiffusion
from pseudovideo.diffusion.schedules import MAX_LAST_ALPHA_BAR, spaced_steps
from pseudovideo.integrations.diffusers.ddpm import ddpm_scheduler

diffusers: Any = require("diffusers", extra="diffusion", distribution="pseudovideo")

# What a scheduler may raise of itself in steps or settings that it is not made for.
_OF_SCHEDULERS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)
# Of √ᾱ, which schedulers may rescale to end at 0, and of the width of what they draw.
_MAX_DIFFERENCE, _MAX_ERROR = 5e-3, 0.3
_PIXELS = 1024


class _OtherProcessError(Exception):
    """A scheduler does not walk the model's process."""


def has_variances(scheduler: Any) -> bool:
    """Return whether a scheduler takes the network's variances beside its prediction."""
    ddpm = isinstance(scheduler, diffusers.DDPMScheduler)
    return ddpm and scheduler.config.variance_type == "learned_range"


def draws(scheduler: Any) -> bool:
    """Return whether a scheduler's steps take a generator."""
    return "generator" in inspect.signature(scheduler.step).parameters


def runs_in_ddpm_pipeline(scheduler: Any) -> bool:
    """Return whether `DDPMPipeline` samples with a scheduler as it should be, and we read it back.

    That pipeline gives its network what the scheduler walks, from standard normal noise, and each
    step a generator; what it keeps images to is checked when its folder is read.
    """
    config, tried = scheduler.config, copy_scheduler(scheduler)
    keeps = config.get("clip_sample", True) and config.get("clip_sample_range", 1.0) == 1.0
    if not (keeps and draws(scheduler)):
        return False
    if config.get("thresholding") or config.get("rescale_betas_zero_snr"):
        return False
    try:
        tried.set_timesteps(min(20, config.num_train_timesteps))
        scaled = tried.scale_model_input(torch.ones(1), tried.timesteps[0])
    except _OF_SCHEDULERS:
        return False
    return float(scaled) == 1.0 and float(tried.init_noise_sigma) == 1.0


def copy_scheduler(scheduler: Any) -> Any:
    """Return a copy that waits for no variances, unless it is DDPM's, which alone is given them.

    `from_config` hands a scheduler the `variance_type` of the one before it.
    """
    parameter = inspect.signature(type(scheduler).__init__).parameters.get("variance_type")
    learned = str(scheduler.config.get("variance_type")).startswith("learned")
    if parameter is None or not learned or isinstance(scheduler, diffusers.DDPMScheduler):
        return deepcopy(scheduler)
    return type(scheduler).from_config(scheduler.config, variance_type=parameter.default)


def check_scheduler(scheduler: Any, process: GaussianDiffusion, steps: int) -> None:
    """Refuse a scheduler of another process, and steps that it can't do.

    With the exact networks of images N(0, 1) and N(0, 0.3²) it must draw images that are as wide,
    to within the errors of DDIM.

    Raises:
        ValueError: the scheduler is none of diffusers, has another prediction or ᾱ, doesn't start
            from pure noise, or fails or draws something else in so many steps.
    """
    kind = type(scheduler).__name__
    if not isinstance(scheduler, diffusers.SchedulerMixin):
        raise ValueError(f"scheduler must be an object of a scheduler of diffusers, got a {kind}")
    prediction = scheduler.config.get("prediction_type")
    expected = ddpm_scheduler(process).config.prediction_type
    if prediction != expected:
        raise ValueError(
            f"scheduler must have the model's prediction_type {expected!r}, got {prediction!r}"
        )
    reason = ""
    try:
        # Learned variances are said to be β, which is exact for N(0, 1).
        for std in (1.0,) if has_variances(scheduler) else (1.0, 0.3):
            ratio = _drawn_std(copy_scheduler(scheduler), process, steps, std) / std
            limit = max(_MAX_ERROR, 1.5 * abs(_ddim_std(process, steps, std) / std - 1))
            if not abs(ratio - 1) < limit:
                reason = f"its images would be {ratio:.3g} times as wide as they should"
    except _OtherProcessError as error:
        raise ValueError(
            f"scheduler must walk the model's process of {process.num_steps} steps, as "
            f"from_config(pipeline.scheduler.config) makes some, and this {kind} {error}"
        ) from error
    except _OF_SCHEDULERS as error:
        reason = f"{type(error).__name__}: {error}"
    if reason:
        raise ValueError(
            f"num_inference_steps must be what the scheduler can do, got {steps} for {kind} of "
            f"prediction_type {prediction!r}: {reason}"
        )


def _drawn_std(scheduler: Any, process: GaussianDiffusion, steps: int, std: float) -> float:
    """Return the spread of what a scheduler draws with the exact network of N(0, std²).

    Raises:
        _OtherProcessError: the scheduler has another ᾱ, or does not start from pure noise.
    """
    alpha_bars, last = process.alpha_bars, process.num_steps - 1
    theirs = getattr(scheduler, "alphas_cumprod", None)
    if theirs is None or len(theirs) != len(alpha_bars):
        raise _OtherProcessError("has no ᾱ of these steps")
    difference = (torch.as_tensor(theirs).double().cpu().sqrt() - alpha_bars.sqrt()).abs().max()
    if not difference < _MAX_DIFFERENCE:
        raise _OtherProcessError(f"has another ᾱ, whose root differs by {difference:.2g}")
    scheduler.set_timesteps(steps)
    start = float(scheduler.timesteps[0])
    if not 0 <= start <= last or alpha_bars[int(start)] > MAX_LAST_ALPHA_BAR:
        raise _OtherProcessError(f"starts at step {start:g}, which is no pure noise")
    for name in ("clip_sample", "thresholding"):  # of images; these have values of all sizes
        if scheduler.config.get(name):
            scheduler.register_to_config(**{name: False})
    generator = torch.Generator().manual_seed(0)
    options = {"generator": generator} if draws(scheduler) else {}
    x = torch.randn(1, 1, 1, _PIXELS, generator=generator)
    x = x / x.std() * scheduler.init_noise_sigma
    log_ratios = (alpha_bars / (1 - alpha_bars)).log().tolist()
    for t in scheduler.timesteps:
        number = min(max(float(t), 0.0), last)
        low, share = int(number), number % 1
        # Schedulers go between two steps, too: there in the logarithm of ᾱ/(1−ᾱ).
        log_ratio = (1 - share) * log_ratios[low] + share * log_ratios[min(low + 1, last)]
        slope = _slopes(1 / (1 + math.exp(-log_ratio)), std)[process.prediction]
        output = slope * scheduler.scale_model_input(x, t)
        if has_variances(scheduler):
            output = torch.cat([output, torch.ones_like(output)], dim=1)
        x = scheduler.step(output, t, x, **options).prev_sample
    return float(x.std())


def _ddim_std(process: GaussianDiffusion, steps: int, std: float) -> float:
    """Return the spread of what DDIM draws with the exact network of N(0, std²)."""
    numbers = spaced_steps(process.num_steps, steps) if steps > 1 else (process.num_steps - 1,)
    alpha_bars = process.alpha_bars[list(numbers)].tolist()
    spread = 1.0
    for before, after in zip(reversed(alpha_bars), [*reversed(alpha_bars[:-1]), 1.0], strict=True):
        slopes = _slopes(before, std)
        spread *= after**0.5 * slopes["x0"] + (1 - after) ** 0.5 * slopes["epsilon"]
    return spread


def _slopes(alpha_bar: float, std: float) -> dict[str, float]:
    """Return image, noise and v that the exact network of N(0, std²) predicts of x_t = 1."""
    alpha, sigma = alpha_bar**0.5, (1 - alpha_bar) ** 0.5
    x0 = alpha * std**2 / (alpha_bar * std**2 + 1 - alpha_bar)
    epsilon = sigma / (alpha_bar * std**2 + 1 - alpha_bar)
    return {"x0": x0, "epsilon": epsilon, "v": alpha * epsilon - sigma * x0}
