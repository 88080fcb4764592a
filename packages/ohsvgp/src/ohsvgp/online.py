"""Gaussian processes that learn from a stream."""

import copy
import dataclasses
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ohsvgp.bases.base import Advance, Basis, TimeBasis
from ohsvgp.bases.learning import AdamSteps
from ohsvgp.core import Site
from ohsvgp.hyperparameters import FitInfo, fit_hyperparameters
from ohsvgp.inducing import Inducing
from ohsvgp.inputs import nanoseconds, start_clock
from ohsvgp.likelihoods import Likelihood
from ohsvgp.natural import natural_update
from ohsvgp.predictions import Predictions
from ohsvgp.reading import Batch, read_batch
from ohsvgp.saved import identity, pack, unpack
from ohsvgp.state import OnlineState, UpdateInfo, hyperparameters
from ohsvgp.step import absorb
from ohsvgp.variational import variational_update
from ohsvgp.whitening import Whitening, check_jitter
from ohsvgp.window import growth_factor
from probseq.kernels import Kernel

__all__ = ["OnlineGP"]


class OnlineGP(Predictions):
    """Sparse Gaussian process that absorbs a stream and never sees old data again (thesis ch. 4).

    Inducing variables follow the stream as ``basis`` says; the posterior on them is carried along
    exactly where the inducing set stays, and by the online bound of Bui et al. 2017 where it
    moves. Memory is O(M²), whatever the length of the stream.

    Inputs are torch tensors, numpy arrays, lists or pandas series. With a kernel of dim 1 they are
    times of shape (n,), numbers or calendar stamps; otherwise points of shape (n, dim). Targets
    have shape (*b, n): leading dimensions are independent series that share the inputs.

    Args:
        kernel: covariance function; converted to ``dtype`` in place.
        likelihood: observation model; converted to ``dtype`` in place.
        basis: how inducing variables follow the stream.
        whitening: "chol", or "eig" to drop directions instead of adding jitter.
        rel_jitter: jitter relative to the mean of K_uu's diagonal; 1e-8 in float64 and 1e-6 in
            float32 if None.
        t0: where the window starts; the first stamp if None.
        rebase: when the window's end moves. "task": with every update, to its last stamp.
            "grow:1.05": when a stamp passes it, to 1.05 times the time since t0, so that few
            updates of one point move it. "manual": only by ``t_end`` or ``rebase``.
        time_unit: numpy's code of the unit that calendar stamps are counted in, e.g. "D" or "h".
        inference: for other likelihoods than the Gaussian, whose updates are in closed form:
            natural-gradient steps, or Adam on the uncollapsed bound, as the thesis has it.
        dtype: of everything but the clock, which is float64.
        seed: of the model's own random numbers (random inducing points, random features).

    Raises:
        ValueError: an option that is not one of the above, ``rel_jitter`` not in (0, 1e-4], a
            kernel that the basis cannot serve, or ``t0`` or ``rebase`` for points, not times.

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
        if isinstance(inference, AdamSteps):
            self._infer = partial(
                variational_update, steps=inference.steps, learning_rate=inference.learning_rate
            )
        else:
            if inference not in ("natural",):
                raise ValueError(f'inference must be "natural" or AdamSteps, got {inference!r}')
            self._infer = natural_update
        self.growth = growth_factor(rebase)
        check_jitter(rel_jitter, dtype)
        self.kernel = kernel.to(dtype)
        self.likelihood = likelihood.to(dtype)
        self.whitening = whitening
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
        self.clock = None if t0 is None else start_clock([t0], time_unit)
        self._state = None
        self._identity = identity(self)

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
            The bound, the information lost by moving, and what the factorisation took.

        Raises:
            ValueError: bad shapes, NaN or infinity, unsorted or too early stamps, targets outside
                the likelihood's support, no first point and no ``t_end``, or hyperparameters
                changed under a basis that cannot follow. The model is then as it was before.
            CholeskyError: K_uu stays indefinite at a relative jitter of 1e-4.
        """
        batch = read_batch(self, t, y, mask, missing, sort, t_end)
        changed = self._changed()
        kernel = self.basis.prior(self.kernel)
        generator = _twin(self.generator)
        with torch.no_grad():
            inducing = self._advance(kernel, batch, generator, changed)
            step = self._move(kernel, inducing, changed)
            site, bound = absorb(kernel, self.likelihood, step, batch.data, self._infer)
        now = hyperparameters(self.kernel)
        state = self._row_major(
            OnlineState(inducing, step.whitening, site, now, batch.length, batch.count)
        )
        info = UpdateInfo(
            bound=bound.value,
            lost_information=bound.lost_information,
            rank=int(step.whitening.rank.min()),
            jitter_used=float(step.whitening.relative_jitter.max()),
            n_new=batch.data.x.shape[0],
            t_end=batch.clock.user(batch.length) if self.of_time else batch.length,
        )
        self.clock, self.generator, self._state = batch.clock, generator, state
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

    def fit_hyperparameters(self, t: Any, y: Any, *, mask: Any = None, steps: int = 100) -> FitInfo:
        """Fit kernel and likelihood to data by maximum likelihood; nothing is absorbed.

        Args:
            t: as in ``update``.
            y: as in ``update``.
            mask: as in ``update``.
            steps: iterations of L-BFGS at most.

        Returns:
            What ``ohsvgp.hyperparameters.fit_hyperparameters`` says, which this is.
        """
        return fit_hyperparameters(self, t, y, mask=mask, steps=steps)

    def rebase(self, t_end: Any) -> UpdateInfo:
        """Move the window's end without new data.

        Args:
            t_end: the new end; an earlier one than now changes nothing.

        Raises:
            ValueError: as ``update``.
        """
        return self.update([], self.kernel.raw_lengthscale.new_zeros(0), t_end=t_end)

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that predictions and further updates need, as a flat dict of tensors."""
        return pack(self)

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Take over a saved state; predictions are then equal to the last bit.

        Raises:
            ValueError: the state of another schema, kernel, likelihood, basis, M or dtype.
        """
        self._state = unpack(self, tensors)

    def bound(self, t: Any, y: Any, **options: Any) -> Float[Tensor, "*b"]:
        """Online bound of new data, differentiable in kernel and likelihood; nothing is absorbed.

        Args:
            t: as in ``update``.
            y: as in ``update``.
            options: as in ``update``.
        """
        self._changed()
        batch = read_batch(self, t, y, **options)
        kernel = self.basis.prior(self.kernel)
        # Where sets hold the kernel's features they depend on its hyperparameters themselves.
        with torch.set_grad_enabled(self.basis.fixed_hyperparameters):
            inducing = self._advance(kernel, batch, _twin(self.generator), True)
        step = self._move(kernel, inducing, True)
        return absorb(kernel, self.likelihood, step, batch.data)[1].value

    def _row_major(self, state: OnlineState) -> OnlineState:
        """The state with every tensor as it would come back from a file.

        LAPACK's factors are column-major, and BLAS sums in another order for them: without this a
        loaded model's predictions would differ in the last bits.
        """
        inducing, old = state.inducing, self._state
        # The set of the step before stays the same object: that tells that it did not move.
        if old is None or inducing is not old.inducing:
            inducing = self.basis.restore(
                {name: _row_major(tensor) for name, tensor in inducing.tensors().items()}
            )
        return dataclasses.replace(
            state,
            inducing=inducing,
            whitening=Whitening(*map(_row_major, state.whitening)),
            site=Site(*map(_row_major, state.site)),
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


def _row_major(tensor: Tensor) -> Tensor:
    # Not contiguous(): that leaves odd strides of dimensions of size 1.
    return tensor.clone(memory_format=torch.contiguous_format)


def _twin(generator: torch.Generator) -> torch.Generator:
    """A generator in the same state."""
    twin = torch.Generator(generator.device)
    twin.set_state(generator.get_state())
    return twin
