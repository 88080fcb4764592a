"""What a Gaussian process that learns from a stream keeps, and how it is saved."""

import copy
from functools import partial
from numbers import Real
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ohsvgp.bases.base import CAN_FOLLOW, Basis
from ohsvgp.bases.learning import AdamSteps
from ohsvgp.hyperparameters import Refit
from ohsvgp.inducing import continuous
from ohsvgp.inference.natural import natural_update
from ohsvgp.inference.variational import variational_update
from ohsvgp.likelihoods import Gaussian, Likelihood
from ohsvgp.lost import Losses
from ohsvgp.means import Mean, WithMean
from ohsvgp.process import Process
from ohsvgp.saved import (
    basis_settings,
    clock_from_tensors,
    clock_tensors,
    differences,
    generator_from_tensors,
    module_shapes,
    pace_from_tensors,
    pace_tensors,
    pack,
    unpack,
)
from ohsvgp.state import OnlineState
from ohsvgp.stream.batch import Batch, Stream
from ohsvgp.stream.clock import Clock, nanoseconds, start_clock
from ohsvgp.stream.spacing import StampSpacing
from ohsvgp.stream.window import growth_factor
from ohsvgp.whitening import check_jitter
from probseq.checks import check_whole
from probseq.kernels import Kernel

__all__ = ["StreamModel", "twin"]


def _check_kind(name: str, part: object, kind: type) -> None:
    """Refuse what is no part of a model, such as the name of a kernel."""
    if not isinstance(part, kind):
        raise ValueError(f"{name} must be a {kind.__name__}, got {part!r}")


class StreamModel:
    """Arguments, state and saved form of ``OnlineGP``."""

    def __init__(
        self,
        kernel: Kernel,
        likelihood: Likelihood,
        basis: Basis,
        *,
        mean: Mean | None = None,
        whitening: Literal["chol", "eig"] = "chol",
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
        _check_kind("kernel", kernel, Kernel)
        _check_kind("likelihood", likelihood, Likelihood)
        _check_kind("basis", basis, Basis)
        if mean is not None:
            _check_kind("mean", mean, Mean)
        if whitening not in ("chol", "eig"):
            raise ValueError(f'whitening must be "chol" or "eig", got {whitening!r}')
        if not isinstance(alpha, Real) or not 0 <= alpha <= 1:
            raise ValueError(f"alpha must be from 0 to 1, got {alpha!r}")
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
        self.seed = seed
        check_jitter(rel_jitter)
        self.kernel = kernel.double()
        self.likelihood = likelihood.double()
        self.whitening: Literal["chol", "eig"] = whitening
        self.alpha = float(alpha)
        self.rel_jitter = rel_jitter
        self.time_unit = time_unit
        self.dtype = dtype
        self.generator = torch.Generator(kernel.like.device).manual_seed(seed)
        # A copy: what the basis draws for this kernel belongs to this model.
        own = copy.deepcopy(basis)
        self.mean = mean
        self.basis = own if mean is None else WithMean(own, mean)
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
        self.clock: Clock | None = None if t0 is None else start_clock([t0], time_unit)
        self._state: OnlineState | None = None
        self._losses = Losses()
        self.pace = StampSpacing()
        self.told_beyond = False
        self.refit = refit
        self.updates = 0
        self._identity = self._settings()

    @property
    def of_time(self) -> bool:
        """Whether inputs are times; otherwise points, and the window is counted in points."""
        return self.kernel.dim == 1

    @property
    def state(self) -> OnlineState | None:
        """What is remembered of the stream; None before the first update."""
        return self._state

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
                "updates": {"": torch.tensor(self.updates)},
                "pace": pace_tensors(self.pace),
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
        device, source = self.generator.device, "OnlineGP.state_dict"
        groups = unpack(tensors, self._settings(), device, source=source)
        # The generator and the basis refuse what is not their own; until then nothing is changed.
        generator = twin(self.generator)
        generator_from_tensors(generator, groups["generator"][""])
        self.basis.load_tensors(groups.get("basis", {}))
        self.generator = generator
        self.kernel.load_state_dict(groups["kernel"])
        self.likelihood.load_state_dict(groups.get("likelihood", {}))
        self.clock = clock_from_tensors(groups.get("clock", {}))
        self._state = OnlineState.from_tensors(groups, self.basis.restore)
        self._losses = Losses()
        self.told_beyond = False
        self.pace = pace_from_tensors(groups.get("pace", {}))
        self.updates = int(groups["updates"][""])

    def _settings(self) -> dict[str, Any]:
        """What two models must share for one to read the other's state."""
        parts = {"kernel": self.kernel, "likelihood": self.likelihood}
        return {
            **{name: _kind(part) for name, part in parts.items()},
            **{f"{name}_parameters": module_shapes(part) for name, part in parts.items()},
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
            like=self.kernel.like,
            time_unit=self.time_unit,
            growth=self.growth,
            clock=self.clock,
            length=None if state is None else state.length,
            count=0 if state is None else state.count,
            series=() if state is None else tuple(state.site.shift.shape[:-1]),
        )

    def inputs(self, t: Any) -> Tensor:
        """Inputs as ``process`` takes them, shape (n, dim); times are told since t0.

        Args:
            t: stamps or points, in any order.

        Raises:
            ValueError: bad inputs.
        """
        self._check_kind()
        return self._stream().inputs(t)

    def user_inputs(self, x: Tensor) -> np.ndarray:
        """Stamps or points of a user, of ``inputs``.

        Args:
            x: shape (n, dim).
        """
        if not self.of_time:
            return x.detach().cpu().numpy()
        clock = self.clock or Clock(0.0)
        return np.array([clock.user(length) for length in x[:, 0].tolist()])

    def _read(self, t: Any, y: Any, **options: Any) -> Batch:
        self._check_kind()
        batch = self._stream().batch(t, y, **options)
        self.likelihood.check_targets(batch.targets())
        if batch.data.weights is not None and not isinstance(self.likelihood, Gaussian):
            kind = type(self.likelihood).__name__
            raise ValueError(f"weights must be left out with {kind}: they divide Gaussian noise")
        return batch

    @property
    def process(self) -> Process:
        """The functions of ``state`` that ``update`` and ``predict`` call."""
        return Process(
            kernel=self.kernel,
            likelihood=self.likelihood,
            basis=self.basis,
            whitening=self.whitening,
            alpha=self.alpha,
            rel_jitter=self.rel_jitter,
            infer=self._infer,
            stays=self.growth is not None,
        )

    def _ready(self, caller: str) -> OnlineState:
        self._check_kind()
        if self._state is None:
            raise ValueError(f"{caller} needs data: call update first")
        return self._state

    def _check_kind(self) -> None:
        """Refuse a kernel, likelihood or basis of another kind, put in place since."""
        if (now := self._settings()) != self._identity:
            raise ValueError(
                f"a model must stay of its kind, got {differences(now, self._identity)}: make a "
                "new OnlineGP"
            )


def _kind(module: nn.Module) -> str:
    """Class of a module; of a sum or product, with those of its parts."""
    kinds = [type(part).__name__ for part in module.modules()]
    return " ".join(kind for kind in kinds if kind != "ModuleList")


def twin(generator: torch.Generator) -> torch.Generator:
    """A generator in the same state."""
    twin = torch.Generator(generator.device)
    twin.set_state(generator.get_state())
    return twin
