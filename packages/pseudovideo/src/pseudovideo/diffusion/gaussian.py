"""Gaussian diffusion with learned variances (Ho et al.; improved DDPM).

Steps are numbered 0..S−1 as in improved DDPM; ᾱ is the product of 1−β up to and with a step, and
ᾱ' the one before (1 at step 0).

Every coefficient is computed in float64 and rounded once, to the precision of the images, at least
float32: also what a network under autocast returns in bfloat16 is lifted before it is used.

Two differences to improved DDPM: a process needs two steps, as the posterior's variance at step 0,
which is 0, is replaced by that of step 1; and a process whose last step keeps more than 1% of the
image's variance is refused, because sampling starts from pure noise.

NaN and infinity in a tensor reach the result.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from probseq.checks import (
    check_choice,
    check_floating,
    check_integers,
    check_positive,
    check_same_shape,
    check_sizes,
)
from pseudovideo.diffusion.schedules import check_betas, cosine_betas, linear_betas, spaced_steps
from pseudovideo.spec import Prediction, ScheduleName

Times = Int64[Tensor, " #n"] | Int64[Tensor, ""] | int
"""Steps: one of each entry, or one for all."""

Images = Float[Tensor, "n c h w"]
"""Images, their noise or their noisy states."""

# Networks know time on the scale of a process of 1,000 steps.
_MODEL_STEPS = 1000
_SCHEDULES: dict[str, Callable[[int], Tensor]] = {"linear": linear_betas, "cosine": cosine_betas}


class Reverse(NamedTuple):
    """The model's Gaussian p(x_{t−1} | x_t), and the predicted image, each (n, c, h, w)."""

    mean: Tensor
    log_variance: Tensor
    x0: Tensor


class Coefficients(NamedTuple):
    """Coefficients of all steps, by the literature's names; `prev` the step before, ᾱ' = 1 at 0."""

    sqrt_alphas_cumprod: Float[Tensor, " S"]  # √ᾱ
    sqrt_one_minus_alphas_cumprod: Float[Tensor, " S"]  # √(1−ᾱ)
    sqrt_alphas_cumprod_prev: Float[Tensor, " S"]  # √ᾱ'
    one_minus_alphas_cumprod_prev: Float[Tensor, " S"]  # 1−ᾱ'
    sqrt_recip_alphas_cumprod: Float[Tensor, " S"]  # √(1/ᾱ)
    sqrt_recipm1_alphas_cumprod: Float[Tensor, " S"]  # √(1/ᾱ − 1)
    # β√ᾱ'/(1−ᾱ), the image's in the mean of q(x_{t−1} | x_t, x_0)
    posterior_mean_coef1: Float[Tensor, " S"]
    posterior_mean_coef2: Float[Tensor, " S"]  # √(1−β)(1−ᾱ')/(1−ᾱ), that of x_t
    posterior_variance: Float[Tensor, " S"]  # β(1−ᾱ')/(1−ᾱ), 0 at step 0
    posterior_log_variance_clipped: Float[Tensor, " S"]  # its logarithm; at step 0 that of step 1
    log_betas: Float[Tensor, " S"]  # log β
    model_times: Float[Tensor, " S"]  # what networks are told of the steps


class GaussianDiffusion:
    """A noise process q(x_t | x_0) = N(√ᾱ_t x_0, 1−ᾱ_t) and its reversal; no parameters.

    Images have shape (n, c, h, w); the frames of videos are entries of their own. Steps t are one
    for each entry or one for all, 0..S−1, and looked at on the CPU only, where that costs no
    synchronisation.

    Args:
        betas: variances of the noise that the steps add, float64 (S,), in (0, 1).
        timesteps: number of each step in the process that the network was trained on; None: this
            is that process.
        original_steps: steps of that process.
        prediction: what the first half of a network's channels is: the noise ε, the image x_0, or
            v = √ᾱ ε − √(1−ᾱ) x_0 (Salimans & Ho 2022, "Progressive distillation for fast sampling
            of diffusion models", appendix D), from which the image follows without a division.

    Attributes:
        alpha_bars: ᾱ, float64 (S,).
    """

    def __init__(
        self,
        betas: Float64[Tensor, " S"],
        *,
        timesteps: Sequence[int] | None = None,
        original_steps: int | None = None,
        prediction: Prediction = "epsilon",
    ) -> None:
        check_betas(betas)
        check_choice("prediction", prediction, Prediction)
        self.prediction: Prediction = prediction
        self.betas = betas = betas.cpu()
        self.timesteps = tuple(range(len(betas)) if timesteps is None else timesteps)
        self.original_steps = len(betas) if original_steps is None else original_steps
        chosen = sorted({*self.timesteps} & {*range(self.original_steps)})
        if len(chosen) != len(betas) or chosen != list(self.timesteps):
            raise ValueError(
                f"timesteps must be {len(betas)} ascending numbers of "
                f"0..{self.original_steps - 1}, got {self.timesteps}"
            )
        self.alpha_bars = alphas_cumprod = (1 - betas).cumprod(0)
        alphas_cumprod_prev = torch.cat((alphas_cumprod.new_ones(1), alphas_cumprod[:-1]))
        # 1−ᾱ without the difference, which would leave it 12 digits where ᾱ is close to 1.
        total = list(accumulate(betas.tolist(), lambda sum, beta: sum + beta * (1 - sum)))
        noise = torch.tensor(total, dtype=torch.float64)
        noise_prev = torch.cat((noise.new_zeros(1), noise[:-1]))
        variance = betas * noise_prev / noise  # β̃ = β(1−ᾱ')/(1−ᾱ)
        times = torch.tensor(self.timesteps, dtype=torch.float64)
        self._coefficients = Coefficients(
            sqrt_alphas_cumprod=alphas_cumprod.sqrt(),
            sqrt_one_minus_alphas_cumprod=noise.sqrt(),
            sqrt_alphas_cumprod_prev=alphas_cumprod_prev.sqrt(),
            one_minus_alphas_cumprod_prev=noise_prev,
            sqrt_recip_alphas_cumprod=alphas_cumprod.rsqrt(),
            sqrt_recipm1_alphas_cumprod=(noise / alphas_cumprod).sqrt(),
            posterior_mean_coef1=betas * alphas_cumprod_prev.sqrt() / noise,
            posterior_mean_coef2=noise_prev * (1 - betas).sqrt() / noise,
            posterior_variance=variance,
            # Step 0 has no variance, and the logarithm would be −∞.
            posterior_log_variance_clipped=torch.cat((variance[1:2], variance[1:])).log(),
            log_betas=betas.log(),
            model_times=_MODEL_STEPS / self.original_steps * times,
        )
        self._moved: dict[tuple[torch.device, torch.dtype], Coefficients] = {}

    @classmethod
    def make(
        cls, num_steps: int, schedule: ScheduleName, prediction: Prediction = "epsilon"
    ) -> "GaussianDiffusion":
        """Return the process of S = `num_steps` of a named schedule."""
        check_choice("schedule", schedule, ScheduleName)
        with torch.device("cpu"):  # its values are checked, which a model on meta has none of
            return cls(_SCHEDULES[schedule](num_steps), prediction=prediction)

    @property
    def num_steps(self) -> int:
        """S."""
        return len(self.betas)

    def model_times(self, t: Int64[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Return what the network is told of t: its step in the original process × 1000/steps."""
        check_sizes("t", t, "n")
        check_integers(0, self.num_steps - 1, t=t)
        return self._on(t.device, torch.float32).model_times[t]

    def add_noise(self, x0: Images, noise: Images, t: Times) -> Images:
        """Return x_t = √ᾱ_t x_0 + √(1−ᾱ_t) ε."""
        c = self._checked(t, x0=x0, noise=noise)
        signal = _at(c.sqrt_alphas_cumprod, t) * x0
        return signal + _at(c.sqrt_one_minus_alphas_cumprod, t) * noise

    def predict_x0(self, x_t: Images, eps: Images, t: Times) -> Images:
        """Return the image (x_t − √(1−ᾱ_t) ε)/√ᾱ_t."""
        c = self._checked(t, x_t=x_t, eps=eps)
        state = _at(c.sqrt_recip_alphas_cumprod, t) * x_t
        return state - _at(c.sqrt_recipm1_alphas_cumprod, t) * eps

    def predict_noise(self, x_t: Images, x0: Images, t: Times) -> Images:
        """Return the noise (x_t/√ᾱ_t − x_0)/√(1/ᾱ_t − 1): `predict_x0` solved for ε."""
        c = self._checked(t, x_t=x_t, x0=x0)
        difference = _at(c.sqrt_recip_alphas_cumprod, t) * x_t - x0
        return difference / _at(c.sqrt_recipm1_alphas_cumprod, t)

    def target(self, x0: Images, noise: Images, t: Times) -> Images:
        """Return what a network learns to predict: ε, x_0, or v = √ᾱ_t ε − √(1−ᾱ_t) x_0."""
        c = self._checked(t, x0=x0, noise=noise)
        if self.prediction == "v":
            signal, sigma = _at(c.sqrt_alphas_cumprod, t), _at(c.sqrt_one_minus_alphas_cumprod, t)
            return signal * noise - sigma * x0
        return noise if self.prediction == "epsilon" else x0

    def predict_x0_and_eps(self, predicted: Images, x_t: Images, t: Times) -> tuple[Images, Images]:
        """Return the image and the noise of a prediction.

        Of v: x_0 = √ᾱ_t x_t − √(1−ᾱ_t) v and ε = √(1−ᾱ_t) x_t + √ᾱ_t v.
        """
        if self.prediction == "epsilon":
            return self.predict_x0(x_t, predicted, t), predicted
        if self.prediction == "x0":
            return predicted, self.predict_noise(x_t, predicted, t)
        c = self._checked(t, x_t=x_t, predicted=predicted)
        signal, noise = _at(c.sqrt_alphas_cumprod, t), _at(c.sqrt_one_minus_alphas_cumprod, t)
        return signal * x_t - noise * predicted, noise * x_t + signal * predicted

    def posterior(self, x0: Images, x_t: Images, t: Times) -> tuple[Images, Images]:
        """Return mean and log-variance of q(x_{t−1} | x_t, x_0) (Ho et al., equation 7).

        At t = 0 the mean is x_0 and the variance, which is 0, is given as that of step 1.
        """
        c = self._checked(t, x0=x0, x_t=x_t)
        # μ̃ = β√ᾱ'/(1−ᾱ) x_0 + √(1−β)(1−ᾱ')/(1−ᾱ) x_t
        mean = _at(c.posterior_mean_coef1, t) * x0 + _at(c.posterior_mean_coef2, t) * x_t
        return mean, _at(c.posterior_log_variance_clipped, t).expand(mean.shape)

    def p_mean_variance(
        self,
        output: Float[Tensor, "n channels h w"],
        x_t: Images,
        t: Times,
        *,
        limit: float | None = 1.0,
    ) -> Reverse:
        """Return p(x_{t−1} | x_t) of what a network returns for x_t.

        The first half of its channels is what `prediction` says, the second puts the variance
        between the posterior's and β on the logarithmic scale (improved DDPM, equation 15; −1 is
        the posterior's, 1 is β). The predicted image is kept within ±`limit`; None lets it be, as
        in training.
        """
        _check_limit(limit)
        # 1. The image x_0 that the network predicts, within its range
        predicted, position = split_output(output, x_t)
        x0, _ = self.predict_x0_and_eps(predicted, x_t, t)
        x0 = x0 if limit is None else x0.clamp(-limit, limit)
        # 2. μ̃(x_0, x_t), and log β̃, the least variance
        mean, least = self.posterior(x0, x_t, t)
        # 3. log σ² = u log β + (1−u) log β̃ with u = (position + 1)/2
        share = (position + 1) / 2
        c = self._on(x0.device, x0.dtype)
        log_variance = share * _at(c.log_betas, t) + (1 - share) * least
        return Reverse(mean, log_variance, x0)

    def step(
        self,
        output: Float[Tensor, "n channels h w"],
        x_t: Images,
        t: Times,
        noise: Images | None = None,
        *,
        limit: float | None = 1.0,
    ) -> Images:
        """Return x_{t−1} drawn from `p_mean_variance`; its mean at t = 0.

        The noise is standard normal; None only where all t are 0.
        """
        reverse = self.p_mean_variance(output, x_t, t, limit=limit)
        if noise is None:
            return reverse.mean
        c = self._checked(t, x_t=x_t, noise=noise)
        # Exactly 0 at step 0, and √variance elsewhere.
        moves = _at(c.posterior_variance, t) > 0
        return reverse.mean + moves * (reverse.log_variance / 2).exp() * noise

    def ddim_step(
        self,
        output: Float[Tensor, "n channels h w"],
        x_t: Images,
        t: Times,
        noise: Images | None = None,
        *,
        eta: float,
        limit: float | None = 1.0,
    ) -> Images:
        r"""Return x_{t−1} = √ᾱ' x_0 + √(1−ᾱ'−σ²) ε + σ·noise with σ² = η²β(1−ᾱ')/(1−ᾱ).

        Song, Meng & Ermon 2021, "Denoising diffusion implicit models", equations 12 and 16. Where
        the predicted image is clipped to ±`limit`, ε is that of the clipped one, as in improved
        DDPM. The variances of the output play no part. η is in 0..1: 0 draws nothing, 1 has the
        posterior's variance. The noise is standard normal; None only where η or all t are 0.
        """
        if not 0 <= eta <= 1:
            raise ValueError(f"eta must lie in 0..1, got {eta}")
        _check_limit(limit)
        if noise is not None:
            self._checked(t, x_t=x_t, noise=noise)
        predicted, _ = split_output(output, x_t)
        x0, eps = self.predict_x0_and_eps(predicted, x_t, t)
        if limit is not None:
            x0 = x0.clamp(-limit, limit)
            eps = self.predict_noise(x_t, x0, t)
        c = self._on(x_t.device, x_t.dtype)
        variance = eta**2 * _at(c.posterior_variance, t)  # σ² = η² β̃
        # 1 − ᾱ' − σ², of which rounding may leave −10⁻¹⁷.
        left = (_at(c.one_minus_alphas_cumprod_prev, t) - variance).clamp(min=0)
        # √ᾱ' x_0, and the direction √(1−ᾱ'−σ²) ε that points back to x_t
        mean = _at(c.sqrt_alphas_cumprod_prev, t) * x0 + left.sqrt() * eps
        return mean if noise is None else mean + variance.sqrt() * noise

    def respaced(self, count: int) -> "GaussianDiffusion":
        """Return the process of ``count`` evenly spaced steps, first and last among them."""
        steps = spaced_steps(self.num_steps, count)
        if len(steps) == self.num_steps:
            # The very same: quotients of products would differ in the last digit.
            return self
        if len(steps) < 2:
            raise ValueError(f"count must be at least two steps, got {count!r}")
        alphas_cumprod = self.alpha_bars[list(steps)]
        # 1 − β of a step is ᾱ over that of the step before it, which is 1 at the first
        before = torch.cat((alphas_cumprod.new_ones(1), alphas_cumprod[:-1]))
        return GaussianDiffusion(
            1 - alphas_cumprod / before,
            timesteps=[self.timesteps[step] for step in steps],
            original_steps=self.original_steps,
            prediction=self.prediction,
        )

    def _checked(self, t: Times, **images: Tensor) -> Coefficients:
        """Return the first image's coefficients; refuse other shapes, and what is no step."""
        (name, first), *_ = images.items()
        check_sizes(name, first, "n", "c", "h", "w")
        check_floating(**images)
        check_same_shape(**images)
        if isinstance(t, Tensor):
            if t.ndim > 1 or t.numel() not in (1, len(first)):
                raise ValueError(
                    f"t must be a step of each of {len(first)} images, or one for all, got shape "
                    f"{tuple(t.shape)}"
                )
            check_integers(0, self.num_steps - 1, t=t)
        elif t not in range(self.num_steps):
            raise ValueError(f"t must be from 0 to {self.num_steps - 1}, got {t!r}")
        return self._on(first.device, first.dtype)

    def _on(self, device: torch.device, dtype: torch.dtype) -> Coefficients:
        """Return the coefficients where and as precise as images are, at least float32."""
        key = device, torch.promote_types(dtype, torch.float32)
        if key not in self._moved:
            # What is made in inference mode could not be used in training later.
            with torch.inference_mode(False):
                self._moved[key] = Coefficients(
                    *(c.to(*key, copy=True) for c in self._coefficients)
                )
        return self._moved[key]


def _at(coefficient: Float[Tensor, " S"], t: Times) -> Float[Tensor, "#n 1 1 1"]:
    """Return the coefficient of the step of each image, to be multiplied with images."""
    return coefficient[t].reshape(-1, 1, 1, 1)


def split_output(output: Float[Tensor, "n channels h w"], x_t: Images) -> tuple[Images, Images]:
    """Return both halves of a network's channels: its prediction, and the place of the variance."""
    check_sizes("x_t", x_t, "n", "c", "h", "w")
    check_floating(output=output, x_t=x_t)
    expected = (x_t.shape[0], 2 * x_t.shape[1], *x_t.shape[2:])
    if output.shape != expected:
        raise ValueError(
            f"output must have shape {expected}, noise and variance of each channel, "
            f"got {tuple(output.shape)}"
        )
    lifted = output.to(torch.promote_types(output.dtype, torch.float32))
    predicted, position = lifted.chunk(2, dim=1)
    return predicted, position


def _check_limit(limit: float | None) -> None:
    if limit is not None:
        check_positive(limit=limit)
