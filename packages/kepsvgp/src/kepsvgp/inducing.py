r"""The variational posterior of the inducing variables (Eqs. 16-18, 21), whitened.

Each head has s output dimensions d, each with its own :math:`u_d \in R^s`, prior
:math:`p(u_d) = N(0, \Lambda^2)` and posterior :math:`q(u_d) = N(m_d, L_d L_d^\top)`. What the
processes need is :math:`v_d = \Lambda^{-1}u_d`: the values are :math:`F^e_d = E v_d` and
:math:`F^r_d = R v_d`. So v is what is stored and drawn,

.. math:: q(v_d) = N(\Lambda^{-1} m_d, (\Lambda^{-1}L_d)(\Lambda^{-1}L_d)^\top), \quad
    p(v_d) = N(0, I),

which is the same family, since :math:`\Lambda^{-1}L_d` is lower triangular if :math:`L_d` is. The
divergence is that of u. Λ itself is then learned from the kernel SVD alone: the bound does not
depend on it. (Unwhitened, m and L would live on the scale of the singular values, hundreds, where
an optimizer's step of 1e-3 is nothing.)
"""

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from probseq.gaussians import gauss_kl, standard_normal


def lower_factor(
    raw: Float[Tensor, "heads channels rank rank"],
) -> Float[Tensor, "heads channels rank rank"]:
    """Lower triangular factors with a positive diagonal, for every output dimension.

    (In the authors' code the output dimension takes the place of the factor's second index, which
    leaves all but one of the factors singular.) Of ``raw`` the strict lower triangle and, as its
    logarithm, the diagonal are read.
    """
    diagonal = raw.diagonal(dim1=-2, dim2=-1).exp()
    return raw.tril(-1) + torch.diag_embed(diagonal)


def inducing_kl(
    mean: Float[Tensor, "heads channels rank"], factor: Float[Tensor, "heads channels rank rank"]
) -> Float[Tensor, ""]:
    r"""KL divergence of q from the prior in nats, summed over heads and output dimensions.

    .. math:: \tfrac12 \sum_d [\mathrm{tr}(\Lambda^{-2} S_d) + m_d^\top \Lambda^{-2} m_d +
        \log|\Lambda^2| - \log|S_d| - s],

    (21) with the logarithms and s inside the sum. Mean and factor are whitened,
    :math:`\Lambda^{-1} m_d` and :math:`\Lambda^{-1} L_d`.
    """
    return gauss_kl(mean, factor).sum()


def draw_inducing(
    mean: Float[Tensor, "heads channels rank"],
    factor: Float[Tensor, "heads channels rank rank"],
    shape: tuple[int, ...],
    *,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "..."]:
    r"""Draw :math:`v_d = \Lambda^{-1}(m_d + L_d\epsilon_d)`, with its own ε_d in R^s for every d.

    (18) as printed has ε in R^N, which does not fit :math:`E_X\Lambda^{-1}L_d`, an N×s matrix.
    Mean and factor are those of :func:`inducing_kl`; ``shape`` counts samples and sequences, and
    the draws are ``(*shape, heads, channels, rank)``.
    """
    noise = standard_normal((*shape, *mean.shape), like=mean, generator=generator)
    return mean + einsum(factor, noise, "h d i j, ... h d j -> ... h d i")
