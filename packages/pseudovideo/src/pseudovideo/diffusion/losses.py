"""What improved DDPM is trained by: L_hybrid (Nichol & Dhariwal 2021, equation 16).

NaN and infinity in a tensor reach the result.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from probseq.checks import check_floating, check_same_shape
from pseudovideo.diffusion.gaussian import GaussianDiffusion, split_output
from pseudovideo.diffusion.likelihood import vlb_terms

# The bound's weight is S times this: its λ is 0.001 on the sum over S steps, of which t is one.
_VLB_WEIGHT = 1e-3


class HybridLosses(NamedTuple):
    """Losses of each entry.

    Attributes:
        loss: (n,), mse + S/1000 · vlb.
        mse: (n,), squared error of the predicted noise, mean over the dimensions.
        vlb: (n,), the bound's term of step t in bits per dimension.
    """

    loss: Tensor
    mse: Tensor
    vlb: Tensor


def hybrid_losses(
    diffusion: GaussianDiffusion,
    output: Float[Tensor, "n channels h w"],
    x0: Float[Tensor, "n c h w"],
    x_t: Float[Tensor, "n c h w"],
    noise: Float[Tensor, "n c h w"],
    t: Int64[Tensor, " n"],
) -> HybridLosses:
    """Squared error of the noise, plus the bound as a loss of the variances alone.

    The mean is frozen in the bound: its gradient reaches the second half of the channels only, as
    the squared error's reaches the first.

    Args:
        diffusion: the process.
        output: of the network for `x_t`: noise and variances.
        x0: images.
        x_t: their noisy states.
        noise: what was added.
        t: steps.

    Raises:
        ValueError: tensors of different shapes, or as of `GaussianDiffusion`.
    """
    check_floating(x0=x0, noise=noise)
    check_same_shape(x_t=x_t, x0=x0, noise=noise)
    eps, position = split_output(output, x_t)
    frozen = torch.cat((eps.detach(), position), dim=1)
    mse = (eps - noise).square().flatten(1).mean(1)
    vlb = vlb_terms(diffusion, frozen, x0, x_t, t, limit=None)
    return HybridLosses(mse + _VLB_WEIGHT * diffusion.num_steps * vlb, mse, vlb)
