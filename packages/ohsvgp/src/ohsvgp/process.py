"""A Gaussian process whose inducing variables follow a stream: functions of its state.

An update changes the inducing set (``change_inducing``), then conditions on the data
(``update_site``); the mathematics of both is in ``ohsvgp.core``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ohsvgp import core
from ohsvgp.bases.base import CAN_FOLLOW, Advance, Basis
from ohsvgp.core import CarriedSite, OnlineBound, Posterior, Site
from ohsvgp.inducing import Inducing, continuous, hyperparameters
from ohsvgp.inference.natural import natural_update
from ohsvgp.likelihoods import Gaussian, Likelihood
from ohsvgp.state import OnlineState, UpdateInfo, canonical
from ohsvgp.stream.batch import Batch, Data
from ohsvgp.whitening import Whitening
from probseq.gaussians import DiagonalGaussian, JointGaussian
from probseq.kernels import Kernel

# Inputs predicted at once: their covariances stay in the processor's cache.
_BLOCK = 1024

Inference = Callable[..., tuple[Site, OnlineBound]]


class InducingChange(NamedTuple):
    """The new inducing set, and the old one in its terms."""

    inducing: Inducing  # the new set
    whitening: Whitening  # of its K_uu
    carried: CarriedSite  # the old site as a factor of the new set's v_b


def change_inducing(
    kernel: Kernel,
    old: OnlineState | None,
    inducing: Inducing,
    *,
    rel_jitter: float | None,
    changed: bool,
    alpha: float = 0.0,
) -> InducingChange:
    """Whiten the new inducing set and carry the old site to it.

    The state is None before the first data; ``changed`` says whether hyperparameters differ from
    those of its whitening.
    """
    if old is not None and inducing is old.inducing and not changed:
        return InducingChange(
            inducing, old.whitening, core.carry_site(old.site, None, moments=old.moments)
        )
    if old is None or inducing is old.inducing:
        K_ab = K_bb = inducing.covariance(kernel)
    else:
        K_bb, K_ab = inducing.covariances(kernel, old.inducing)
    whitening = inducing.whitened(K_bb, rel_jitter=rel_jitter)
    if old is None:
        M = inducing.num_inducing
        # No data: G = 0, h = 0.
        return InducingChange(
            inducing,
            whitening,
            core.carry_site(Site(K_bb.new_zeros(M, M), K_bb.new_zeros(M)), None),
        )
    R_a = old.whitening
    # R_a K_aa R_aᵀ, the prior covariance of v_a: I under the old hyperparameters.
    prior_a = torch.eye(old.inducing.num_inducing, dtype=K_bb.dtype, device=K_bb.device)
    if inducing is old.inducing:
        # The jitter is noise on u itself, so the same set shares it.
        K_ab = K_bb + torch.diag_embed(inducing.noise(whitening.jitter))
        prior_a = core.transition(R_a, K_ab, R_a)
    elif changed:
        K_aa = old.inducing.covariance(kernel)
        jitter = torch.diag_embed(old.inducing.noise(R_a.jitter))
        prior_a = core.transition(R_a, K_aa + jitter, R_a)
    T = core.transition(R_a, K_ab, whitening)
    # v_a | v_b ~ N(T v_b, R_a K_aa R_aᵀ − T Tᵀ).
    carried = core.carry_site(old.site, T, prior_a - T @ T.mT, alpha=alpha, moments=old.moments)
    return InducingChange(inducing, whitening, carried)


def update_site(
    kernel: Kernel, likelihood: Likelihood, step: InducingChange, data: Data, infer: Inference
) -> tuple[Site, Posterior, OnlineBound]:
    """Condition on new data: in closed form under Gaussian noise, by ``infer`` otherwise.

    Return the new site on v_b, the moments of q(v_b), and the online bound of the data, which may
    be empty.
    """
    smooth = continuous(kernel)
    Psi = core.features(kernel, step.inducing, step.whitening, data.x)
    process, num_weights = step.inducing.process, step.inducing.num_weights
    K_ff = process(smooth).diag(data.x)
    if not isinstance(likelihood, Gaussian):
        site, bound = infer(
            likelihood, step.carried, Psi, K_ff, data.y, mask=data.mask, num_weights=num_weights
        )
        return site, core.posterior(site), bound
    noise = likelihood.noise[..., None]
    if smooth is not kernel:  # white noise of the kernel is noise of the observations
        noise = noise + process(kernel).diag(data.x) - K_ff
    if data.weights is not None:
        noise = noise / data.weights
    # Sites N(f; y, σ²): λ = 1/σ² and s = y/σ².
    precision = (1 / noise).expand(*noise.shape[:-1], data.y.shape[-1])
    if data.mask is not None:
        precision = precision * data.mask
    site = core.whitened_update(step.carried.site, Psi, precision, precision * data.y)
    moments = core.posterior(site)
    bound = core.online_bound(
        step.carried,
        site,
        Psi,
        K_ff,
        data.y,
        noise,
        mask=data.mask,
        moments=moments,
        num_weights=num_weights,
    )
    return site, moments, bound


@dataclass(frozen=True, eq=False)
class Process:
    """Prior, observation model and inducing variables; no state of its own.

    ``OnlineGP`` keeps the state and reads what users hand in; here a state goes in, None before the
    first data, and a new one comes out; nothing is changed.
    """

    kernel: Kernel  # covariance function
    likelihood: Likelihood  # observation model
    basis: Basis  # how inducing variables follow the stream, bound to the kernel
    alpha: float = 0.0  # of ``core.carry_site``
    rel_jitter: float | None = None  # of ``ohsvgp.whitening.whiten``
    infer: Inference = natural_update  # of ``update_site``
    # Whether any basis keeps its inducing set while the window does not change
    reuse_inducing: bool = False

    def update(
        self, state: OnlineState | None, batch: Batch, generator: torch.Generator
    ) -> tuple[OnlineState, UpdateInfo]:
        """Absorb new observations.

        The generator, which the inducing set may draw from, is advanced.
        """
        changed = self.changed(state)
        with torch.no_grad():
            inducing = self._advance(state, batch, generator, changed)
            step = self._change(state, inducing, changed)
            site, moments, bound = update_site(
                self.prior, self.likelihood, step, batch.data, self.infer
            )
        info = UpdateInfo(
            energy=bound.value,
            lost_information=bound.lost_information,
            unexplained=bound.unexplained,
            jitter_used=float(step.whitening.relative_jitter.max()),
            n_new=batch.data.x.shape[0],
            t_end=batch.clock.user(batch.length) if self.kernel.dim == 1 else batch.length,
        )
        frozen = None if changed or state is None else state.hyperparameters
        now = hyperparameters(self.kernel) if frozen is None else frozen
        new = OnlineState(inducing, step.whitening, site, now, batch.length, batch.count, moments)
        return canonical(new, self.basis.restore, state), info

    def energy(self, state: OnlineState | None, batch: Batch, generator: torch.Generator) -> Tensor:
        """Return ``UpdateInfo.energy`` of new data, differentiable in kernel and likelihood.

        Arguments are those of ``update``.
        """
        self.changed(state)
        # With gradients: sets of cosines and of features depend on hyperparameters themselves.
        inducing = self._advance(state, batch, generator, True)
        return self._energy(state, inducing, batch, True)

    def _energy(
        self, state: OnlineState | None, inducing: Inducing, batch: Batch, changed: bool
    ) -> Tensor:
        step = self._change(state, inducing, changed)
        *_, bound = update_site(self.prior, self.likelihood, step, batch.data, natural_update)
        return bound.value

    def current(self, state: OnlineState) -> OnlineState:
        """Return the state under the kernel's hyperparameters of now."""
        if not self.changed(state):
            return state
        step = self._change(state, state.inducing, True)
        now = hyperparameters(self.kernel)
        return OnlineState(
            state.inducing, step.whitening, step.carried.site, now, state.length, state.count
        )

    def changed(self, state: OnlineState | None) -> bool:
        """Return whether hyperparameters are no longer those of the state."""
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

    def predict(self, state: OnlineState | None, x: Tensor) -> DiagonalGaussian:
        """Return the posterior of f at each x, of shape (n, d); the prior without a state."""
        if state is None:
            K_ss = self.prior.diag(x)
            return DiagonalGaussian(torch.zeros_like(K_ss), K_ss)
        prior, K_ss = self.prior, state.inducing.process(self.prior).diag(x)
        now, num_weights = self.current(state), state.inducing.num_weights
        blocks: list[DiagonalGaussian] = []
        for inputs, k in zip(x.split(_BLOCK, -2), K_ss.split(_BLOCK, -1), strict=True):
            P = core.features(prior, now.inducing, now.whitening, inputs)
            blocks.append(core.predict(now.moments, P, k, num_weights=num_weights))
        if len(blocks) == 1:
            return blocks[0]
        return DiagonalGaussian(
            torch.cat([block.mean for block in blocks], -1),
            torch.cat([block.variance for block in blocks], -1),
        )

    def predict_joint(self, state: OnlineState | None, x: Tensor) -> JointGaussian:
        """Return the joint posterior of f at all x, of shape (n, d); arguments as ``predict``'s."""
        if state is None:
            K_ss = self.prior(x, x)
            return JointGaussian(torch.zeros_like(K_ss[..., 0]), K_ss)
        prior, K_ss = self.prior, state.inducing.process(self.prior)(x, x)
        now, num_weights = self.current(state), state.inducing.num_weights
        P = core.features(prior, now.inducing, now.whitening, x)
        return core.predict_joint(now.moments, P, K_ss, num_weights=num_weights)

    def project(self, state: OnlineState, inducing: Inducing | None = None) -> JointGaussian:
        """Return the posterior of an inducing set's variables; of the state's own if None."""
        now, prior = self.current(state), self.prior
        inducing = now.inducing if inducing is None else inducing
        P = now.whitening.apply(now.inducing.cross_inducing(prior, inducing))
        return core.predict_joint(now.moments, P, inducing.covariance(prior))

    def reconstruct(self, state: OnlineState, x: Tensor) -> DiagonalGaussian:
        """Return f ≈ Σ u_m g_m(x), u ~ q(u), at x of shape (n, 1) in the window (thesis C.2)."""
        g = self.basis.functions(self.kernel, x, state.length)
        # Made anew, not taken from the state: a set may have followed other hyperparameters.
        set_now = self.basis.advance(Advance(self.kernel, state.inducing, x[:0], state.length))
        u = self.project(state, set_now)
        mean = (g.mT @ u.mean[..., None])[..., 0]
        # gᵀ S g, which round-off can take below zero.
        variance = (g * (u.covariance @ g)).sum(-2).clamp_min(0).expand(mean.shape)
        return DiagonalGaussian(mean, variance)

    @property
    def prior(self) -> Kernel:
        """Return the kernel of all covariances; random features replace the user's."""
        return self.basis.prior(self.kernel)

    def _advance(
        self, state: OnlineState | None, batch: Batch, generator: torch.Generator, changed: bool
    ) -> Inducing:
        """Return the inducing set after the new inputs, optimised if the basis does so."""
        if state is not None and batch.length == state.length:
            # A set that the window alone makes is the same set then, without its jitter's noise.
            same = self.basis.of_window and not changed
            if same or self.reuse_inducing:
                return state.inducing
        step = Advance(
            kernel=self.prior,
            previous=None if state is None else state.inducing,
            inputs=batch.data.x,
            length=batch.length,
            origin=float(batch.clock.origin) if batch.clock.unit is None else 0.0,
            generator=generator,
        )

        def objective(candidate: Inducing) -> Tensor:
            with torch.enable_grad():
                return self._energy(state, candidate, batch, changed).sum()

        return self.basis.refine(self.basis.advance(step), objective, step)

    def _change(
        self, state: OnlineState | None, inducing: Inducing, changed: bool
    ) -> InducingChange:
        return change_inducing(
            self.prior,
            state,
            inducing,
            rel_jitter=self.rel_jitter,
            changed=changed and state is not None,
            alpha=self.alpha,
        )
