"""The negative evidence lower bound of an HVAE whose latents are pseudo frames.

The encoder gives each level its own q(z_t|x) = N(m_t(x), σ_h²I), independent given x, and the
decoder is p(z_{t−1}|z_t) = N(μ_θ(z_t, t), δ²I). So (thesis eq. 5.1 with eq. 5.3)

    −log p(x) ≤ E[−log p(x|z_1)] + Σ_{t=2..T} E[KL(q(z_{t−1}|x) ‖ p(z_{t−1}|z_t))]
                + KL(q(z_T|x) ‖ p(z_T)),

each expectation over z_t ~ q(z_t|x). All figures are nats per dimension (pixel and channel) of a
density on −1..1: a density may exceed 1, and the bound may be negative.
"""

import math

import torch
from jaxtyping import Float, Int64
from torch import Tensor


def step_costs(
    mse: Float[Tensor, " b"], t: Int64[Tensor, " b"], *, noise_std: float, delta: float
) -> Float[Tensor, " b"]:
    """The bound's term of step t: what it costs to tell the less blurred frame given z_t.

    Args:
        mse: mean squared distance of m_{t−1}(x), or of the image x where t = 1, to μ_θ(z_t, t).
        t: level that is left, 1..T.
        noise_std: σ_h.
        delta: δ.

    Returns:
        KL(N(m_{t−1}, σ_h²I) ‖ N(μ_θ, δ²I)) where t > 1, −log N(x; μ_θ, δ²I) where t = 1; nats per
        dimension.
    """
    ratio = (noise_std / delta) ** 2
    between = 0.5 * (ratio - 1 - math.log(ratio))
    density = math.log(delta) + 0.5 * math.log(2 * math.pi)
    # Each is the distance and a constant: a batch may mix both.
    return mse / (2 * delta**2) + torch.where(t > 1, between, density).to(mse)


def standard_normal_kl(mean: Float[Tensor, "b c h w"], std: float) -> Float[Tensor, " b"]:
    """KL(N(mean, std²I) ‖ N(0, I)) in nats per dimension.

    Args:
        mean: m_T(x).
        std: σ_h.
    """
    spread = 0.5 * (std**2 - 1) - math.log(std)
    return 0.5 * mean.square().flatten(1).mean(1) + spread
