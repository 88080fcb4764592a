"""Variational autoencoder with online Gaussian processes as its latents (thesis C.3, 4.6.3)."""

import copy
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ohsvgp import core
from ohsvgp.bases.base import Advance, Basis
from ohsvgp.inducing import Inducing
from ohsvgp.inputs import Clock, as_points, check_sorted, start_clock
from ohsvgp.state import OnlineState, hyperparameters
from ohsvgp.step import move
from ohsvgp.vae.consolidation import Consolidation, diagonal_fisher
from ohsvgp.vae.memory import Memory, pack, unpack
from ohsvgp.vae.objective import (
    Amortised,
    amortised_posterior,
    gaussian_log_density,
    latent_samples,
    natural_sites,
)
from ohsvgp.vae.task import Task, TaskInfo, Window, relate
from ohsvgp.vae.training import train
from probseq.gaussians import DiagonalGaussian
from probseq.kernels import Kernel

__all__ = ["OnlineSVGPVAE"]

_MEMORY = "memory."


class OnlineSVGPVAE(nn.Module):
    """y_t = decoder(f_t) + ε, ε ~ N(0, σ²I), with L independent processes f learned task by task.

    The encoder's outputs are Gaussian sites on the latents, so q(u) needs no parameters of its own
    (Jazbec et al. 2021). After a task its sites stay, summed up in those of M inducing variables
    that ``basis`` moves along: LegS makes it OHSVGP, ``PivotedCholesky`` OVC, ``RandomSubset``
    plain OSVGP. Networks are kept from forgetting by elastic weight consolidation.

    Deviations from thesis C.3: the corrected bound and the carried site of ``vae.objective``, and
    σ², where it is learned, is consolidated like the networks.

    Args:
        encoder: y of shape (n, d_y) ↦ (ỹ, ṽ), both (n, L), ṽ > 0.
        decoder: f of shape (..., L) ↦ mean of y, (..., d_y).
        kernel: of the latents over time; batch_shape (L,), or () for one that all share.
        basis: how inducing variables follow the stream.
        num_latents: L.
        noise: σ² to start from.
        learn_noise: whether σ² is trained.
        carry: keep the old q(u) as a site. False makes q(u) from the newest task's sites alone, as
            Eq. C.12 reads; earlier tasks are then forgotten.
        consolidation: weight of the penalty on encoder and decoder; 0 for none.
        rel_jitter: relative jitter of K_uu; see ``OnlineGP``.
        t0: where the window starts; the first stamp if None.
        time_unit: numpy's code of the unit that calendar stamps are counted in.
        dtype: of everything but the clock.
        seed: of the model's own random numbers.

    Raises:
        ValueError: a kernel of another batch shape or of more than time, ``noise`` not positive,
            a negative ``consolidation``, or a kernel that the basis cannot serve.

    Example:
        >>> import torch
        >>> from ohsvgp import LegS
        >>> from ohsvgp.vae import MLPDecoder, MLPEncoder, OnlineSVGPVAE
        >>> from probseq.kernels import RBF
        >>> t = torch.linspace(0.0, 4.0, 40)
        >>> y = torch.stack([t.sin(), t.cos(), t.sin() * t.cos()], dim=-1)
        >>> model = OnlineSVGPVAE(
        ...     MLPEncoder(3, 2), MLPDecoder(2, 3), RBF(1), LegS(10), num_latents=2
        ... )
        >>> for part in torch.arange(40).chunk(2):
        ...     info = model.fit_task(t[part], y[part], epochs=5)
        >>> model.predict(t).mean.shape
        torch.Size([40, 3])
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
        learn_noise: bool = True,
        carry: bool = True,
        consolidation: float = 1.0,
        rel_jitter: float | None = None,
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
        if not 0 < noise < float("inf"):
            raise ValueError(f"noise must be a variance above 0 and finite, got {noise}")
        if not 0 <= consolidation < float("inf"):
            raise ValueError(f"consolidation must be at least 0 and finite, got {consolidation}")
        self.encoder = encoder
        self.decoder = decoder
        self.kernel = kernel
        self.raw_noise = nn.Parameter(torch.tensor(noise).log(), requires_grad=learn_noise)
        self.num_latents = num_latents
        self.carry = carry
        self.rel_jitter = rel_jitter
        self.time_unit = time_unit
        self.to(dtype)
        self.consolidation_weight = consolidation
        self.consolidation = Consolidation(self.kept())
        self.generator = torch.Generator(kernel.raw_lengthscale.device).manual_seed(seed)
        # A copy: what the basis draws for this kernel belongs to this model.
        self.basis = copy.deepcopy(basis)
        self.basis.bind(kernel, self.generator)
        self.memory = Memory(None if t0 is None else start_clock([t0], time_unit))
        self.register_state_dict_post_hook(_save_memory)
        self.register_load_state_dict_pre_hook(_load_memory)

    @property
    def noise(self) -> Float[Tensor, ""]:
        """σ²."""
        return self.raw_noise.exp()

    def kept(self) -> list[nn.Parameter]:
        """What elastic weight consolidation holds on to: both networks, and σ² if learned."""
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
        """Train on a task by Adam, then keep its sites and consolidate the networks.

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

        Returns:
            The bounds, and the information lost by moving the inducing set.

        Raises:
            ValueError: bad data, a number below 1, or hyperparameters or inducing variables that
                cannot be learned with this basis.
        """
        for name, value in (
            ("epochs", epochs),
            ("batch_size", 1 if batch_size is None else batch_size),
            ("num_samples", num_samples),
        ):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if learn_kernel and self.basis.fixed_hyperparameters:
            raise ValueError(
                f"learn_kernel must be False with {type(self.basis).__name__}: its inducing "
                "variables cannot be made again under other hyperparameters"
            )
        clock, task = self._task(t, y)
        self.train()
        bounds, inducing = train(
            self,
            task,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            num_samples=num_samples,
            learn_kernel=learn_kernel,
            learn_inducing=learn_inducing,
        )
        self.eval()
        with torch.no_grad():
            window = self.window(task, inducing)
            found = self.amortised(task, window)
        state = OnlineState(
            window.step.inducing,
            window.step.whitening,
            found.site,
            hyperparameters(self.kernel),
            task.length,
            task.count,
        )
        if self.consolidation_weight > 0:
            self._consolidate(task, window)
        self.memory = Memory(clock, state, self.memory.tasks + 1)
        return TaskInfo(bounds, found.lost_information, task.x.shape[0])

    def bound(self, t: Any, y: Any, *, num_samples: int = 1) -> Float[Tensor, ""]:
        """Bound of a task in nats, differentiable; nothing is absorbed and no penalty added.

        Args:
            t: as in ``fit_task``.
            y: as in ``fit_task``.
            num_samples: draws of f per time point.
        """
        _, task = self._task(t, y)
        return self.task_bound(task, self.window(task, task.inducing), None, num_samples)

    def task_bound(
        self, task: Task, window: Window, rows: Tensor | None, num_samples: int
    ) -> Float[Tensor, ""]:
        """Bound with the expected log-likelihood estimated from some of the time points.

        Args:
            task: the data.
            window: the task's covariances.
            rows: positions of the time points to decode; all if None.
            num_samples: draws of f per time point.
        """
        found = self.amortised(task, window)
        mean, variance, y = found.latent.mean, found.latent.variance, task.y
        if rows is not None:
            mean, variance, y = mean[:, rows], variance[:, rows], y[rows]
        f = latent_samples(DiagonalGaussian(mean, variance), num_samples, self.generator)
        expected = gaussian_log_density(y, self.decoder(f), self.noise).sum(-1).mean(0)
        share = task.x.shape[0] / y.shape[0]
        return share * expected.sum() - found.complexity.sum()

    def amortised(self, task: Task, window: Window) -> Amortised:
        """Posterior of the latents from the encoder's sites and the carried one.

        Raises:
            ValueError: the encoder's outputs are not two tensors of shape (n, L), ṽ > 0.
        """
        mean, variance = self.encoder(task.y)
        expected = (task.x.shape[0], self.num_latents)
        if mean.shape != expected or variance.shape != expected:
            raise ValueError(
                f"encoder must give mean and variance of shape {expected}, "
                f"got {tuple(mean.shape)} and {tuple(variance.shape)}"
            )
        if not bool((variance.detach() > 0).all()):
            raise ValueError(
                f"encoder must give variances above 0, got {float(variance.detach().min())}"
            )
        return amortised_posterior(*window, *natural_sites(mean, variance))

    def window(self, task: Task, inducing: Inducing, *, learning: bool = False) -> Window:
        """Covariances of the task under the kernel of now.

        Args:
            task: gives the times.
            inducing: its inducing set.
            learning: hyperparameters may move away from those of the state.
        """
        old = self.memory.state if self.carry else None
        return relate(
            self.basis.prior(self.kernel),
            old,
            task,
            inducing,
            rel_jitter=self.rel_jitter,
            changed=learning or self._changed(old),
        )

    @torch.no_grad()
    def latent(self, t: Any) -> DiagonalGaussian:
        """Q(f) at any times, shape (L, n); the prior before the first task.

        Args:
            t: stamps of shape (n,), in any order.
        """
        kernel = self.basis.prior(self.kernel)
        clock = self.memory.clock or start_clock(t, self.time_unit)
        x = clock.internal(t).to(kernel.raw_lengthscale)[:, None]
        K_ss = kernel.diag(x)
        shape = (self.num_latents, x.shape[0])
        state = self.memory.state
        if state is None:
            return DiagonalGaussian(K_ss.new_zeros(shape), K_ss.expand(shape))
        whitening, site = state.whitening, state.site
        if self._changed(state):
            step = move(
                kernel,
                state,
                state.inducing,
                method="chol",
                rel_jitter=self.rel_jitter,
                changed=True,
            )
            whitening = step.whitening
            site = site if step.T is None else core.carry(site, step.T)
        P = core.features(kernel, state.inducing, whitening.matrix, x)
        return core.predict(core.posterior(site), P, K_ss)

    @torch.no_grad()
    def sample(
        self,
        t: Any,
        num_samples: int,
        *,
        include_noise: bool = True,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "s n d"]:
        """Draws of y, independent over time given the posterior of f.

        Args:
            t: stamps.
            num_samples: S.
            include_noise: y instead of its mean given f.
            generator: source of randomness; the model's own if None.

        Raises:
            ValueError: bad stamps, or S below 1.
        """
        if num_samples < 1:
            raise ValueError(f"num_samples must be at least 1, got {num_samples}")
        source = self.generator if generator is None else generator
        mean = self.decoder(latent_samples(self.latent(t), num_samples, source))
        if not include_noise:
            return mean
        noise = torch.randn(mean.shape, generator=source, dtype=mean.dtype, device=mean.device)
        return mean + self.noise.sqrt() * noise

    def predict(
        self,
        t: Any,
        *,
        num_samples: int = 100,
        include_noise: bool = True,
        generator: torch.Generator | None = None,
    ) -> DiagonalGaussian:
        """Mean and variance of y over draws of f, both of shape (n, d_y).

        Args:
            t: stamps.
            num_samples: draws of f.
            include_noise: add σ² to the variance.
            generator: as in ``sample``.
        """
        means = self.sample(t, num_samples, include_noise=False, generator=generator)
        variance = means.var(0, correction=0)
        with torch.no_grad():
            return DiagonalGaussian(means.mean(0), variance + self.noise * include_noise)

    @torch.no_grad()
    def log_prob(
        self,
        t: Any,
        y: Any,
        *,
        num_samples: int = 100,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "n d"]:
        """Log predictive density of every value by itself: log of the mean of N(y; decoder(f), σ²).

        Args:
            t: stamps of shape (n,).
            y: data of shape (n, d_y).
            num_samples: draws of f.
            generator: as in ``sample``.

        Raises:
            ValueError: bad stamps or data.
        """
        means = self.sample(t, num_samples, include_noise=False, generator=generator)
        data = self._data(y, means.shape[1])
        density = gaussian_log_density(data, means, self.noise)
        return density.logsumexp(0) - torch.tensor(float(num_samples)).log()

    @torch.no_grad()
    def reconstruct(self, y: Any) -> Float[Tensor, "n d"]:
        """Data through encoder and decoder alone: what the networks still know, without the GP.

        Args:
            y: data of shape (n, d_y).
        """
        return self.decoder(self.encoder(self._data(y, None))[0])

    def _task(self, t: Any, y: Any) -> tuple[Clock, Task]:
        """Checked data, the inducing set that follows them, and the clock they are told by."""
        clock = self.memory.clock or start_clock(t, self.time_unit)
        times = clock.internal(t)
        if times.numel() == 0:
            raise ValueError("t must hold at least one stamp, got none")
        check_sorted(times)
        if float(times[0]) < 0:
            raise ValueError(
                f"t must not lie before t0={clock.user(0.0)}, got {clock.user(float(times[0]))}"
            )
        x = times.to(self.kernel.raw_lengthscale)[:, None]
        data = self._data(y, x.shape[0])
        old = self.memory.state
        count = x.shape[0] + (0 if old is None else old.count)
        length = max(float(times[-1]), 0.0 if old is None else old.length)
        with torch.no_grad():
            inducing = self.basis.advance(
                Advance(
                    kernel=self.basis.prior(self.kernel),
                    previous=None if old is None else old.inducing,
                    inputs=x,
                    length=length,
                    origin=float(clock.origin) if clock.unit is None else 0.0,
                    generator=self.generator,
                )
            )
        return clock, Task(x, data, inducing, length, count)

    def _data(self, y: Any, count: int | None) -> Tensor:
        array = torch.as_tensor(y)
        if array.ndim != 2 or (count is not None and array.shape[0] != count):
            raise ValueError(
                f"y must have shape ({'n' if count is None else count}, channels), "
                f"got {tuple(array.shape)}"
            )
        return as_points(array, array.shape[1], self.raw_noise)

    def _changed(self, state: OnlineState | None) -> bool:
        return state is not None and not torch.equal(
            state.hyperparameters, hyperparameters(self.kernel)
        )

    def _consolidate(self, task: Task, window: Window) -> None:
        parameters = self.kept()
        with torch.enable_grad():
            f = latent_samples(self.amortised(task, window).latent, 1, self.generator)[0]
            mean = self.decoder(f)
            # Drawn from the model, as the Fisher information asks for; the draw is data.
            noise = torch.randn(
                mean.shape, generator=self.generator, dtype=mean.dtype, device=mean.device
            )
            y = (mean + self.noise.sqrt() * noise).detach()
            log_prob = gaussian_log_density(y, mean, self.noise).sum(-1)
            fisher = diagonal_fisher(log_prob, parameters)
        self.consolidation.consolidate(parameters, fisher)


def _save_memory(
    module: nn.Module, state_dict: dict[str, Tensor], prefix: str, local_metadata: Any
) -> None:
    if isinstance(module, OnlineSVGPVAE):
        packed = pack(module.memory, module.basis, module.generator)
        state_dict |= {f"{prefix}{_MEMORY}{name}": tensor for name, tensor in packed.items()}


def _load_memory(module: nn.Module, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
    if isinstance(module, OnlineSVGPVAE):
        start = f"{prefix}{_MEMORY}"
        # Taken out, since the module knows no parameters of these names.
        packed = {
            name.removeprefix(start): state_dict.pop(name)
            for name in list(state_dict)
            if name.startswith(start)
        }
        module.memory = unpack(packed, module.basis, module.generator, module.raw_noise)
