"""Variational autoencoder with online Gaussian processes as its latents (thesis C.3, 4.6.3)."""

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ohsvgp import core
from ohsvgp.bases.base import Advance, Basis
from ohsvgp.core import Site
from ohsvgp.inducing import Inducing, hyperparameters
from ohsvgp.mismatch import PriorMismatchWarning
from ohsvgp.state import OnlineState, canonical
from ohsvgp.stream.clock import Clock, sorted_times, start_clock
from ohsvgp.vae.consolidation import Consolidation, predictive_fisher
from ohsvgp.vae.memory import LatentMemory, load_memory, move_memory, save_memory
from ohsvgp.vae.objective import (
    Amortised,
    amortised_posterior,
    encoder_sites,
    gaussian_log_density,
    latent_samples,
)
from ohsvgp.vae.task import TaskCovariances, TaskData, TaskInfo, as_channels, relate
from ohsvgp.vae.training import LearnedPoints, train
from probseq.checks import check_counts, check_not_negative, check_positive, check_whole
from probseq.gaussians import DiagonalGaussian, standard_normal
from probseq.kernels import Kernel

# In units of the networks' weights, which Adam moves in steps of a hundredth or so.
_FAR = 10.0


class OnlineSVGPVAE(nn.Module):
    """y_t = decoder(f_t) + ε, ε ~ N(0, σ²I), with L independent processes f learned task by task.

    The encoder's outputs are Gaussian sites on the latents, so q(u) needs no parameters of its own
    (Jazbec et al. 2021). After a task its sites stay, summed up in those of M inducing variables
    that ``basis`` moves along: LegS makes it OHSVGP, ``PivotedCholesky`` OVC, ``RandomSubset``
    plain OSVGP. Elastic weight consolidation protects the networks from forgetting.

    What is remembered goes along where the model is moved, and random numbers are others there.

    Deviations from thesis C.3: the corrected bound and the carried site of ``vae.objective``, and
    σ² is consolidated like the networks.

    Args:
        encoder: y of shape (n, d_y) ↦ (ỹ, ṽ), both (n, L), ṽ > 0.
        decoder: f of shape (..., L) ↦ mean of y, (..., d_y).
        kernel: of the latents over time; batch_shape (L,), or () for one that all share.
        basis: how inducing variables follow the stream.
        num_latents: L.
        noise: σ² to start from.
        carry: keep the old q(u) as a site. False makes q(u) from the newest task's sites alone, as
            Eq. C.12 reads; earlier tasks are then forgotten.
        consolidation: weight of the penalty on encoder and decoder; 0 for none.
        t0: where the window starts; the first stamp if None.
        time_unit: numpy's code of the unit that calendar stamps are counted in.
        dtype: of networks, data and predictions; the latent processes are in float64.
        seed: of the model's own random numbers.
    """

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        kernel: Kernel,
        basis: Basis,
        *,
        num_latents: int,
        noise: float = 0.1,
        carry: bool = True,
        consolidation: float = 1.0,
        t0: Any = None,
        time_unit: str = "D",
        dtype: torch.dtype = torch.float64,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if kernel.dim != 1 or kernel.batch_shape not in ((), (num_latents,)):
            raise ValueError(
                f"kernel must have dim=1 and batch_shape=() or ({num_latents},), "
                f"got dim={kernel.dim} and batch_shape={kernel.batch_shape}"
            )
        check_counts(num_latents=num_latents)
        check_positive(noise=noise)
        check_not_negative(consolidation=consolidation)
        check_whole(seed=seed)
        self.encoder = encoder
        self.decoder = decoder
        self.kernel = kernel
        level = torch.tensor(noise, dtype=torch.float64, device=kernel.like.device)
        self.raw_noise = nn.Parameter(level.log())
        self.num_latents = num_latents
        self.carry = carry
        self.time_unit = time_unit
        self.to(dtype)
        self.kernel.double()
        self.consolidation_weight = consolidation
        self.consolidation = Consolidation(self.consolidated())
        self.generator = torch.Generator(kernel.like.device).manual_seed(seed)
        # A copy: what the basis draws for this kernel belongs to this model.
        self.basis = copy.deepcopy(basis)
        self.basis.bind(kernel, self.generator)
        self.memory = LatentMemory(None if t0 is None else start_clock([t0], time_unit))
        self.register_state_dict_post_hook(save_memory)
        self.register_load_state_dict_pre_hook(load_memory)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "OnlineSVGPVAE":
        """Take what is remembered along to another device."""
        before = self.raw_noise.device
        super()._apply(fn, recurse)
        if self.raw_noise.device != before:
            move_memory(self, self.raw_noise.device)
        return self

    @property
    def noise(self) -> Float[Tensor, ""]:
        """σ²."""
        return self.raw_noise.exp()

    def consolidated(self) -> list[nn.Parameter]:
        """Return what elastic weight consolidation protects: both networks, and σ² if learned."""
        networks = [*self.encoder.parameters(), *self.decoder.parameters(), self.raw_noise]
        return [parameter for parameter in networks if parameter.requires_grad]

    def fit_task(
        self,
        t: Any,
        y: Any,
        *,
        epochs: int = 20,
        batch_size: int | None = None,
        learning_rate: float = 5e-3,
        num_samples: int = 1,
        learn_kernel: bool = False,
        learn_inducing: bool = False,
    ) -> TaskInfo:
        """Train on a task by Adam, then carry its sites on and consolidate the networks.

        Every step encodes all time points of the task, so that q(u) is that of the whole task;
        the batch is what is decoded: its expected log-likelihood, times n/|batch|, is an unbiased
        estimate of the task's. The model is in evaluation mode afterwards.

        Args:
            t: stamps of shape (n,), sorted, not before t0.
            y: data of shape (n, d_y).
            epochs: passes over the task.
            batch_size: time points per step; all if None.
            learning_rate: of Adam.
            num_samples: draws of f per time point and step.
            learn_kernel: train the kernel's hyperparameters too (thesis: in the first task only).
            learn_inducing: train the inducing points too (plain OSVGP).

        Warns:
            PriorMismatchWarning: channels of the first task lie far from where networks reach.
        """
        check_counts(epochs=epochs, num_samples=num_samples)
        if batch_size is not None:
            check_counts(batch_size=batch_size)
        check_positive(learning_rate=learning_rate)
        if learn_kernel and self.basis.fixed_hyperparameters:
            raise ValueError(
                f"learn_kernel must be False with {type(self.basis).__name__}: its inducing "
                "variables cannot be made again under other hyperparameters"
            )
        clock, task = self.prepare(t, y)
        if self.memory.tasks == 0:
            self._warn_of_units(task.y)
        points = LearnedPoints(task.inducing, self.kernel) if learn_inducing else None
        hyper = [*self.kernel.parameters()] if learn_kernel else []
        moved = [] if points is None else [points.offset]
        fixed = None
        if points is None and not learn_kernel:
            with torch.no_grad():
                fixed = self.window(task, task.inducing)

        def set_now() -> Inducing:
            return task.inducing if points is None else points.inducing()

        def bound(rows: Tensor) -> Tensor:
            window = fixed or self.window(task, set_now(), learning=learn_kernel)
            return self.task_bound(task, window, rows, num_samples)

        weights = self.consolidated()
        self.train()
        bounds = train(
            bound,
            lambda: self.consolidation_weight * self.consolidation.penalty(weights),
            [*weights, *hyper, *moved],
            count=task.x.shape[0],
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            generator=self.generator,
        )
        self.eval()
        with torch.no_grad():
            window = self.window(task, set_now())
        q = self.amortised(task, window)
        if self.consolidation_weight > 0:
            fisher = predictive_fisher(q.latent, self._decode, self.noise, weights, self.generator)
            self.consolidation.consolidate(weights, fisher)
        self._remember(clock, task, window, q)
        return TaskInfo(bounds, q.lost_information, task.x.shape[0])

    def bound(self, t: Any, y: Any, *, num_samples: int = 1) -> Float[Tensor, ""]:
        """Return the bound of a task in nats, differentiable; absorb nothing, add no penalty."""
        check_counts(num_samples=num_samples)
        task = self.prepare(t, y)[1]
        return self.task_bound(task, self.window(task, task.inducing), None, num_samples)

    def prepare(self, t: Any, y: Any) -> tuple[Clock, TaskData]:
        """Check data as of ``fit_task`` and make the inducing set follow them; absorb nothing."""
        clock = self.memory.clock or start_clock(t, self.time_unit)
        times, _ = sorted_times(clock, t)
        if times.numel() == 0:
            raise ValueError("t must hold at least one stamp, got none")
        x = times.to(self.kernel.like)[:, None]
        data = as_channels(y, x.shape[0], self.raw_noise)
        old = self.memory.state
        length = max(float(times[-1]), 0.0 if old is None else old.length)
        if not length > 0:
            raise ValueError(
                "t must span some time in the first task, got a single instant: give more stamps, "
                "or t0"
            )
        step = Advance(
            kernel=self.basis.prior(self.kernel),
            previous=None if old is None else old.inducing,
            inputs=x,
            length=length,
            origin=float(clock.origin) if clock.unit is None else 0.0,
            generator=self.generator,
        )
        with torch.no_grad():
            inducing = self.basis.advance(step)
        return clock, TaskData(x, data, inducing, length, x.shape[0] + (old.count if old else 0))

    def task_bound(
        self, task: TaskData, window: TaskCovariances, rows: Tensor | None, num_samples: int
    ) -> Float[Tensor, ""]:
        """Return the bound, its expected log-likelihood estimated from some time points.

        Rows are the time points to decode; all if None.
        """
        q = self.amortised(task, window)
        mean, variance, y = q.latent.mean, q.latent.variance, task.y
        if rows is not None:
            mean, variance, y = mean[:, rows], variance[:, rows], y[rows]
        f = latent_samples(DiagonalGaussian(mean, variance), num_samples, self.generator)
        expected = gaussian_log_density(y, self._decode(f), self.noise).sum(-1).mean(0)
        # n/|batch| E_q[log p(y|f)] − KL(q(v) ‖ p(v)) + E_q[log of the old site].
        share = task.x.shape[0] / y.shape[0]
        return share * expected.sum() - q.complexity.sum()

    def amortised(self, task: TaskData, window: TaskCovariances) -> Amortised:
        """Return the posterior of the latents from the encoder's sites and the carried one."""
        sites = encoder_sites(self.encoder, task.y, self.num_latents)
        return amortised_posterior(*window, *(site.to(task.x.dtype) for site in sites))

    def window(
        self, task: TaskData, inducing: Inducing, *, learning: bool = False
    ) -> TaskCovariances:
        """Return the covariances of the task under the kernel of now.

        ``learning`` says that hyperparameters may move away from those of the state.
        """
        old = self.memory.state if self.carry else None
        return relate(
            self.basis.prior(self.kernel),
            old,
            task.x,
            inducing,
            changed=learning or self._changed(old),
        )

    @torch.no_grad()
    def latent(self, t: Any) -> DiagonalGaussian:
        """Return q(f) at stamps in any order, shape (L, n); the prior before the first task."""
        clock = self.memory.clock or start_clock(t, self.time_unit)
        x = clock.internal(t).to(self.kernel.like)[:, None]
        kernel, state = self.basis.prior(self.kernel), self.memory.state
        K_ss = kernel.diag(x)
        if state is None:
            shape = (self.num_latents, x.shape[0])
            return DiagonalGaussian(K_ss.new_zeros(shape), K_ss.expand(shape))
        changed = self._changed(state)
        step, Psi, _ = relate(kernel, state, x, state.inducing, changed=changed)
        return core.predict(core.posterior(step.carried.site), Psi, K_ss)

    @torch.no_grad()
    def sample(
        self,
        t: Any,
        num_samples: int,
        *,
        include_noise: bool = True,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "s n d"]:
        """Draw y, independently over time given the posterior of f.

        Without ``include_noise`` these are means of y given f; the generator is torch's own if
        None.
        """
        check_counts(num_samples=num_samples)
        mean = self._decode(latent_samples(self.latent(t), num_samples, generator))
        if not include_noise:
            return mean
        noise = standard_normal(mean.shape, like=mean, generator=generator)
        return mean + self.noise.sqrt() * noise

    def predict(
        self,
        t: Any,
        *,
        num_samples: int = 100,
        include_noise: bool = True,
        generator: torch.Generator | None = None,
    ) -> DiagonalGaussian:
        """Return mean and variance of y over draws of f, both of shape (n, d_y)."""
        means = self.sample(t, num_samples, include_noise=False, generator=generator)
        variance = means.var(0, correction=0)
        with torch.no_grad():
            return DiagonalGaussian(means.mean(0), variance + self.noise * include_noise)

    @torch.no_grad()
    def log_prob(
        self, t: Any, y: Any, *, num_samples: int = 100, generator: torch.Generator | None = None
    ) -> Float[Tensor, "n d"]:
        """Return log predictive densities: logs of means of N(y; decoder(f), σ²)."""
        means = self.sample(t, num_samples, include_noise=False, generator=generator)
        data = as_channels(y, means.shape[1], means)
        density = gaussian_log_density(data, means, self.noise)
        return density.logsumexp(0) - math.log(num_samples)

    def _warn_of_units(self, y: Tensor) -> None:
        """Warn of channels that half of the time are more than 10 from the decoder's start."""
        with torch.no_grad():
            start = self._decode(self.raw_noise.new_zeros(self.num_latents))
        far = (y - start).abs().median(0).values > _FAR
        if bool(far.any()):
            channel = int(far.nonzero()[0, 0])
            mean, deviation = float(y[:, channel].mean()), float(y[:, channel].std())
            warnings.warn(
                f"y[:, {channel}] lies about {mean:.3g} ± {deviation:.3g}, where the decoder "
                f"starts at {float(start[channel]):.3g}, and Adam hardly comes: give channels of "
                "mean 0 and deviation 1",
                PriorMismatchWarning,
                stacklevel=3,
            )

    def _decode(self, f: Tensor) -> Tensor:
        return self.decoder(f.to(self.raw_noise.dtype))

    def _changed(self, state: OnlineState | None) -> bool:
        return state is not None and not torch.equal(
            state.hyperparameters, hyperparameters(self.kernel)
        )

    def _remember(
        self, clock: Clock, task: TaskData, window: TaskCovariances, q: Amortised
    ) -> None:
        step, now = window.step, hyperparameters(self.kernel)
        site = Site(q.site.precision.detach(), q.site.shift.detach())
        state = OnlineState(step.inducing, step.whitening, site, now, task.length, task.count)
        state = canonical(state, self.basis.restore, self.memory.state)
        self.memory = LatentMemory(clock, state, self.memory.tasks + 1)
