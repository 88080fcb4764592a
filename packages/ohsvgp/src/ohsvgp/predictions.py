"""What can be asked of an online Gaussian process: predictions, samples, coefficients."""

from typing import Any, Literal, overload

import torch
from jaxtyping import Float
from torch import Tensor

from ohsvgp import core
from ohsvgp.bases.base import Advance, Basis
from ohsvgp.inducing import Inducing
from ohsvgp.inputs import Clock, as_targets
from ohsvgp.likelihoods import Likelihood
from ohsvgp.reading import read_inputs
from ohsvgp.saved import differences, identity
from ohsvgp.state import OnlineState, hyperparameters
from ohsvgp.step import Move, move
from probseq.gaussians import DiagonalGaussian
from probseq.gaussians import Gaussian as JointGaussian
from probseq.kernels import Kernel
from probseq.linalg import default_jitter

__all__ = ["Predictions"]


class Predictions:
    """The part of ``OnlineGP`` that reads its state and never changes it.

    Attributes:
        kernel: covariance function.
        likelihood: observation model.
        basis: how inducing variables follow the stream.
        whitening: method of ``ohsvgp.whitening.whiten``.
        rel_jitter: its relative jitter; None for the default.
        clock: what tells times since t0; None before the first data.
        time_unit: unit of calendar stamps.
        generator: source of the model's own random numbers.
        dtype: of everything but the clock.
        growth: of the window, from ``ohsvgp.window.growth_factor``.
    """

    kernel: Kernel
    likelihood: Likelihood
    basis: Basis
    whitening: Literal["chol", "eig"]
    rel_jitter: float | None
    clock: Clock | None
    time_unit: str
    growth: float | None
    generator: torch.Generator
    dtype: torch.dtype
    _state: OnlineState | None
    _identity: dict[str, Any]

    @property
    def of_time(self) -> bool:
        """Whether inputs are times; otherwise points, and the window is counted in points."""
        return self.kernel.dim == 1

    @property
    def state(self) -> OnlineState | None:
        """What is remembered of the stream; None before the first update."""
        return self._state

    @overload
    def predict(
        self, t: Any, *, full_cov: Literal[False] = False, include_noise: bool = False
    ) -> DiagonalGaussian: ...
    @overload
    def predict(
        self, t: Any, *, full_cov: Literal[True], include_noise: Literal[False] = False
    ) -> JointGaussian: ...
    def predict(
        self, t: Any, *, full_cov: bool = False, include_noise: bool = False
    ) -> DiagonalGaussian | JointGaussian:
        """Posterior of f, or mean and variance of y, at new inputs; the prior before any update.

        Args:
            t: inputs, anywhere and in any order.
            full_cov: the covariance of all inputs instead of variances.
            include_noise: mean and variance of a new y instead of f.

        Returns:
            A Gaussian with batch dimensions of the series.

        Raises:
            ValueError: bad inputs, or both options at once.
        """
        if full_cov and include_noise:
            raise ValueError(
                "full_cov and include_noise exclude each other: noise is independent across "
                "points, add it to the covariance's diagonal"
            )
        with torch.no_grad():
            latent = self._latent(read_inputs(self, t), full_cov)
            if include_noise:
                return self.likelihood.predictive_moments(latent.mean, latent.variance)
            return latent

    def sample(
        self, t: Any, num_samples: int, generator: torch.Generator | None = None
    ) -> Float[Tensor, "s *b n"]:
        """Draws of f from the posterior, jointly over the inputs.

        Args:
            t: inputs.
            num_samples: S.
            generator: source of randomness; torch's own if None.

        Returns:
            Samples of shape (S, *b, n).

        Raises:
            ValueError: bad inputs, or S below 1.
        """
        if num_samples < 1:
            raise ValueError(f"num_samples must be at least 1, got {num_samples}")
        law = self.predict(t, full_cov=True)
        x = read_inputs(self, t)
        # What round-off does to a posterior is a share of the prior's variance, not of its own.
        jitter = default_jitter(self.dtype) * self.kernel.diag(x).detach()
        covariance = law.covariance + torch.diag_embed(jitter)
        return JointGaussian(law.mean, covariance).rsample((num_samples,), generator=generator)

    def log_prob(self, t: Any, y: Any) -> Float[Tensor, "*b n"]:
        """Log predictive density of every target by itself, noise included, in nats.

        Args:
            t: inputs of the targets, in any order.
            y: targets of shape (*b, n).

        Raises:
            ValueError: bad inputs or targets.
        """
        x = read_inputs(self, t)
        targets = as_targets(y, x.shape[0], None, x)
        self.likelihood.check_targets(targets)
        with torch.no_grad():
            latent = self._latent(x, full_cov=False)
            return self.likelihood.predictive_log_prob(latent.mean, latent.variance, targets)

    def posterior_coefficients(self) -> JointGaussian:
        """Law q(u) of the inducing variables: of f's projections on the basis (thesis C.2).

        Raises:
            ValueError: no data yet.
        """
        return self._law(self._ready("posterior_coefficients").inducing)

    def reconstruct(self, t: Any) -> DiagonalGaussian:
        """F ≈ Σ u_m g_m(t), u ~ q(u): the finite-basis picture of the posterior (thesis C.2).

        Args:
            t: inputs, inside the window.

        Raises:
            ValueError: no data yet, or a basis without orthogonal functions.
        """
        state = self._ready("reconstruct")
        x = read_inputs(self, t)
        g = self.basis.functions(self.kernel, x, state.length).detach()
        # Made anew, not taken from the state: a set may have followed other hyperparameters.
        set_now = self.basis.advance(Advance(self.kernel, state.inducing, x[:0], state.length))
        law = self._law(set_now)
        mean = (g.mT @ law.mean[..., None])[..., 0]
        return DiagonalGaussian(mean, (g * (law.covariance @ g)).sum(-2).expand(mean.shape))

    def _move(self, kernel: Kernel, inducing: Inducing, changed: bool) -> Move:
        return move(
            kernel,
            self._state,
            inducing,
            method=self.whitening,
            rel_jitter=self.rel_jitter,
            changed=changed and self._state is not None,
        )

    def _latent(self, x: Tensor, full_cov: bool) -> DiagonalGaussian | JointGaussian:
        kernel = self.basis.prior(self.kernel)
        K_ss = kernel(x, x) if full_cov else kernel.diag(x)
        state = self._current()
        if state is None:
            mean = torch.zeros_like(K_ss[..., 0] if full_cov else K_ss)
            return JointGaussian(mean, K_ss) if full_cov else DiagonalGaussian(mean, K_ss)
        P = core.features(kernel, state.inducing, state.whitening, x)
        if full_cov:
            return core.predict(state.moments, P, K_ss, full_cov=True)
        latent = core.predict(state.moments, P, K_ss)
        # Round-off in float32 can take a variance that is all but explained below zero.
        floor = torch.finfo(K_ss.dtype).eps * K_ss
        return DiagonalGaussian(latent.mean, torch.maximum(latent.variance, floor))

    def _law(self, inducing: Inducing) -> JointGaussian:
        """Posterior of the variables of a set."""
        state = self._ready("posterior_coefficients")
        kernel = self.basis.prior(self.kernel)
        with torch.no_grad():
            P = state.whitening.apply(state.inducing.cross_inducing(kernel, inducing))
            return core.predict(state.moments, P, inducing.covariance(kernel), full_cov=True)

    def _current(self) -> OnlineState | None:
        """The state under the kernel's hyperparameters of now."""
        old = self._state
        if old is None or not self._changed():
            return old
        step = self._move(self.basis.prior(self.kernel), old.inducing, True)
        site = old.site if step.T is None else core.carry(old.site, step.T)
        now = hyperparameters(self.kernel)
        return OnlineState(old.inducing, step.whitening, site, now, old.length, old.count)

    def _ready(self, caller: str) -> OnlineState:
        state = self._current()
        if state is None:
            raise ValueError(f"{caller} needs data: call update first")
        return state

    def _changed(self) -> bool:
        """Whether hyperparameters are no longer those of the state.

        Raises:
            ValueError: they are not and the basis cannot follow, or another kernel, likelihood or
                basis was put in place since the model was made.
        """
        if (now := identity(self)) != self._identity:
            raise ValueError(
                f"a model must stay of its kind, got {differences(now, self._identity)}: make a "
                "new OnlineGP"
            )
        if self._state is None:
            return False
        changed = not torch.equal(self._state.hyperparameters, hyperparameters(self.kernel))
        if changed and self.basis.fixed_hyperparameters:
            raise ValueError(
                f"kernel must keep its hyperparameters once {type(self.basis).__name__} has "
                "absorbed data, they were changed: its inducing variables cannot be made again"
            )
        return changed
