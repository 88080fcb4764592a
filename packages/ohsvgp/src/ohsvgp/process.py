"""A Gaussian process whose inducing variables follow a stream: functions of its state."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, overload

import torch
from torch import Tensor

from ohsvgp import core
from ohsvgp.bases.base import CAN_FOLLOW, Advance, Basis
from ohsvgp.core import Bound, Site
from ohsvgp.inducing import Inducing, hyperparameters
from ohsvgp.inference.natural import natural_update
from ohsvgp.likelihoods import Likelihood
from ohsvgp.saved import fresh
from ohsvgp.state import OnlineState, UpdateInfo
from ohsvgp.step import Move, absorb, move
from ohsvgp.stream.batch import Batch, Data
from ohsvgp.stream.clock import Clock
from probseq.gaussians import DiagonalGaussian, Gaussian
from probseq.kernels import Kernel

__all__ = ["Process"]

# Inputs predicted at once: their covariances stay in the processor's cache.
_BLOCK = 1024


@dataclass(frozen=True, eq=False)
class Process:
    """Prior, observation model and inducing variables; no state of its own.

    ``OnlineGP`` keeps the state and reads what users hand in; here a state goes in, None before the
    first data, and a new one comes out; nothing is changed.

    Attributes:
        kernel: covariance function.
        likelihood: observation model.
        basis: how inducing variables follow the stream, bound to the kernel.
        whitening: of ``ohsvgp.whitening.whiten``.
        alpha: of ``core.carry``.
        rel_jitter: of ``ohsvgp.whitening.whiten``.
        infer: of ``absorb``.
        stays: whether the inducing set of any basis stays where the window stays.

    Example:
        >>> import torch
        >>> from ohsvgp import Gaussian, LegS
        >>> from ohsvgp.process import Process
        >>> from probseq.kernels import RBF
        >>> generator = torch.Generator().manual_seed(0)
        >>> process = Process.init(RBF(1), Gaussian(0.01), LegS(30), generator)
        >>> t, state = torch.linspace(0.0, 10.0, 200), None
        >>> for part in t.chunk(4):
        ...     batch = process.batch(state, part, part.sin())
        ...     state, info = process.update(state, batch, generator)
        >>> bool((process.predict(state, t.double()[:, None]).mean - t.sin()).abs().max() < 0.05)
        True
    """

    kernel: Kernel
    likelihood: Likelihood
    basis: Basis
    whitening: Literal["chol", "eig"] = "chol"
    alpha: float = 0.0
    rel_jitter: float | None = None
    infer: Callable[..., tuple[Site, Bound]] = natural_update
    stays: bool = False

    @classmethod
    def init(
        cls,
        kernel: Kernel,
        likelihood: Likelihood,
        basis: Basis,
        generator: torch.Generator,
        **options: Any,
    ) -> "Process":
        """A process with a copy of the basis, bound to the kernel; all is converted to float64.

        Args:
            kernel: covariance function, converted in place.
            likelihood: observation model, converted in place.
            basis: how inducing variables follow the stream.
            generator: source of what the basis draws for the kernel; it is advanced.
            options: the other attributes.
        """
        own = copy.deepcopy(basis)
        own.bind(kernel.double(), generator)
        return cls(kernel, likelihood.double(), own, **options)

    def batch(
        self, state: OnlineState | None, x: Tensor, y: Tensor, mask: Tensor | None = None
    ) -> Batch:
        """Tensors as ``update`` takes them; they are not checked.

        Args:
            state: what is remembered so far.
            x: sorted times since the start of the window, shape (n,), or points (n, d).
            y: targets of shape (*b, n).
            mask: True at targets that count.
        """
        count = len(x) + (0 if state is None else state.count)
        end = max(0.0 if state is None else state.length, float(x.max())) if x.ndim == 1 else count
        data = Data(fresh(x.double().reshape(len(x), -1)), fresh(y.double()), mask)
        return Batch(Clock(0.0), data, float(end), count)

    def update(
        self, state: OnlineState | None, batch: Batch, generator: torch.Generator
    ) -> tuple[OnlineState, UpdateInfo]:
        """Absorb new observations.

        Args:
            state: what is remembered so far; None before the first data.
            batch: new observations.
            generator: source of randomness of the inducing set; it is advanced.

        Raises:
            ValueError: hyperparameters have changed and the basis cannot follow.
            CholeskyError: K_uu stays indefinite at a relative jitter of 1e-4.
        """
        changed = self.changed(state)
        with torch.no_grad():
            inducing = self._advance(state, batch, generator, changed)
            step = self._move(state, inducing, changed)
            site, moments, bound = absorb(self.prior, self.likelihood, step, batch.data, self.infer)
        known = None if changed or state is None else state.hyperparameters
        now = hyperparameters(self.kernel) if known is None else known
        new = OnlineState(inducing, step.whitening, site, now, batch.length, batch.count, moments)
        info = UpdateInfo(
            energy=bound.value,
            lost_information=bound.lost_information,
            unexplained=bound.unexplained,
            rank=int(step.whitening.rank.min()),
            jitter_used=float(step.whitening.relative_jitter.max()),
            n_new=batch.data.x.shape[0],
            t_end=batch.clock.user(batch.length) if self.kernel.dim == 1 else batch.length,
        )
        return new.kept(self.basis.restore, state), info

    def energy(self, state: OnlineState | None, batch: Batch, generator: torch.Generator) -> Tensor:
        """``UpdateInfo.energy`` of new data, shape (*b), differentiable in kernel and likelihood.

        Args:
            state: what is remembered so far; None before the first data.
            batch: new observations.
            generator: source of randomness of the inducing set; it is advanced.

        Raises:
            ValueError: as ``update``.
            CholeskyError: as ``update``.
        """
        self.changed(state)
        # With gradients: sets of cosines and of features depend on hyperparameters themselves.
        inducing = self._advance(state, batch, generator, True)
        step = self._move(state, inducing, True)
        return absorb(self.prior, self.likelihood, step, batch.data).bound.value

    def current(self, state: OnlineState) -> OnlineState:
        """The state under the kernel's hyperparameters of now.

        Raises:
            ValueError: they have changed and the basis cannot follow.
        """
        if not self.changed(state):
            return state
        step = self._move(state, state.inducing, True)
        now = hyperparameters(self.kernel)
        return OnlineState(
            state.inducing, step.whitening, step.carried.site, now, state.length, state.count
        )

    def changed(self, state: OnlineState | None) -> bool:
        """Whether hyperparameters are no longer those of the state.

        Raises:
            ValueError: they are not, and the basis cannot follow.
        """
        if state is None:
            return False
        changed = not torch.equal(state.hyperparameters, hyperparameters(self.kernel))
        if changed and self.basis.fixed_hyperparameters:
            raise ValueError(
                f"kernel must keep its hyperparameters once {type(self.basis).__name__} has "
                "absorbed data, they were changed: its inducing variables cannot be made again. "
                f"{CAN_FOLLOW}"
            )
        return changed

    @overload
    def predict(
        self, state: OnlineState | None, x: Tensor, *, full_cov: Literal[False] = False
    ) -> DiagonalGaussian: ...
    @overload
    def predict(
        self, state: OnlineState | None, x: Tensor, *, full_cov: Literal[True]
    ) -> Gaussian: ...
    @overload
    def predict(
        self, state: OnlineState | None, x: Tensor, *, full_cov: bool
    ) -> DiagonalGaussian | Gaussian: ...
    def predict(
        self, state: OnlineState | None, x: Tensor, *, full_cov: bool = False
    ) -> DiagonalGaussian | Gaussian:
        """Posterior of f at x of shape (n, d); the prior without a state.

        Args:
            state: what is remembered; None before the first data.
            x: inputs.
            full_cov: the covariance of all inputs instead of variances.
        """
        prior = self.prior
        known = prior if state is None else state.inducing.process(prior)
        K_ss = known(x, x) if full_cov else known.diag(x)
        if state is None:
            mean = torch.zeros_like(K_ss[..., 0] if full_cov else K_ss)
            return Gaussian(mean, K_ss) if full_cov else DiagonalGaussian(mean, K_ss)
        now = self.current(state)
        weights = now.inducing.num_weights
        if full_cov:
            P = core.features(prior, now.inducing, now.whitening, x)
            return core.predict(now.moments, P, K_ss, full_cov=True, weights=weights)
        parts = [
            core.predict(
                now.moments,
                core.features(prior, now.inducing, now.whitening, part),
                k,
                weights=weights,
            )
            for part, k in zip(x.split(_BLOCK, -2), K_ss.split(_BLOCK, -1), strict=True)
        ]
        if len(parts) == 1:
            return parts[0]
        return DiagonalGaussian(
            torch.cat([part.mean for part in parts], -1),
            torch.cat([part.variance for part in parts], -1),
        )

    def project(self, state: OnlineState, inducing: Inducing | None = None) -> Gaussian:
        """Posterior of the variables of an inducing set; of the state's own if None."""
        now, prior = self.current(state), self.prior
        inducing = now.inducing if inducing is None else inducing
        P = now.whitening.apply(now.inducing.cross_inducing(prior, inducing))
        return core.predict(now.moments, P, inducing.covariance(prior), full_cov=True)

    def reconstruct(self, state: OnlineState, x: Tensor) -> DiagonalGaussian:
        """F ≈ Σ u_m g_m(x), u ~ q(u), at x of shape (n, 1) inside the window (thesis C.2).

        Raises:
            ValueError: the basis has no orthogonal functions.
        """
        g = self.basis.functions(self.kernel, x, state.length)
        # Made anew, not taken from the state: a set may have followed other hyperparameters.
        set_now = self.basis.advance(Advance(self.kernel, state.inducing, x[:0], state.length))
        law = self.project(state, set_now)
        mean = (g.mT @ law.mean[..., None])[..., 0]
        # gᵀ S g, which round-off can take below zero.
        variance = (g * (law.covariance @ g)).sum(-2).clamp_min(0).expand(mean.shape)
        return DiagonalGaussian(mean, variance)

    @property
    def prior(self) -> Kernel:
        """The kernel that all covariances come from; random features replace the user's."""
        return self.basis.prior(self.kernel)

    def _advance(
        self, state: OnlineState | None, batch: Batch, generator: torch.Generator, changed: bool
    ) -> Inducing:
        """The inducing set after the new inputs, optimised if the basis does so."""
        if state is not None and batch.length == state.length:
            # A set that the window alone makes is the same set then, without its jitter's noise.
            same = self.basis.of_window and not changed
            if same or self.stays:
                return state.inducing
        step = Advance(
            kernel=self.prior,
            previous=None if state is None else state.inducing,
            inputs=batch.data.x,
            length=batch.length,
            origin=float(batch.clock.origin) if batch.clock.unit is None else 0.0,
            generator=generator,
        )
        inducing = self.basis.advance(step)

        def objective(candidate: Inducing) -> Tensor:
            with torch.enable_grad():
                step = self._move(state, candidate, changed)
                return absorb(self.prior, self.likelihood, step, batch.data).bound.value.sum()

        return self.basis.refine(inducing, objective, step)

    def _move(self, state: OnlineState | None, inducing: Inducing, changed: bool) -> Move:
        return move(
            self.prior,
            state,
            inducing,
            method=self.whitening,
            rel_jitter=self.rel_jitter,
            changed=changed and state is not None,
            alpha=self.alpha,
        )
