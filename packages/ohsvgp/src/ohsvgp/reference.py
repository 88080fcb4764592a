"""A streaming sparse GP as its formulas stand: the yardstick of the tests and of the benchmark.

It is that of Bui, Nguyen and Turner 2017 in explicit form, its posterior in the form and with the
step of Adam in which Maddox et al. 2021 take it. Nothing here is meant to be fast.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from probseq.kernels import Kernel

_LEARNING_RATE = 1e-2


class StreamingState(NamedTuple):
    """q(a) = N(m, K_aa (K_aa + C)⁻¹ K_aa).

    Attributes:
        points: z_a, shape (M, 1).
        mean: m, shape (M,).
        C: what data add to K_aa, shape (M, M).
        K: K_aa as it was then, with its jitter.
    """

    points: Tensor
    mean: Tensor
    C: Tensor
    K: Tensor


class StreamingGP:
    """Streaming sparse GP regression in explicit form.

    With D_a⁻¹ = S_a⁻¹ − K_aa⁻¹ = K_aa⁻¹ C_a K_aa⁻¹ and new points z_b,

        C_b = K_bf K_fb/σ² + K_ba D_a⁻¹ K_ab,   c_b = K_bf y/σ² + K_ba S_a⁻¹ m_a,
        m_b = K_bb (K_bb + C_b)⁻¹ c_b,          S_b = K_bb (K_bb + C_b)⁻¹ K_bb.

    :class:`ohsvgp.OnlineGP` with :class:`ohsvgp.UniformGrid` and ``alpha=0`` is the same model.

    Args:
        kernel: covariance function in float64.
        noise: σ².
        learn: take a step of Adam on the bound, of kernel and new points, before a batch is
            absorbed, as online_gp of Maddox et al. does.
        jitter: of matrices that are factorised, relative to the mean of their diagonal.
    """

    def __init__(
        self, kernel: Kernel, noise: float, *, learn: bool = False, jitter: float = 1e-6
    ) -> None:
        self.kernel = kernel
        self.noise = noise
        self.learn = learn
        self.jitter = jitter
        self.state: StreamingState | None = None

    def update(self, x: Tensor, y: Tensor, points: Tensor) -> Tensor:
        """Absorb a batch and return its bound, from before the step of Adam.

        Args:
            x: inputs, shape (n, 1).
            y: targets, shape (n,).
            points: z_b, shape (M, 1).
        """
        z = points.clone().requires_grad_(self.learn)
        with torch.set_grad_enabled(self.learn):
            value = self.bound(x, y, z)
        if self.learn:
            optimizer = torch.optim.Adam([*self.kernel.parameters(), z], lr=_LEARNING_RATE)
            optimizer.zero_grad()
            (-value).backward()
            optimizer.step()
        with torch.no_grad():
            self.state = self._absorb(x, y, z.detach())
        return value.detach()

    def _absorb(self, x: Tensor, y: Tensor, z: Tensor) -> StreamingState:
        K_bb, K_bf = self._covariance(z), self.kernel(z, x)
        # K_bf K_fb/σ² and K_bf y/σ².
        added = K_bf @ K_bf.mT / self.noise
        c = K_bf @ y / self.noise
        if (old := self.state) is not None:
            K_ab = self.kernel(old.points, z)
            root = torch.linalg.cholesky(old.K)
            # K_aa⁻¹ K_ab and K_aa⁻¹ m_a; S_a⁻¹ m_a = K_aa⁻¹ m_a + K_aa⁻¹ C_a K_aa⁻¹ m_a.
            A = torch.cholesky_solve(K_ab, root)
            a = torch.cholesky_solve(old.mean[:, None], root)[:, 0]
            added = added + A.mT @ old.C @ A
            c = c + K_ab.mT @ a + A.mT @ (old.C @ a)
        root = torch.linalg.cholesky(K_bb + added)
        mean = K_bb @ torch.cholesky_solve(c[:, None], root)[:, 0]
        return StreamingState(z, mean, added, K_bb)

    def bound(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        """Return F = log N(ŷ; 0, Q + Σ) − ½ tr Σ⁻¹(K − Q), up to a constant of the old posterior.

        ŷ is y and the pseudo-targets D_a S_a⁻¹ m_a, Q is K_·b K_bb⁻¹ K_b· between all of them, and
        Σ holds σ² I and D_a in blocks.

        Args:
            x: inputs, shape (n, 1).
            y: targets, shape (n,).
            z: inducing points, shape (M, 1).
        """
        old, n = self.state, len(x)
        K_bf = self.kernel(z, x)
        Sigma, targets = self.noise * torch.eye(n, dtype=x.dtype), y
        K_diag = self.kernel.diag(x)
        if old is not None:
            # D_a = K_aa C_a⁻¹ K_aa; D_a S_a⁻¹ m_a = K_aa C_a⁻¹ m_a + m_a.
            root = torch.linalg.cholesky(self._with_jitter(old.C))
            D = self._with_jitter(old.K @ torch.cholesky_solve(old.K, root))
            pseudo = old.K @ torch.cholesky_solve(old.mean[:, None], root)[:, 0] + old.mean
            Sigma, targets = torch.block_diag(Sigma, D), torch.cat([y, pseudo])
            K_bf = torch.cat([K_bf, self.kernel(z, old.points)], -1)
        Q = K_bf.mT @ torch.cholesky_solve(K_bf, torch.linalg.cholesky(self._covariance(z)))
        marginal = torch.distributions.MultivariateNormal(torch.zeros_like(targets), Q + Sigma)
        # tr Σ⁻¹(K − Q), in two blocks.
        trace = (K_diag - Q.diagonal()[:n]).sum() / self.noise
        if old is not None:
            root = torch.linalg.cholesky(Sigma[n:, n:])
            rest = self.kernel(old.points, old.points) - Q[n:, n:]
            trace = trace + torch.cholesky_solve(rest, root).diagonal().sum()
        return marginal.log_prob(targets) - 0.5 * trace

    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of f at inputs of shape (n, 1)."""
        if (state := self.state) is None:
            raise ValueError("state must be that after an update, got none")
        K_bs = self.kernel(state.points, x)
        A = torch.cholesky_solve(K_bs, torch.linalg.cholesky(state.K))
        inner = torch.cholesky_solve(state.K @ A, torch.linalg.cholesky(state.K + state.C))
        # K_ss − K_sb K_bb⁻¹ K_bs + K_sb K_bb⁻¹ S_b K_bb⁻¹ K_bs.
        variance = self.kernel.diag(x) - (K_bs * A).sum(0) + (K_bs * inner).sum(0)
        return A.mT @ state.mean, variance

    def _covariance(self, z: Tensor) -> Tensor:
        return self._with_jitter(self.kernel(z, z))

    def _with_jitter(self, matrix: Tensor) -> Tensor:
        scale = self.jitter * matrix.diagonal().mean()
        return matrix + scale * torch.eye(len(matrix), dtype=matrix.dtype)
