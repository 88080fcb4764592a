"""Gaussian processes that learn from a stream."""

import copy
import threading
import warnings
from collections.abc import Mapping
from functools import partial
from numbers import Real
from typing import Any, Literal, overload

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ohsvgp import saved
from ohsvgp.bases.base import CAN_FOLLOW, Basis, PriorMean
from ohsvgp.bases.learning import AdamSteps
from ohsvgp.fitting import fit_process, refitted
from ohsvgp.hyperparameters import FitInfo, Refit
from ohsvgp.inducing import continuous
from ohsvgp.inference.natural import natural_update
from ohsvgp.inference.variational import variational_update
from ohsvgp.information_loss import InformationLoss, LostInformationWarning, warn_of_loss
from ohsvgp.likelihoods import Gaussian, Likelihood
from ohsvgp.mismatch import PriorMismatchWarning, mismatch
from ohsvgp.process import Inference, Process
from ohsvgp.state import OnlineState, UpdateInfo
from ohsvgp.stream.arrays import as_targets
from ohsvgp.stream.batch import Batch, StreamReader
from ohsvgp.stream.clock import Clock, nanoseconds, start_clock
from ohsvgp.stream.spacing import StampSpacing
from ohsvgp.stream.window import growth_factor
from ohsvgp.whitening import check_jitter
from probseq.checks import check_counts, check_whole
from probseq.gaussians import DiagonalGaussian, JointGaussian
from probseq.kernels import Kernel
from probseq.linalg import default_jitter


class OnlineGP:
    """Sparse Gaussian process that absorbs a stream and never sees old data again (thesis ch. 4).

    It keeps the state of the functions in ``ohsvgp.process``: the posterior on inducing variables
    that follow the stream as ``basis`` says, carried along exactly where the inducing set stays,
    and by the online bound of Bui et al. 2017 or its form of power EP (``alpha``) where it moves.
    Memory is O(M²), whatever the length of the stream, and O(MQ) of bases with Q quadrature nodes;
    ``Path(memory="inputs")`` keeps all inputs. All algebra is in float64. Small updates are fastest
    with ``torch.set_num_threads(1)``.

    Threads may share a model: what changes it waits for each other, and predictions beside an
    update are those before it.

    Inputs are torch tensors, numpy arrays, lists or pandas series. With a kernel of dim 1 they are
    times of shape (n,), numbers or calendar stamps; otherwise points of shape (n, dim). Targets
    have shape (*b, n): leading dimensions are independent series that share the inputs.

    Args:
        kernel: covariance function; converted to float64 in place.
        likelihood: observation model; converted to float64 in place.
        basis: how inducing variables follow the stream.
        mean: trends, seasons or regressors beside the process, whose weights are learned exactly;
            None for a process of mean zero.
        alpha: how a moving inducing set takes what the new variables do not explain of the old
            ones, from 0 to 1: as known exactly, which is the thesis' variational bound and
            overconfident where M is too small; or as uncertain, by power EP (``core.carry_site``).
        rel_jitter: jitter relative to the mean of K_uu's diagonal; 1e-8 if None.
        t0: where the window starts; the first stamp if None.
        rebase: when the window's end moves. "task": with every update, to its last stamp.
            "grow:1.05": when a stamp passes it, to 1.05 times the time since t0, so that few
            updates of one point move it. "manual": only by ``t_end`` or ``rebase``.
        time_unit: numpy's code of the unit that calendar stamps are counted in, e.g. "D" or "h".
        inference: for other likelihoods than the Gaussian, whose updates are in closed form:
            natural-gradient steps, or Adam on the uncollapsed bound, as the thesis has it.
        refit: when updates fit the hyperparameters first; None for never.
        dtype: of predictions, samples and log densities, float32 or float64.
        seed: of the model's own random numbers (random inducing points, random features).

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
        mean: PriorMean | None = None,
        alpha: float = 0.1,
        rel_jitter: float | None = None,
        t0: Any = None,
        rebase: str = "task",
        time_unit: str = "D",
        inference: Literal["natural"] | AdamSteps = "natural",
        refit: Refit | None = None,
        dtype: torch.dtype = torch.float64,
        seed: int = 0,
    ) -> None:
        values = {"kernel": kernel, "likelihood": likelihood, "basis": basis, "mean": mean}
        kinds = (Kernel, Likelihood, Basis, PriorMean)
        for (name, value), kind in zip(values.items(), kinds, strict=True):
            if not isinstance(value, kind) and (name, value) != ("mean", None):
                raise ValueError(f"{name} must be a {kind.__name__}, got {value!r}")
        if not isinstance(alpha, Real) or not 0 <= alpha <= 1:
            raise ValueError(f"alpha must be from 0 to 1, got {alpha!r}")
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
        self._infer: Inference = natural_update
        if isinstance(inference, AdamSteps):
            self._infer = partial(
                variational_update, steps=inference.steps, learning_rate=inference.learning_rate
            )
        elif inference not in ("natural",):
            raise ValueError(f'inference must be "natural" or AdamSteps, got {inference!r}')
        check_whole(seed=seed)
        check_jitter(rel_jitter)
        self.growth, self.seed = growth_factor(rebase), seed
        self.kernel = kernel.double()
        self.likelihood = likelihood.double()
        self.alpha = float(alpha)
        self.rel_jitter, self.time_unit, self.dtype = rel_jitter, time_unit, dtype
        self.generator = torch.Generator(kernel.like.device).manual_seed(seed)
        # A copy: what the basis draws for this kernel belongs to this model.
        basis_copy = copy.deepcopy(basis)
        self.mean = mean
        self.basis = basis_copy if mean is None else mean.beside(basis_copy)
        self.basis.bind(self.kernel, self.generator)
        if continuous(self.kernel) is not self.kernel and not isinstance(likelihood, Gaussian):
            raise ValueError(
                "kernel must have no white noise beside another likelihood than Gaussian, got "
                f"{type(likelihood).__name__}: for more noise take NegativeBinomial or StudentT"
            )
        if not self.of_time and (t0 is not None or rebase != "task"):
            raise ValueError(
                f"t0 and rebase must be left out for points of dim {kernel.dim}: they have no time"
            )
        if refit is not None and refit.when != "first" and self.basis.fixed_hyperparameters:
            raise ValueError(
                f'refit must be "first" for {type(basis).__name__}, whose hyperparameters must '
                f"stay once data have been absorbed, got {refit.when!r}. {CAN_FOLLOW}"
            )
        nanoseconds(time_unit)
        self._lock = threading.RLock()
        self.clock: Clock | None = None if t0 is None else start_clock([t0], time_unit)
        self._state: OnlineState | None = None
        self._losses = InformationLoss()
        self.warned: set[type[Warning]] = set()  # kinds that come once a model
        self.spacing, self.refit, self.updates = StampSpacing(), refit, 0
        self._identity = self._settings()

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            return self.__dict__ | {"_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_lock": threading.RLock()}

    @property
    def of_time(self) -> bool:
        """Return whether inputs are times; otherwise points, and the window counts them."""
        return self.kernel.dim == 1

    @property
    def state(self) -> OnlineState | None:
        """Return what is remembered of the stream; None before the first update."""
        return self._state

    @property
    def process(self) -> Process:
        """Return the functions of ``state`` that ``update`` and ``predict`` call."""
        model = (self.kernel, self.likelihood, self.basis)
        options = (self.alpha, self.rel_jitter, self._infer)
        return Process(*model, *options, reuse_inducing=self.growth is not None)

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
            t: sorted stamps of shape (n,), not before t0, or points of shape (n, dim).
            y: targets of shape (*b, n).
            mask: False at targets to be ignored; y's shape, leading dimensions may be left out.
            missing: what NaN in y means: an error, or a gap ("drop").
            sort: sort by time first.
            t_end: move the window's end at least to here; it never moves back.
            weights: what the Gaussian noise of each target is divided by, shaped like ``mask``.

        Raises:
            CholeskyError: K_uu stays indefinite at a relative jitter of 1e-4.

        Warns:
            PriorMismatchWarning: the first targets have a level or scale that the prior does not
                expect; once a model.
            LostInformationWarning: more than a nat, and more than a tenth of a nat per observation,
                was lost since the inducing set last moved, or in all; once a model.
        """
        options = {"mask": mask, "missing": missing, "sort": sort}
        with self._lock:
            batch = self.read(t, y, t_end=t_end, weights=weights, **options)
            info = self._absorb(batch)
            unexpected = mismatch(self.process, batch.data) if self.updates == 1 else None
        # Last: warnings may be errors.
        if unexpected is not None and PriorMismatchWarning not in self.warned:
            self.warned.add(PriorMismatchWarning)
            warnings.warn(unexpected, PriorMismatchWarning, stacklevel=2)
        if self._losses.large and LostInformationWarning not in self.warned:
            self.warned.add(LostInformationWarning)
            warn_of_loss(info, self.basis.num_inducing)
        return info

    partial_fit = update

    def updated(self, t: Any, y: Any, **options: Any) -> "OnlineGP":
        """Return a new model that has absorbed the data; the two share nothing that can change.

        Arguments are those of ``update``.
        """
        later = copy.copy(self)
        later.warned = self.warned.copy()
        # At once, for what a basis holds of the kernel.
        modules = (self.kernel, self.likelihood, self.basis)
        later.kernel, later.likelihood, later.basis = copy.deepcopy(modules)
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
        restarts: int = 2,
        limited: bool = True,
    ) -> FitInfo:
        """Fit the parameters of kernel and likelihood to data, without absorbing them.

        Before any data, with a Gaussian likelihood and at most 2000 points, by the exact log
        marginal likelihood (ML-II); otherwise by ``energy`` of these data, which sees the old ones
        through the posterior. L-BFGS on the unconstrained parameters; those with
        ``requires_grad=False`` stay, and the Gaussian noise cannot fall below 1e-6 of the mean
        square of y. The best parameters that were evaluated remain. Bases that learn inducing
        points do not learn them meanwhile.

        Args:
            t: as in ``update``; so are y, mask and missing.
            y: targets.
            mask: False at targets to be ignored.
            missing: what NaN in y means.
            steps: of ``Refit``, as are the next ones.
            priors: of parameters by name.
            restarts: further starts, drawn by ``seed``.
            limited: whether parameters stay within limits in the units of the data.

        Raises:
            CholeskyError: the objective cannot be computed at the hyperparameters before.
        """
        options = Refit(steps=steps, priors=priors, restarts=restarts, limited=limited)
        with self._lock:
            batch = self.read(t, y, mask=mask, missing=missing)
            fixed = (self.process, self._state, batch, self.generator)
            return fit_process(*fixed, options, seed=self.seed)

    def rebase(self, t_end: Any) -> UpdateInfo:
        """Move the window's end without new data; one before the end of now changes nothing."""
        return self.update([], self.kernel.like.new_zeros(0), t_end=t_end)

    def energy(self, t: Any, y: Any, **options: Any) -> Float[Tensor, "*b"]:
        """Return ``UpdateInfo.energy`` of data that are not absorbed; arguments as ``update``'s."""
        batch, generator = self.read(t, y, **options), saved.clone_generator(self.generator)
        return self.process.energy(self._state, batch, generator)

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
        """Return the posterior of f, or mean and variance of y; the prior before any update.

        Inputs are anywhere and in any order; ``full_cov`` gives their covariance, ``include_noise``
        a new y instead of f.
        """
        if full_cov and include_noise:
            raise ValueError(
                "full_cov and include_noise exclude each other: add noise to the diagonal"
            )
        x = self.inputs(t)
        with torch.no_grad():
            if full_cov:
                return self.process.predict_joint(self._state, x).to(self.dtype)
            latent = self.process.predict(self._state, x)
            if include_noise:
                latent = self.likelihood.predictive_moments(latent.mean, latent.variance)
            return latent.to(self.dtype)

    def sample(
        self, t: Any, num_samples: int, generator: torch.Generator | None = None
    ) -> Float[Tensor, "s *b n"]:
        """Draw f from the posterior, jointly over the inputs.

        Inputs are anywhere and in any order.
        """
        check_counts(num_samples=num_samples)
        x = self.inputs(t)
        with torch.no_grad():
            f = self.process.predict_joint(self._state, x)
            # What round-off does to a posterior is a share of the prior's variance, not of its own.
            jitter = default_jitter(x.dtype) * self.kernel.diag(x)
            f = JointGaussian(f.mean, f.covariance + torch.diag_embed(jitter))
            return f.rsample((num_samples,), generator=generator).to(self.dtype)

    def log_prob(self, t: Any, y: Any) -> Float[Tensor, "*b n"]:
        """Return the log predictive density of each target by itself, noise included, in nats."""
        x = self.inputs(t)
        targets = as_targets(y, x.shape[0], None, x)
        self.likelihood.check_targets(targets)
        with torch.no_grad():
            latent = self.process.predict(self._state, x)
            log_prob = self.likelihood.predictive_log_prob(latent.mean, latent.variance, targets)
            return log_prob.to(self.dtype)

    def posterior_coefficients(self) -> JointGaussian:
        """Return q(u) of the inducing variables: of f's projections on the basis (thesis C.2).

        With a ``mean``, of the process without it.
        """
        state = self._ready("posterior_coefficients")
        weights = state.inducing.num_weights
        with torch.no_grad():
            u = self.process.project(state).to(self.dtype)
        M = u.mean.shape[-1] - weights
        return JointGaussian(u.mean[..., :M], u.covariance[..., :M, :M])

    def reconstruct(self, t: Any) -> DiagonalGaussian:
        """Return f ≈ Σ u_m g_m(t), u ~ q(u), the posterior in a finite basis (thesis C.2).

        Inputs lie inside the window.
        """
        state = self._ready("reconstruct")
        with torch.no_grad():
            return self.process.reconstruct(state, self.inputs(t)).to(self.dtype)

    def inputs(self, t: Any) -> Tensor:
        """Return stamps or points as ``process`` takes them, (n, dim), times counted from t0."""
        self._check_settings()
        return self._stream().inputs(t)

    def user_inputs(self, x: Tensor) -> np.ndarray:
        """Return the stamps or points of a user that ``inputs`` made x of shape (n, dim) of."""
        if not self.of_time:
            return x.detach().cpu().numpy()
        return (self.clock or Clock(0.0)).user_array(x[:, 0])

    def state_dict(self) -> dict[str, Tensor]:
        """Return all that predictions and further updates need, as a flat dict of tensors."""
        with self._lock:
            values = {"updates": self.updates, "pace": vars(self.spacing)}
            values["clock"] = None if self.clock is None else vars(self.clock)
            groups = {
                "generator": {"": self.generator.get_state()},
                "kernel": self.kernel.state_dict(),
                "likelihood": self.likelihood.state_dict(),
                "basis": self.basis.tensors(),
            }
            return saved.pack(self._settings(), values, groups | saved.state_tensors(self._state))

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Take over a saved state; predictions are then equal to the last bit.

        They come from ``state_dict`` of a model made with the same arguments.
        """
        device, source = self.generator.device, "OnlineGP.state_dict"
        values, groups = saved.unpack(tensors, self._settings(), device, source=source)
        with self._lock:
            # The generator and the basis refuse what is not theirs; until then nothing is changed.
            generator = saved.clone_generator(self.generator, groups["generator"][""])
            self.basis.load_tensors(groups.get("basis", {}))
            self.generator = generator
            self.kernel.load_state_dict(groups["kernel"])
            self.likelihood.load_state_dict(groups.get("likelihood", {}))
            self.clock = None if values["clock"] is None else Clock(**values["clock"])
            self._state = saved.state_from_tensors(groups, self.basis.restore)
            self._losses, self.warned = InformationLoss(), set()
            self.spacing, self.updates = StampSpacing(**values["pace"]), values["updates"]

    def _absorb(self, batch: Batch) -> UpdateInfo:
        process, generator = self.process, saved.clone_generator(self.generator)
        if self.refit is not None:
            learned = (process, self._state if self.updates else None, batch, generator)
            process = refitted(*learned, self.refit, updates=self.updates, seed=self.seed)
        state, info = process.update(self._state, batch, generator)
        if process.kernel is not self.kernel:
            self.kernel.load_state_dict(process.kernel.state_dict())
            self.likelihood.load_state_dict(process.likelihood.state_dict())
        self._losses = self._losses.after(info)
        self.clock, self.generator, self._state = batch.clock, generator, state
        # Gaps and moved ends teach nothing.
        self.updates += batch.targets().numel() > 0
        if self.of_time:
            self.spacing = self.spacing.updated(batch.data.x[:, 0].tolist())
        return info

    def _settings(self) -> dict[str, Any]:
        """Return what two models must share for one to read the other's state."""
        options = {"alpha": self.alpha, "dtype": str(self.dtype)}
        return options | saved.model_settings(self.kernel, self.likelihood, self.basis)

    def _check_settings(self) -> None:
        """Refuse a kernel, likelihood or basis of another kind, put in place since."""
        if (now := self._settings()) != self._identity:
            changes = saved.differences(now, self._identity)
            raise ValueError(f"a model must stay of its kind, got {changes}: make a new OnlineGP")

    def _stream(self) -> StreamReader:
        length, count, series = None, 0, ()
        if (state := self._state) is not None:
            length, count, series = state.length, state.count, tuple(state.site.shift.shape[:-1])
        units = (self.kernel.dim, self.kernel.like, self.time_unit, self.growth)
        return StreamReader(*units, self.clock, length, count, series)

    def read(self, t: Any, y: Any, **options: Any) -> Batch:
        """Return data as ``process`` takes them, checked; arguments and errors are ``update``'s."""
        self._check_settings()
        batch = self._stream().batch(t, y, **options)
        self.likelihood.check_targets(batch.targets())
        if batch.data.weights is not None and not isinstance(self.likelihood, Gaussian):
            kind = type(self.likelihood).__name__
            raise ValueError(f"weights must be left out with {kind}: they divide Gaussian noise")
        return batch

    def _ready(self, caller: str) -> OnlineState:
        self._check_settings()
        if self._state is None:
            raise ValueError(f"{caller} needs data: call update first")
        return self._state
