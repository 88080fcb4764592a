"""Gaussian processes that learn from a stream."""

import copy
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, overload

import torch
from jaxtyping import Float
from torch import Tensor

from ohsvgp.fitting import batch_probability, fit_process
from ohsvgp.forecasts import Forecast, make_forecast
from ohsvgp.hyperparameters import FitInfo
from ohsvgp.lost import warn_of_loss
from ohsvgp.means import parts_of
from ohsvgp.model import StreamModel, twin
from ohsvgp.state import UpdateInfo
from ohsvgp.stream.arrays import as_targets
from ohsvgp.stream.batch import Batch
from probseq.checks import check_counts
from probseq.gaussians import DiagonalGaussian
from probseq.gaussians import Gaussian as JointGaussian
from probseq.linalg import default_jitter

__all__ = ["OnlineGP"]

# Counts from here on know their rate to a hundredth.
_LARGE_COUNTS = 1e4


class OnlineGP(StreamModel):
    """Sparse Gaussian process that absorbs a stream and never sees old data again (thesis ch. 4).

    It keeps the state of the functions in ``ohsvgp.process``, which change nothing.

    Inducing variables follow the stream as ``basis`` says; the posterior on them is carried along
    exactly where the inducing set stays, and by the online bound of Bui et al. 2017 or its form of
    power EP (``alpha``) where it moves. Memory is O(M²), whatever the length of the stream, and
    O(MQ) of bases with Q quadrature nodes, which grow with the window up to a limit
    (``QuadratureBasis``); ``Path(memory="inputs")`` keeps all inputs. All algebra is in float64:
    K_uu of smooth kernels is nearly singular. With two threads of torch updates of a few points are
    no faster and take twice the processor time: ``torch.set_num_threads(1)``.

    Inputs are torch tensors, numpy arrays, lists or pandas series. With a kernel of dim 1 they are
    times of shape (n,), numbers or calendar stamps; otherwise points of shape (n, dim). Targets
    have shape (*b, n): leading dimensions are independent series that share the inputs.

    Args:
        kernel: covariance function; converted to float64 in place.
        likelihood: observation model; converted to float64 in place.
        basis: how inducing variables follow the stream.
        mean: trends, seasons or regressors beside the process, whose weights are learned exactly;
            None for a process of mean zero.
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
        refit: when updates fit the hyperparameters first; None for only when told.
        dtype: of predictions, samples and log densities, float32 or float64.
        seed: of the model's own random numbers (random inducing points, random features).

    Raises:
        ValueError: an option that is not one of the above, ``rel_jitter`` not in (0, 1e-4],
            ``alpha`` not in [0, 1], a kernel that the basis cannot serve, white noise in it beside
            another likelihood than the Gaussian, or ``t0`` or ``rebase`` for points, not times.

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

    def update(
        self,
        t: Any,
        y: Any,
        *,
        mask: Any = None,
        missing: Literal["raise", "drop"] = "raise",
        sort: bool = False,
        t_end: Any = None,
        weights: Any = None,
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
            weights: what the Gaussian noise of each target is divided by, of y's shape (leading
                dimensions may be left out).

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
        batch = self._read(
            t, y, mask=mask, missing=missing, sort=sort, t_end=t_end, weights=weights
        )
        generator = twin(self.generator)
        with self._refitted(batch):
            state, info = self.process.update(self._state, batch, generator)
        told, self._losses = self._losses.warned, self._losses.after(info)
        self.clock, self.generator, self._state = batch.clock, generator, state
        # Gaps and moved ends teach nothing.
        self.updates += batch.targets().numel() > 0
        if self.of_time:
            self.pace = self.pace.updated(batch.data.x[:, 0].tolist())
        # Last: warnings may be errors.
        if self._losses.warned and not told:
            targets = batch.targets()
            large = not self.likelihood.continuous and float(targets.mean()) > _LARGE_COUNTS
            warn_of_loss(info, large_counts=large)
        return info

    partial_fit = update

    def updated(self, t: Any, y: Any, **options: Any) -> "OnlineGP":
        """A new model that has absorbed the data; this one stays as it is.

        The two share nothing that can change.

        Args:
            t: as in ``update``; so are y and the options.
            y: targets.
            options: mask, missing, sort, t_end, weights.
        """
        later = copy.copy(self)
        # At once, for what a basis holds of the kernel.
        parts = (self.kernel, self.likelihood, self.basis)
        later.kernel, later.likelihood, later.basis = copy.deepcopy(parts)
        later.update(t, y, **options)
        return later

    def fit_hyperparameters(
        self,
        t: Any,
        y: Any,
        *,
        mask: Any = None,
        missing: Literal["raise", "drop"] = "raise",
        steps: int = 100,
        priors: Mapping[str, tuple[float, float]] | None = None,
        restarts: int = 0,
        limited: bool = True,
    ) -> FitInfo:
        """Fit the parameters of kernel and likelihood to data, without absorbing them.

        Before any data, with a Gaussian likelihood and at most 2000 points, by the exact log
        marginal likelihood (ML-II); otherwise by ``energy`` of these data, which sees the old ones
        through the posterior. L-BFGS on the unconstrained parameters; those with
        ``requires_grad=False`` stay, and the Gaussian noise cannot fall below 1e-6 of the mean
        square of y. The best parameters that were met are kept. Bases that learn inducing points
        do not learn them meanwhile.

        Args:
            t: as in ``update``; so are y, mask and missing.
            y: targets.
            mask: False at targets to be ignored.
            missing: what NaN in y means.
            steps: iterations of L-BFGS at most, of each start.
            priors: (median, factor) of log-normal laws by a parameter's name, such as
                "kernel.raw_lengthscale", in user units: two thirds of the mass lies within the
                factor of the median.
            restarts: further starts, drawn around the parameters of now by ``seed``.
            limited: whether parameters stay within wide limits in the units of the data
                (``ohsvgp.limits.data_limits``), which matter where data say nothing of them; by
                fewer than ten targets beside a state each moves by a factor of two at most.

        Returns:
            The objective before and after, how often it failed, and whether the search converged.

        Raises:
            ValueError: bad data, ``steps`` below 1, ``restarts`` below 0, priors of what is not
                fitted, no parameter to fit, without limits a noise to be fitted to
                zeros by the evidence, or data have been absorbed under a basis whose
                hyperparameters must stay.
            CholeskyError: the objective cannot be computed at the hyperparameters before.
        """
        batch = self._read(t, y, mask=mask, missing=missing)
        return fit_process(
            self.process,
            self._state,
            batch,
            self.generator,
            steps=steps,
            priors=priors,
            restarts=restarts,
            seed=self.seed,
            limited=limited,
        )

    def rebase(self, t_end: Any) -> UpdateInfo:
        """Move the window's end without new data; one before the end of now changes nothing."""
        return self.update([], self.kernel.like.new_zeros(0), t_end=t_end)

    def energy(self, t: Any, y: Any, **options: Any) -> Float[Tensor, "*b"]:
        """``UpdateInfo.energy`` of data, differentiable, nothing absorbed; args as ``update``."""
        return self.process.energy(self._state, self._read(t, y, **options), twin(self.generator))

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
        x = self.inputs(t)
        with torch.no_grad():
            latent = self.process.predict(self._state, x, full_cov=full_cov)
            if include_noise:
                latent = self.likelihood.predictive_moments(latent.mean, latent.variance)
            return latent.to(self.dtype)

    def forecast(self, t: Any, *, step: float | None = None) -> Forecast:
        """Law of new values: mean, variance, quantiles, intervals and joint draws.

        Args:
            t: stamps not before t0, or points; or a whole number of steps beyond the latest stamp.
            step: time between steps, in units of time. If None, months, quarters, years or business
                days where the latest stamps come so, else the median of the latest gaps.

        Raises:
            ValueError: bad inputs, stamps before t0, fewer than one step, steps of points or
                before data, or a ``step`` that is not above 0, or needed and not given.

        Warns:
            ExtrapolationWarning: posterior variances of f beyond the data exceed 95 % of the
                prior's; once a model.
        """
        return make_forecast(self, t, step, stacklevel=3)

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
        x = self.inputs(t)
        with torch.no_grad():
            law = self.process.predict(self._state, x, full_cov=True)
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
        x = self.inputs(t)
        targets = as_targets(y, x.shape[0], None, x)
        self.likelihood.check_targets(targets)
        with torch.no_grad():
            latent = self.process.predict(self._state, x)
            found = self.likelihood.predictive_log_prob(latent.mean, latent.variance, targets)
            return found.to(self.dtype)

    def posterior_coefficients(self) -> JointGaussian:
        """Law q(u) of the inducing variables: of f's projections on the basis (thesis C.2).

        With a ``mean``, of the process without it.

        Raises:
            ValueError: no data yet.
        """
        state = self._ready("posterior_coefficients")
        weights = 0 if self.mean is None else self.mean.num_weights
        with torch.no_grad():
            law = self.process.project(state).to(self.dtype)
        M = law.mean.shape[-1] - weights
        return JointGaussian(law.mean[..., :M], law.covariance[..., :M, :M])

    def decompose(self, t: Any) -> dict[str, DiagonalGaussian]:
        """Posterior of each part that f is the sum of: terms of the kernel, parts of the mean.

        Their means add up to ``predict``'s. Their variances do not: the data know sums of parts
        better than the parts.

        Args:
            t: inputs, anywhere and in any order.

        Returns:
            Laws by name, in the order of the model: the class of a term, numbered from the second
            of its kind on.

        Raises:
            ValueError: bad inputs.
        """
        x, process = self.inputs(t), self.process
        with torch.no_grad():
            laws = [
                (name, process.part(self._state, part, x).to(self.dtype))
                for name, part in parts_of(process.prior)
            ]
        found: dict[str, DiagonalGaussian] = {}
        for name, law in laws:
            known = sum(other.split(" ")[0] == name for other in found)
            found[f"{name} {known + 1}" if known else name] = law
        return found

    def reconstruct(self, t: Any) -> DiagonalGaussian:
        """F ≈ Σ u_m g_m(t), u ~ q(u): the finite-basis picture of the posterior (thesis C.2).

        Args:
            t: inputs, inside the window.

        Raises:
            ValueError: no data yet, or a basis without orthogonal functions.
        """
        state = self._ready("reconstruct")
        with torch.no_grad():
            return self.process.reconstruct(state, self.inputs(t)).to(self.dtype)

    @contextmanager
    def _refitted(self, batch: Batch) -> Generator[None]:
        """Fit the hyperparameters if it is time, and take them back if what follows fails."""
        refit, state = self.refit, self._state if self.updates else None
        due = refit is not None and batch.targets().numel() > 0
        if (
            refit is None
            or not due
            or not refit.due(
                self.updates,
                lambda: 1.0 if state is None else batch_probability(self.process, state, batch),
            )
        ):
            yield
            return
        parameters = [*self.kernel.parameters(), *self.likelihood.parameters()]
        before = [parameter.detach().clone() for parameter in parameters]
        try:
            fit_process(
                self.process,
                state,
                batch,
                self.generator,
                steps=refit.steps,
                priors=refit.priors,
                restarts=0 if state else refit.restarts,
                seed=self.seed,
                limited=refit.limited,
            )
            yield
        except BaseException:
            with torch.no_grad():
                for parameter, value in zip(parameters, before, strict=True):
                    parameter.copy_(value)
            raise
