"""Gaussian processes that learn from a stream."""

import copy
import warnings
from functools import partial
from typing import Any, Literal, NamedTuple, overload

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ohsvgp import core
from ohsvgp.bases.base import Advance, Basis, TimeBasis
from ohsvgp.bases.learning import AdamSteps
from ohsvgp.bases.points import PointBasis
from ohsvgp.exact import log_marginal_likelihood
from ohsvgp.hyperparameters import FitInfo, maximise
from ohsvgp.inducing import Inducing
from ohsvgp.inputs import Clock, as_targets, nanoseconds, start_clock
from ohsvgp.likelihoods import Gaussian, Likelihood
from ohsvgp.natural import natural_update
from ohsvgp.reading import Batch, Stream
from ohsvgp.saved import (
    basis_settings,
    clock_from_tensors,
    clock_tensors,
    differences,
    generator_from_tensors,
    pack,
    unpack,
)
from ohsvgp.state import OnlineState, UpdateInfo, hyperparameters
from ohsvgp.step import Move, absorb, move
from ohsvgp.variational import variational_update
from ohsvgp.whitening import check_jitter
from ohsvgp.window import growth_factor
from probseq.checks import check_counts, check_whole
from probseq.gaussians import DiagonalGaussian
from probseq.gaussians import Gaussian as JointGaussian
from probseq.kernels import Kernel
from probseq.linalg import default_jitter

__all__ = ["LostInformationWarning", "OnlineGP"]

# Up to here the exact evidence takes at most about a second an evaluation.
_MAX_EXACT = 2000
# The noise stays above this share of the mean square of y: at zero the evidence has no maximum
# for targets that the kernel can interpolate.
_NOISE_FLOOR = 1e-6
# Nats lost per new observation from which on an update warns: errors of more than four predicted
# standard deviations were found above it only.
_MUCH_LOST = 0.1
_LEAST_LOST = 1.0


class LostInformationWarning(UserWarning):
    """An update lost much of what the model knew: M inducing variables cannot hold the stream."""


class _Lost(NamedTuple):
    """Nats that updates lost, observations in all and since the last move, and if it was told."""

    total: float = 0.0
    seen: int = 0
    since_move: int = 0
    warned: bool = False


class OnlineGP:
    """Sparse Gaussian process that absorbs a stream and never sees old data again (thesis ch. 4).

    Inducing variables follow the stream as ``basis`` says; the posterior on them is carried along
    exactly where the inducing set stays, and by the online bound of Bui et al. 2017 or its form of
    power EP (``alpha``) where it moves. Memory is O(M²), whatever the length of the stream. All
    algebra is in float64: K_uu of smooth kernels is nearly singular.

    Inputs are torch tensors, numpy arrays, lists or pandas series. With a kernel of dim 1 they are
    times of shape (n,), numbers or calendar stamps; otherwise points of shape (n, dim). Targets
    have shape (*b, n): leading dimensions are independent series that share the inputs.

    Args:
        kernel: covariance function; converted to float64 in place.
        likelihood: observation model; converted to float64 in place.
        basis: how inducing variables follow the stream.
        whitening: "chol", or "eig" to drop directions instead of adding jitter.
        alpha: how a moving inducing set takes what the new variables do not explain of the old
            ones, from 0 to 1: as known exactly, which is the thesis' variational bound and
            overconfident where M is too small; or as uncertain, by power EP (``core.carry``).
        rel_jitter: jitter relative to the mean of K_uu's diagonal; 1e-8 if None.
        t0: where the window starts; the first stamp if None.
        rebase: when the window's end moves. "task": with every update, to its last stamp.
            "grow:1.05": when a stamp passes it, to 1.05 times the time since t0, so that few
            updates of one point move it. "manual": only by ``t_end`` or ``rebase``.
        time_unit: numpy's code of the unit that calendar stamps are counted in, e.g. "D" or "h".
        inference: for other likelihoods than the Gaussian, whose updates are in closed form:
            natural-gradient steps, or Adam on the uncollapsed bound, as the thesis has it.
        dtype: of predictions, samples and log densities, float32 or float64.
        seed: of the model's own random numbers (random inducing points, random features).

    Raises:
        ValueError: an option that is not one of the above, ``rel_jitter`` not in (0, 1e-4],
            ``alpha`` not in [0, 1], a kernel that the basis cannot serve, or ``t0`` or ``rebase``
            for points, not times.

    Example:
        >>> import torch
        >>> from ohsvgp import Gaussian, LegS, OnlineGP
        >>> from probseq.kernels import RBF
        >>> t = torch.linspace(0.0, 10.0, 200)
        >>> gp = OnlineGP(RBF(1), Gaussian(0.01), LegS(30))
        >>> for part in torch.arange(200).chunk(4):
        ...     info = gp.update(t[part], t[part].sin())
        >>> bool((gp.predict(t).mean - t.sin()).abs().max() < 0.05)
        True
    """

    def __init__(
        self,
        kernel: Kernel,
        likelihood: Likelihood,
        basis: Basis,
        *,
        whitening: Literal["chol", "eig"] = "chol",
        alpha: float = 0.1,
        rel_jitter: float | None = None,
        t0: Any = None,
        rebase: str = "task",
        time_unit: str = "D",
        inference: Literal["natural"] | AdamSteps = "natural",
        dtype: torch.dtype = torch.float64,
        seed: int = 0,
    ) -> None:
        if whitening not in ("chol", "eig"):
            raise ValueError(f'whitening must be "chol" or "eig", got {whitening!r}')
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha must be from 0 to 1, got {alpha}")
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
        if isinstance(inference, AdamSteps):
            self._infer = partial(
                variational_update, steps=inference.steps, learning_rate=inference.learning_rate
            )
        else:
            if inference not in ("natural",):
                raise ValueError(f'inference must be "natural" or AdamSteps, got {inference!r}')
            self._infer = natural_update
        self.growth = growth_factor(rebase)
        check_whole(seed=seed)
        check_jitter(rel_jitter)
        self.kernel = kernel.double()
        self.likelihood = likelihood.double()
        self.whitening: Literal["chol", "eig"] = whitening
        self.alpha = float(alpha)
        self.rel_jitter = rel_jitter
        self.time_unit = time_unit
        self.dtype = dtype
        self.generator = torch.Generator(kernel.raw_lengthscale.device).manual_seed(seed)
        # A copy: what the basis draws for this kernel belongs to this model.
        self.basis = copy.deepcopy(basis)
        self.basis.bind(self.kernel, self.generator)
        if not self.of_time and (t0 is not None or rebase != "task"):
            raise ValueError(
                f"t0 and rebase must be left out for points of dim {kernel.dim}: they have no time"
            )
        nanoseconds(time_unit)
        self.clock: Clock | None = None if t0 is None else start_clock([t0], time_unit)
        self._state: OnlineState | None = None
        self._lost = _Lost()
        self._identity = self._settings()

    @property
    def of_time(self) -> bool:
        """Whether inputs are times; otherwise points, and the window is counted in points."""
        return self.kernel.dim == 1

    @property
    def state(self) -> OnlineState | None:
        """What is remembered of the stream; None before the first update."""
        return self._state

    def update(
        self,
        t: Any,
        y: Any,
        *,
        mask: Any = None,
        missing: Literal["raise", "drop"] = "raise",
        sort: bool = False,
        t_end: Any = None,
    ) -> UpdateInfo:
        """Absorb new observations; one is enough. ``partial_fit`` is the same.

        Args:
            t: stamps of shape (n,), sorted, not before t0; later than what came before or inside
                the window, duplicates allowed. Points of shape (n, dim) if the kernel's dim is
                not 1.
            y: targets of shape (*b, n).
            mask: False at targets to be ignored, of y's shape (leading dimensions may be left out).
            missing: what NaN in y means: an error, or a gap ("drop").
            sort: sort by time first.
            t_end: move the window's end at least to here; it never moves back.

        Returns:
            The online objective, the information lost by moving, and what the factorisation took.

        Raises:
            ValueError: bad shapes, NaN or infinity, unsorted or too early stamps, targets outside
                the likelihood's support, no first point and no ``t_end``, or hyperparameters
                changed under a basis that cannot follow. The model is then as it was before.
            CholeskyError: K_uu stays indefinite at a relative jitter of 1e-4.

        Warns:
            LostInformationWarning: more than a nat, and more than a tenth of a nat per observation,
                was lost since the inducing set last moved, or in all; once a model.
        """
        batch = self._read(t, y, mask=mask, missing=missing, sort=sort, t_end=t_end)
        changed = self._changed()
        kernel = self.basis.prior(self.kernel)
        generator = _twin(self.generator)
        with torch.no_grad():
            inducing = self._advance(kernel, batch, generator, changed)
            step = self._move(kernel, inducing, changed)
            site, bound = absorb(kernel, self.likelihood, step, batch.data, self._infer)
        state = OnlineState(
            inducing,
            step.whitening,
            site,
            hyperparameters(self.kernel),
            batch.length,
            batch.count,
        ).kept(self.basis.restore, self._state)
        info = UpdateInfo(
            energy=bound.value,
            lost_information=bound.lost_information,
            unexplained=bound.unexplained,
            rank=int(step.whitening.rank.min()),
            jitter_used=float(step.whitening.relative_jitter.max()),
            n_new=batch.data.x.shape[0],
            t_end=batch.clock.user(batch.length) if self.of_time else batch.length,
        )
        self.clock, self.generator, self._state = batch.clock, generator, state
        self._warn_of_loss(info)
        return info

    partial_fit = update

    def updated(self, t: Any, y: Any, **options: Any) -> "OnlineGP":
        """A new model that has absorbed the data; this one stays as it is.

        The two share nothing that can change.

        Args:
            t: as in ``update``.
            y: as in ``update``.
            options: as in ``update``.
        """
        twin = copy.copy(self)
        # At once, for what a basis holds of the kernel.
        parts = (self.kernel, self.likelihood, self.basis)
        twin.kernel, twin.likelihood, twin.basis = copy.deepcopy(parts)
        twin.update(t, y, **options)
        return twin

    def fit_hyperparameters(
        self,
        t: Any,
        y: Any,
        *,
        mask: Any = None,
        missing: Literal["raise", "drop"] = "raise",
        steps: int = 100,
    ) -> FitInfo:
        """Fit the parameters of kernel and likelihood to data, without absorbing them.

        Before any data, with a Gaussian likelihood and at most 2000 points, by the exact log
        marginal likelihood (ML-II); otherwise by ``energy`` of these data, which sees the old ones
        through the posterior. L-BFGS on the unconstrained parameters; those with
        ``requires_grad=False`` stay, and the Gaussian noise cannot fall below 1e-6 of the mean
        square of y. The best parameters that were met are kept. Bases that learn inducing points
        do not learn them meanwhile.

        Args:
            t: as in ``update``.
            y: as in ``update``.
            mask: as in ``update``.
            missing: as in ``update``.
            steps: iterations of L-BFGS at most.

        Returns:
            The objective before and after, and how often it failed.

        Raises:
            ValueError: bad data, ``steps`` below 1, no parameter to fit, or data have been absorbed
                under a basis whose hyperparameters must stay.
            CholeskyError: the objective cannot be computed at the hyperparameters before.
        """
        if self._state is not None and self.basis.fixed_hyperparameters:
            raise ValueError(
                f"kernel must keep its hyperparameters once {type(self.basis).__name__} has "
                "absorbed data: fit them before the first update"
            )
        batch = self._read(t, y, mask=mask, missing=missing)
        likelihood, targets = self.likelihood, batch.targets()
        candidates = [*self.kernel.parameters(), *likelihood.parameters()]
        parameters = [parameter for parameter in candidates if parameter.requires_grad]
        floors = [torch.zeros_like(parameter.detach()) for parameter in parameters]
        if isinstance(likelihood, Gaussian):
            # A noise that the user chose lower than that may stay.
            floor = _NOISE_FLOOR * targets.square().sum() / max(1, targets.numel())
            lowest = torch.minimum(floor, 0.1 * likelihood.noise.detach())
            floors = [
                lowest if parameter is likelihood.raw_noise else floor
                for parameter, floor in zip(parameters, floors, strict=True)
            ]
        search = partial(
            maximise, parameters=parameters, floors=floors, count=targets.numel(), steps=steps
        )
        x, y, chosen = batch.data
        if self._state is None and isinstance(likelihood, Gaussian) and len(x) <= _MAX_EXACT:
            return search(
                lambda: log_marginal_likelihood(
                    self.kernel, likelihood.noise, x, y, mask=chosen
                ).sum(),
                name="evidence",
            )
        twin = copy.copy(self)
        if isinstance(self.basis, PointBasis):
            twin.basis = self.basis.without_learning()
        return search(lambda: twin._energy(batch).sum(), name="energy")

    def rebase(self, t_end: Any) -> UpdateInfo:
        """Move the window's end without new data.

        Args:
            t_end: the new end; an earlier one than now changes nothing.

        Raises:
            ValueError: as ``update``.
        """
        return self.update([], self.kernel.raw_lengthscale.new_zeros(0), t_end=t_end)

    def energy(self, t: Any, y: Any, **options: Any) -> Float[Tensor, "*b"]:
        """``UpdateInfo.energy`` of new data, differentiable in kernel and likelihood.

        Nothing is absorbed.

        Args:
            t: as in ``update``.
            y: as in ``update``.
            options: as in ``update``.
        """
        return self._energy(self._read(t, y, **options))

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
            latent = self._latent(self._stream().inputs(t), full_cov)
            if include_noise:
                latent = self.likelihood.predictive_moments(latent.mean, latent.variance)
            return self._given(latent)

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
        check_counts(num_samples=num_samples)
        x = self._stream().inputs(t)
        with torch.no_grad():
            law = self._latent(x, full_cov=True)
            # What round-off does to a posterior is a share of the prior's variance, not of its own.
            jitter = default_jitter(x.dtype) * self.kernel.diag(x)
            law = JointGaussian(law.mean, law.covariance + torch.diag_embed(jitter))
            return law.rsample((num_samples,), generator=generator).to(self.dtype)

    def log_prob(self, t: Any, y: Any) -> Float[Tensor, "*b n"]:
        """Log predictive density of every target by itself, noise included, in nats.

        Args:
            t: inputs of the targets, in any order.
            y: targets of shape (*b, n).

        Raises:
            ValueError: bad inputs or targets.
        """
        x = self._stream().inputs(t)
        targets = as_targets(y, x.shape[0], None, x)
        self.likelihood.check_targets(targets)
        with torch.no_grad():
            latent = self._latent(x, full_cov=False)
            found = self.likelihood.predictive_log_prob(latent.mean, latent.variance, targets)
            return found.to(self.dtype)

    def posterior_coefficients(self) -> JointGaussian:
        """Law q(u) of the inducing variables: of f's projections on the basis (thesis C.2).

        Raises:
            ValueError: no data yet.
        """
        return self._given(self._law(self._ready("posterior_coefficients").inducing))

    def reconstruct(self, t: Any) -> DiagonalGaussian:
        """F ≈ Σ u_m g_m(t), u ~ q(u): the finite-basis picture of the posterior (thesis C.2).

        Args:
            t: inputs, inside the window.

        Raises:
            ValueError: no data yet, or a basis without orthogonal functions.
        """
        state = self._ready("reconstruct")
        x = self._stream().inputs(t)
        g = self.basis.functions(self.kernel, x, state.length).detach()
        # Made anew, not taken from the state: a set may have followed other hyperparameters.
        set_now = self.basis.advance(Advance(self.kernel, state.inducing, x[:0], state.length))
        law = self._law(set_now)
        mean = (g.mT @ law.mean[..., None])[..., 0]
        # gᵀ S g, which round-off can take below zero.
        variance = (g * (law.covariance @ g)).sum(-2).clamp_min(0).expand(mean.shape)
        return self._given(DiagonalGaussian(mean, variance))

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that predictions and further updates need, as a flat dict of tensors."""
        return pack(
            self._settings(),
            {
                "generator": {"": self.generator.get_state()},
                "kernel": self.kernel.state_dict(),
                "likelihood": self.likelihood.state_dict(),
                "basis": self.basis.tensors(),
                "clock": clock_tensors(self.clock),
                **({} if self._state is None else self._state.to_tensors()),
            },
        )

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Take over a saved state; predictions are then equal to the last bit.

        Args:
            tensors: from ``state_dict`` of a model made with the same arguments.

        Raises:
            ValueError: the state of another schema, kernel, likelihood, basis, M or dtype, or one
                that is not as it was saved. The model is then as it was before.
        """
        device = self.kernel.raw_lengthscale.device
        groups = unpack(tensors, self._settings(), device, source="OnlineGP.state_dict")
        # The basis and the generator refuse what is not their own; until then nothing is changed.
        self.basis.load_tensors(groups.get("basis", {}))
        generator_from_tensors(self.generator, groups["generator"][""])
        self.kernel.load_state_dict(groups["kernel"])
        self.likelihood.load_state_dict(groups.get("likelihood", {}))
        self.clock = clock_from_tensors(groups.get("clock", {}))
        self._state = OnlineState.from_tensors(groups, self.basis.restore)

    def _settings(self) -> dict[str, Any]:
        """What two models must share for one to read the other's state."""
        parts = {"kernel": self.kernel, "likelihood": self.likelihood}
        return {
            **{name: type(part).__name__ for name, part in parts.items()},
            **{f"{name}_parameters": _shapes(part) for name, part in parts.items()},
            "dim": self.kernel.dim,
            "kernel_batch": list(self.kernel.batch_shape),
            **basis_settings(self.basis),
            "whitening": self.whitening,
            "alpha": self.alpha,
            "dtype": str(self.dtype),
        }

    def _stream(self) -> Stream:
        state = self._state
        return Stream(
            dim=self.kernel.dim,
            like=self.kernel.raw_lengthscale,
            time_unit=self.time_unit,
            growth=self.growth,
            clock=self.clock,
            length=None if state is None else state.length,
            count=0 if state is None else state.count,
            series=() if state is None else tuple(state.site.shift.shape[:-1]),
        )

    def _read(self, t: Any, y: Any, **options: Any) -> Batch:
        batch = self._stream().batch(t, y, **options)
        self.likelihood.check_targets(batch.targets())
        return batch

    def _energy(self, batch: Batch) -> Tensor:
        self._changed()
        kernel = self.basis.prior(self.kernel)
        # Where sets hold the kernel's features they depend on its hyperparameters themselves.
        with torch.set_grad_enabled(self.basis.fixed_hyperparameters):
            inducing = self._advance(kernel, batch, _twin(self.generator), True)
        step = self._move(kernel, inducing, True)
        return absorb(kernel, self.likelihood, step, batch.data)[1].value

    def _warn_of_loss(self, info: UpdateInfo) -> None:
        warned = self._lost.warned
        old, new = float(info.lost_information.max()), float(info.unexplained.max())
        total, since = self._lost.total + old + new, self._lost.since_move + info.n_new
        seen = self._lost.seen + info.n_new
        # A window that grows in steps pays at a step for all observations since the last one.
        much = any(
            lost > max(_LEAST_LOST, _MUCH_LOST * count)
            for lost, count in ((old + new, since), (total, seen))
        )
        self._lost = _Lost(total, seen, 0 if old > 0 else since, self._lost.warned or much)
        if not much or warned:
            return
        warnings.warn(
            f"{info.rank} inducing variables cannot hold the stream: this update lost {old:.3g} "
            f"nats of what was known and {new:.3g} of {info.n_new} new observations, and "
            "predictions may be surer than they are right. Take a larger num_inducing or another "
            "basis; UpdateInfo tells lost_information and unexplained of every update",
            LostInformationWarning,
            stacklevel=3,
        )

    def _advance(
        self, kernel: Kernel, batch: Batch, generator: torch.Generator, changed: bool
    ) -> Inducing:
        """The inducing set after the new inputs, optimised if the basis does so."""
        old = self._state
        if old is not None and batch.length == old.length:
            # A set that the window alone makes is the same set then, without its jitter's noise.
            same = isinstance(self.basis, TimeBasis) and not changed
            if same or self.growth is not None:
                return old.inducing
        step = Advance(
            kernel=kernel,
            previous=None if old is None else old.inducing,
            inputs=batch.data.x,
            length=batch.length,
            origin=float(batch.clock.origin) if batch.clock.unit is None else 0.0,
            generator=generator,
        )
        inducing = self.basis.advance(step)

        def objective(candidate: Inducing) -> Tensor:
            with torch.enable_grad():
                step = self._move(kernel, candidate, changed)
                return absorb(kernel, self.likelihood, step, batch.data)[1].value.sum()

        return self.basis.refine(inducing, objective, step)

    def _move(self, kernel: Kernel, inducing: Inducing, changed: bool) -> Move:
        return move(
            kernel,
            self._state,
            inducing,
            method=self.whitening,
            rel_jitter=self.rel_jitter,
            changed=changed and self._state is not None,
            alpha=self.alpha,
        )

    @overload
    def _given(self, law: DiagonalGaussian) -> DiagonalGaussian: ...
    @overload
    def _given(self, law: JointGaussian) -> JointGaussian: ...
    def _given(self, law: DiagonalGaussian | JointGaussian) -> DiagonalGaussian | JointGaussian:
        """The law in the dtype that the user asked for."""
        if isinstance(law, JointGaussian):
            return JointGaussian(law.mean.to(self.dtype), law.covariance.to(self.dtype))
        return DiagonalGaussian(law.mean.to(self.dtype), law.variance.to(self.dtype))

    @overload
    def _latent(self, x: Tensor, full_cov: Literal[False]) -> DiagonalGaussian: ...
    @overload
    def _latent(self, x: Tensor, full_cov: Literal[True]) -> JointGaussian: ...
    @overload
    def _latent(self, x: Tensor, full_cov: bool) -> DiagonalGaussian | JointGaussian: ...
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
        return core.predict(state.moments, P, K_ss)

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
        now = hyperparameters(self.kernel)
        return OnlineState(
            old.inducing, step.whitening, step.carried.site, now, old.length, old.count
        )

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
        if (now := self._settings()) != self._identity:
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


def _shapes(module: nn.Module) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in module.state_dict().items()}


def _twin(generator: torch.Generator) -> torch.Generator:
    """A generator in the same state."""
    twin = torch.Generator(generator.device)
    twin.set_state(generator.get_state())
    return twin
