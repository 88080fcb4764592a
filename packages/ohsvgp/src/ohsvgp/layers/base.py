"""The base of layers whose heads are Gaussian processes over time.

NaN and infinity in a tensor reach the result, or end in a ``CholeskyError``.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Real
from torch import Tensor, nn

from probseq.checks import check_sizes
from probseq.gaussians import standard_normal
from probseq.kernels.stationary import StationaryKernel
from probseq.transformers.attention import check_heads, full_precision
from probseq.transformers.outputs import AttentionOutput
from probseq.transformers.protocol import TokenMap, check_num_samples, check_tokens


class Forecast(NamedTuple):
    """What the tokens before t say of f(t).

    Attributes:
        mean: m⁻, shape (B, t, H, s).
        variance: p, the variance of f(t) that the site of token t can lower; shape (B, t, H).
        rest: r, the variance of f(t) that it cannot; p + r is the whole; broadcasts to p.
        lost_information: nats that the move to the window of t cost, shape (B, t, H).
    """

    mean: Float[Tensor, "b t h s"]
    variance: Float[Tensor, "b t h"]
    rest: Float[Tensor, "#b t h"]
    lost_information: Float[Tensor, "b t h"]


class TimePosterior(NamedTuple):
    """Each head's function of time at each token, given this token and those before it.

    Attributes:
        mean: of f(t), shape (B, t, H, s).
        variance: of f(t), the same for the s channels, shape (B, t, H).
        kl: KL divergence in nats of the process given the tokens up to t from that given those
            before t, shape (B, t, H).
        lost_information: nats of what was known of f that the inducing variables of the window of
            t no longer hold, shape (B, t, H); zeros of a layer that has none.
    """

    mean: Float[Tensor, "b t h s"]
    variance: Float[Tensor, "b t h"]
    kl: Float[Tensor, "b t h"]
    lost_information: Float[Tensor, "b t h"]


class TimeLayer(nn.Module, ABC):
    """Gaussian processes over time, one a head, that tokens inform through amortised sites.

    Args:
        dim: token width.
        num_heads: heads H; must divide ``dim``.

    Raises:
        ValueError: ``num_heads`` does not divide ``dim``, or one of them is below 1.
    """

    stochastic = True

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        self.dim, self.num_heads = dim, num_heads
        self.to_targets = nn.Linear(dim, dim)
        self.to_precision = nn.Linear(dim, num_heads)
        self.to_out = nn.Linear(dim, dim)

    def forward(
        self,
        x: Float[Tensor, "batch tokens dim"],
        mask: Bool[Tensor, "batch tokens"] | None = None,
        *,
        times: Real[Tensor, " tokens"] | None = None,
        token_map: TokenMap | None = None,
        generator: torch.Generator | None = None,
        num_samples: int | None = None,
    ) -> AttentionOutput:
        """Draw f(t) at every token, independently, and mix the heads.

        Tokens at which the mask is False are not observed: they inform nothing, but have values, f
        at their time given the tokens before. Stamps, in order, are shared by the sequences; 0, 1,
        2, … if None.

        Returns:
            Sampled values, ``(batch, tokens, dim)`` or ``(S * batch, tokens, dim)``, and the KL
            divergence in nats: over heads and tokens the sum, over sequences the mean.

        Raises:
            ValueError: ``x``, ``mask`` or ``times`` has a wrong shape or type, ``times`` are not
                finite or not in order, or ``num_samples`` is below 1.
            CholeskyError: a covariance cannot be factorised.
        """
        check_num_samples(num_samples)
        f = self._posterior(x, mask, times)
        shape = (1 if num_samples is None else num_samples, *f.mean.shape)
        noise = standard_normal(shape, like=f.mean, generator=generator)
        # f(t) = mean_t + √var_t ε_t.
        samples = f.mean + f.variance.sqrt()[..., None] * noise
        values = self.to_out(samples.flatten(-2).flatten(0, 1))
        return AttentionOutput(values, f.kl.sum((1, 2)).mean())

    def posterior(
        self,
        x: Float[Tensor, "batch tokens dim"],
        mask: Bool[Tensor, "batch tokens"] | None = None,
        *,
        times: Real[Tensor, " tokens"] | None = None,
    ) -> TimePosterior:
        """Return the posterior of each head's f(t), before ``to_out`` mixes the heads.

        Arguments and errors are those of ``forward``.
        """
        return self._posterior(x, mask, times)

    def sites(
        self, x: Float[Tensor, "batch tokens dim"], mask: Bool[Tensor, "batch tokens"] | None
    ) -> tuple[Float[Tensor, "b t h s"], Float[Tensor, "b t h"]]:
        """Return y_t and λ_t: token t is an observation y_t of f(t) with noise variance 1/λ_t.

        y_t = x_t W_y + b_y,   λ_t = softplus(x_t w_λ + b_λ), and 0 where ``mask`` is false.
        """
        y = full_precision(self.to_targets(x)).unflatten(-1, (self.num_heads, -1))
        lam = nn.functional.softplus(full_precision(self.to_precision(x)))
        if mask is None:
            return y, lam
        return y.masked_fill(~mask[..., None, None], 0.0), lam.masked_fill(~mask[..., None], 0.0)

    def _posterior(self, x: Tensor, mask: Tensor | None, times: Tensor | None) -> TimePosterior:
        check_tokens(x, mask, self.dim, self.to_targets.weight)
        stamps = _checked_times(times, x)
        y, lam = self.sites(x, mask)
        with torch.autocast(x.device.type, enabled=False):
            return absorbed(self.forecast(stamps, y, lam), y, lam)

    @abstractmethod
    def forecast(
        self,
        times: Float64[Tensor, " t"],
        y: Float[Tensor, "b t h s"],
        lam: Float[Tensor, "b t h"],
    ) -> Forecast:
        """Predict f(t) from the sites before t.

        Args:
            times: stamps in order, the first of them 0.
            y: of the sites.
            lam: λ, their precisions.
        """


def absorbed(
    forecast: Forecast, y: Float[Tensor, "b t h s"], lam: Float[Tensor, "b t h"]
) -> TimePosterior:
    """Condition f(t) on the site of the token at t.

    With a = λp and e = y − m⁻, for s channels that share p,

        mean = m⁻ + a/(1+a) e,   var = r + p/(1+a),
        KL = ½ [s (log(1+a) − a/(1+a)) + λ a |e|²/(1+a)²].
    """
    m, p, r, lost = forecast
    a, e = lam * p, y - m
    mean = m + (a / (1 + a))[..., None] * e
    variance = r + p / (1 + a)
    kl = 0.5 * (
        y.shape[-1] * (a.log1p() - a / (1 + a)) + lam * a * e.square().sum(-1) / (1 + a).square()
    )
    return TimePosterior(mean, variance, kl, lost)


def time_kernel(
    kind: type[StationaryKernel], num_heads: int, lengthscale: float | Tensor
) -> StationaryKernel:
    """Return a kernel of time for every head.

    The lengthscale is one number, or one a head.

    Raises:
        ValueError: a lengthscale is not positive and finite, or they are not H.
    """
    start = torch.as_tensor(lengthscale)
    if start.shape not in ((), (num_heads,)):
        raise ValueError(
            f"lengthscale must be one number or one a head, of shape ({num_heads},), "
            f"got shape {tuple(start.shape)}"
        )
    return kind(1, batch_shape=(num_heads,), lengthscale=start.reshape(-1, 1, 1))


def _checked_times(times: Tensor | None, x: Tensor) -> Float64[Tensor, " t"]:
    """Count stamps from the first one, in float64."""
    if times is None:
        return torch.arange(x.shape[1], dtype=torch.float64, device=x.device)
    check_sizes("times", times, x.shape[1])
    if times.is_complex() or times.dtype == torch.bool:
        raise ValueError(f"times must be real numbers, got {times.dtype}")
    stamps = times.to(x.device, torch.float64)
    stamps = stamps - stamps[0]
    if not bool(stamps.isfinite().all()) or bool((stamps.diff() < 0).any()):
        raise ValueError(
            "times must be finite and in order, got NaN, infinity or a stamp before its "
            "predecessor: sort the tokens by time"
        )
    return stamps
