"""Kernel-eigen-pair sparse variational GP attention (section 4).

NaN and infinity in a tensor reach the result.
"""

import math
from typing import Any, NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kepsvgp.features import (
    ProjectionTokens,
    kernel_matrix,
    pick_tokens,
    projection_weights,
    scores,
)
from kepsvgp.inducing import draw_inducing, inducing_kl, lower_factor
from kepsvgp.ksvd import ksvd_loss, ksvd_objective
from kepsvgp.merging import Concatenation, LowRankConcatenation, merged_processes
from kepsvgp.names import BranchesName, InitialPosterior, MergeName
from probseq.checks import check_choice, check_counts, check_not_negative
from probseq.precision import full_precision
from probseq.transformers.attention import AttentionCall, MultiHeadAttention

_TOKENS_PER_RANK = 10


class Penalties(NamedTuple):
    """The parts of the penalty.

    The divergence of the inducing variables is summed over heads and output dimensions; it is twice
    that if each process has its own.
    """

    kl: Float[Tensor, ""]  # KL divergence in nats a sequence (21)
    ksvd: Float[Tensor, ""]  # loss of the kernel SVD (11), mean over sequences and heads, no weight


class KernelEigenPairAttention(MultiHeadAttention):
    r"""Multi-head attention as a pair of sparse GPs over the singular functions of its kernel.

    Each head's kernel :math:`\kappa(x, y) = \langle f(X)\phi_q(x), f(X)\phi_k(y)\rangle` is
    asymmetric; its left and right singular functions induce two GPs with the same inducing
    variables' prior N(0, Λ²), so that only the diagonal matrix Λ is inverted:

    .. math:: F^e = E\Lambda^{-1}U, \quad F^r = R\Lambda^{-1}U, \quad u_d \sim N(m_d, L_d L_d^\top)

    in O(B T s²) a head, without a T×T matrix. What must hold for this, that E and R are projections
    on singular functions, is brought about by the penalty's second part, ``eta`` times (11).

    u is drawn once for each sequence and forward pass, and serves both processes: in (31)-(34) the
    inducing variables are conditioned on the sequence, whose singular functions they belong to, and
    every sequence pays the divergence of one u for both. ``shared_u=False`` draws one for each
    process and pays for both. (The authors draw a noise for every token, which changes what is
    pooled over tokens, and share it among output dimensions.) Whatever else the posterior had is
    dropped, as in the paper's Remark 3.1: its covariance has rank s.

    Not permutation equivariant: W_e and W_r belong to the places of the tokens in f(X), and W_1 to
    all places.

    Differences from the paper: the corrections to (16), (18) and (21) of ``kepsvgp.inducing``;
    whitened inducing variables, same place; each head's projection from s to the head's width and
    the projection that mixes the heads are one matrix, there being nothing between them. (The
    authors have one s×d matrix for all heads and do not mix them.)

    Args:
        dim: token width.
        num_heads: heads H; must divide ``dim``.
        rank: singular functions s of each head, and its output dimensions.
        merge: ``"addition"`` of the processes; or their ``"concatenation"`` over tokens, brought
            back by W_1, N×2N, for sequences of at most ``max_tokens``; or that with W_1 of rank s,
            ``"concatenation-low-rank"``.
        max_tokens: longest sequence N; needed for concatenation. For addition ``None`` allows any.
        branches: ``"er"``, or one process twice, ``"ee"`` or ``"rr"`` (Table 5). The kernel SVD
            needs both scores in any case.
        shared_u: both processes share their inducing variables.
        eta: weight η of (11) in the penalty.
        projection_tokens: tokens p in f(X); ``None``: 10 s, at most ``max_tokens``.
        initial_posterior: ``"prior"`` starts at q(u) = p(u) but for a random mean, ``"random"``
            draws the factors too, as the authors do.
        sample: ``False`` takes the mean of u in place of draws, a control that tells what the noise
            does.
        dropout: rate on the output.

    Example:
        >>> import torch
        >>> from kepsvgp import KernelEigenPairAttention
        >>> attention = KernelEigenPairAttention(64, num_heads=4, rank=5)
        >>> values, penalty = attention(torch.randn(8, 50, 64))
        >>> values.shape, penalty.shape
        (torch.Size([8, 50, 64]), torch.Size([]))
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        rank: int,
        *,
        merge: MergeName = "addition",
        max_tokens: int | None = None,
        branches: BranchesName = "er",
        shared_u: bool = True,
        eta: float = 10.0,
        projection_tokens: int | None = None,
        initial_posterior: InitialPosterior = "prior",
        sample: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(dim, num_heads, dropout)
        check_choice("merge", merge, MergeName)
        check_choice("branches", branches, BranchesName)
        check_choice("initial_posterior", initial_posterior, InitialPosterior)
        check_not_negative(eta=eta)
        _check_rank(rank, max_tokens, projection_tokens)
        self.rank = rank
        self.max_tokens = max_tokens
        self.branches: BranchesName = branches
        self.shared_u, self.sample = shared_u, sample
        self.eta = eta
        size = _TOKENS_PER_RANK * rank if projection_tokens is None else projection_tokens
        self.projection_tokens = size if max_tokens is None else min(size, max_tokens)
        self.to_qk = nn.Linear(dim, 2 * dim, bias=False)
        self.projection = nn.Parameter(torch.empty(2, num_heads, self.projection_tokens, rank))
        for matrix in self.projection.data.flatten(0, 1):
            nn.init.orthogonal_(matrix)
        self.raw_singular_values = nn.Parameter(self._initial_log_singular_values())
        self.whitened_mean = nn.Parameter(torch.randn(num_heads, rank, rank))
        raw = torch.randn if initial_posterior == "random" else torch.zeros
        self.raw_whitened_factor = nn.Parameter(raw(num_heads, rank, rank, rank).tril())
        self.mixing = _mixing(merge, max_tokens, rank)
        self.to_out = nn.Sequential(nn.Linear(num_heads * rank, dim), nn.Dropout(dropout))

    @property
    def singular_values(self) -> Float[Tensor, "heads rank"]:
        """Diagonal of Λ."""
        return self.raw_singular_values.exp()

    @property
    def inducing_mean(self) -> Float[Tensor, "heads channels rank"]:
        """The means m_d of the inducing variables."""
        return self.singular_values[:, None] * self.whitened_mean

    @property
    def inducing_factor(self) -> Float[Tensor, "heads channels rank rank"]:
        """The lower triangular factors L_d of their covariances."""
        return self.singular_values[:, None, :, None] * lower_factor(self.raw_whitened_factor)

    def _attend(self, tokens: Any, call: AttentionCall) -> tuple[Tensor, Tensor]:
        picked, projected = tokens
        scores = self._scores(picked, projected)
        shape = (call.num_samples or 1, projected.shape[0])
        # q(v_d) = N(Λ⁻¹ m_d, Λ⁻¹ L_d (Λ⁻¹ L_d)ᵀ).
        mean, factor = self.whitened_mean, lower_factor(self.raw_whitened_factor)
        # v = Λ⁻¹u of every sequence and sample, one for both processes or one each.
        inducing = tuple(
            draw_inducing(mean, factor, shape, generator=call.generator)
            if self.sample
            else mean.expand(*shape, *mean.shape)
            for _ in range(1 if self.shared_u else 2)
        )
        # O = (E + R) v, or W_1 [E; R] v.
        samples = merged_processes(scores, inducing, self.branches, self.mixing)
        # KL (21) + η (11).
        penalties = self._penalties(scores, picked, factor)
        return samples, penalties.kl + self.eta * penalties.ksvd

    def penalties(
        self, x: Float[Tensor, "batch tokens dim"], mask: Bool[Tensor, "batch tokens"] | None = None
    ) -> Penalties:
        """Return the terms of the penalty, which a forward pass adds up."""
        picked, projected = self.project(x, mask)
        with torch.autocast(x.device.type, enabled=False):
            factor = lower_factor(self.raw_whitened_factor)
            return self._penalties(self._scores(picked, projected), picked, factor)

    def kernel(
        self, x: Float[Tensor, "batch tokens dim"], mask: Bool[Tensor, "batch tokens"] | None = None
    ) -> Float[Tensor, "batch heads tokens tokens"]:
        """Return the attention kernel between all tokens, T×T, zero at padding; for analysis."""
        picked, projected = self.project(x, mask)
        with torch.autocast(x.device.type, enabled=False):
            return kernel_matrix(projected, full_precision(picked.rows))

    def _project(self, x: Tensor, mask: Tensor | None) -> tuple[ProjectionTokens, Tensor]:
        if self.max_tokens is not None and x.shape[1] > self.max_tokens:
            raise ValueError(
                f"x must have at most max_tokens={self.max_tokens} tokens, got {x.shape[1]}"
            )
        if mask is not None:
            # Zero tokens have zero scores: padding is out of every sum from here on.
            x = x.masked_fill(~mask[..., None], 0.0)
        projected = rearrange(
            self.to_qk(x), "b t (two h k) -> b two h k t", two=2, h=self.num_heads
        )
        return pick_tokens(x, mask, self.projection_tokens), full_precision(projected)

    def _scores(self, picked: ProjectionTokens, projected: Tensor) -> Tensor:
        weights = projection_weights(full_precision(picked.rows), self.projection)
        return scores(projected, weights)

    def _penalties(self, scores: Tensor, picked: ProjectionTokens, factor: Tensor) -> Penalties:
        objective = ksvd_objective(scores, self.projection, self.singular_values, picked.num_rows)
        kl = inducing_kl(self.whitened_mean, factor)
        return Penalties(kl if self.shared_u else 2 * kl, ksvd_loss(objective))

    def _initial_log_singular_values(self) -> Tensor:
        """Draw Λ = exp(-2 U(0, 1)), as the authors do, on the scale of the singular values.

        Standardised tokens without anything in common give a kernel with about d singular values
        T p/d; tokens that are all alike, one of about T p. Starting below the kernel's singular
        values, (11) is large, and with η = 10 the quickest way down is to shrink all tokens, which
        silences the layer. (The authors' loss averages over tokens: theirs may be near 1.)
        """
        tokens = self.projection_tokens if self.max_tokens is None else self.max_tokens
        scale = float(tokens * self.projection_tokens)
        return math.log(scale) - 2.0 * torch.rand(self.num_heads, self.rank)


def _mixing(
    merge: MergeName, max_tokens: int | None, rank: int
) -> Concatenation | LowRankConcatenation | None:
    if merge == "addition":
        return None
    if max_tokens is None:
        raise ValueError(f"max_tokens must be given with merge={merge!r}, got None")
    if merge == "concatenation":
        return Concatenation(max_tokens)
    return LowRankConcatenation(max_tokens, rank)


def _check_rank(rank: int, max_tokens: int | None, projection_tokens: int | None) -> None:
    """Refuse ranks that leave no room for orthonormal columns."""
    check_counts(rank=rank)
    for name, value in (("max_tokens", max_tokens), ("projection_tokens", projection_tokens)):
        if value is not None:
            check_counts(**{name: value})
            if value < rank:
                raise ValueError(
                    f"rank must be at most {name}={value}, got {rank}: take a smaller "
                    "rank or more tokens"
                )
