"""Base classes of kernels: checked inputs, and positive hyperparameters per head."""

from collections.abc import Callable, Iterable
from functools import reduce
from itertools import chain, product
from typing import ClassVar, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probseq.checks import broadcastable, check_counts, check_positive, check_shape

__all__ = ["ARDKernel", "Constant", "DataUnits", "Kernel", "Limits", "Product", "Spectrum", "Sum"]


class Spectrum(NamedTuple):
    """Spectrum of a stationary kernel of one input dimension, or of one term of a sum."""

    # Angular frequency that all but the given share of the smooth factors' variance lies below
    band: float
    # Smoothness ν and lengthscale of each Matérn factor, whose spectrum has no such end
    rough: tuple[tuple[float, float], ...] = ()


class Limits(NamedTuple):
    """Interval in which a fit looks for a parameter, in user units; shapes broadcast with it."""

    low: Tensor  # lower limit
    high: Tensor  # upper limit
    # (median, factor) of a log-normal prior between the limits; None for a uniform one
    prior: tuple[float, float] | None = None
    # Value to start from instead of one far outside
    start: Tensor | None = None


class DataUnits(NamedTuple):
    """Units of data that limits of hyperparameters are written in."""

    gap: Tensor  # shortest lengthscale that inputs tell of
    span: Tensor  # longest one
    variance: Limits  # of an outputscale
    least: Tensor  # least mean square of the targets of a series
    most: Tensor  # largest one
    rate: Tensor  # mean square of the targets' steps, per time


class Kernel(nn.Module):
    """A covariance function k(x, z).

    A subclass writes ``_covariance``, ``_variance`` and ``resolution``. Kernels of one ``dim`` are
    added and multiplied with ``+`` and ``*``; a positive number multiplies the variance.

    Inputs broadcast against ``batch_shape``: with ``batch_shape=(num_heads,)``, inputs of shape
    (B, num_heads, T, dim), (num_heads, T, dim) and (T, dim) are all evaluated once per head.

    NaN and infinity in a tensor reach the result. ``batch_shape`` is that of independent kernels,
    e.g. ``(num_heads,)``, ``dim`` the number d of input dimensions.
    """

    def __init__(self, dim: int, *, batch_shape: tuple[int, ...] = ()) -> None:
        super().__init__()
        check_counts(dim=dim)
        check_shape(batch_shape=batch_shape)
        self.dim = dim
        self.batch_shape = batch_shape

    @property
    def like(self) -> Tensor:
        """A tensor with the dtype and device of the parameters."""
        return next(self.parameters()).detach()

    @property
    def resolution(self) -> Float[Tensor, "*heads 1 d"]:
        """Distance over which the process changes: the lengthscale, where there is one.

        Infinity for a constant or a line; the least of the parts of a sum or a product.
        """
        raise NotImplementedError(f"{type(self).__name__} has no resolution")

    @property
    def continuous(self) -> "Kernel | None":
        """The kernel without white noise, which no projection of f sees; None if that is all."""
        return self

    def spectra(self, share: float) -> list[Spectrum] | None:
        """Return the terms of a kernel of time that a quadrature has to resolve; None if unknown.

        ``share`` is that of the variance that may lie above ``Spectrum.band``.
        """
        return None

    def limits(self, units: DataUnits) -> dict[str, Limits]:
        """Return intervals of parameters by name; the others stay near their values."""
        return {}

    def __add__(self, other: object) -> "Kernel":
        return Sum(self, other) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, other: "Kernel | float") -> "Kernel":
        if isinstance(other, Kernel):
            return Product(self, other)
        check_positive(factor=other)
        return Product(
            Constant(self.dim, outputscale=torch.tensor(other, dtype=torch.float64).to(self.like)),
            self,
        )

    __rmul__ = __mul__

    def forward(
        self, x: Float[Tensor, "*#b n d"], z: Float[Tensor, "*#b m d"]
    ) -> Float[Tensor, "*#b n m"]:
        """Return the covariance matrix of the function values at ``x`` and at ``z``.

        Autocast is switched off inside: eight bits of mantissa do not survive a Cholesky
        factorisation.
        """
        x, z = self._checked("x", x), self._checked("z", z)
        dtype = torch.promote_types(x.dtype, z.dtype)
        x, z = x.to(dtype), z.to(dtype)
        if not broadcastable(x.shape[:-2], z.shape[:-2], self.batch_shape):
            raise ValueError(
                "x and z must have batches that broadcast against one another and against "
                f"batch_shape={self.batch_shape}, got {tuple(x.shape)} and {tuple(z.shape)}"
            )
        with torch.autocast(x.device.type, enabled=False):
            return self._covariance(x, z).to(dtype)

    def diag(self, x: Float[Tensor, "*#b n d"]) -> Float[Tensor, "*#b n"]:
        """Return the variances k(x_i, x_i): the diagonal of ``kernel(x, x)`` in O(n)."""
        x = self._checked("x", x)
        if not broadcastable(x.shape[:-2], self.batch_shape):
            raise ValueError(
                f"x must have a batch that broadcasts against batch_shape={self.batch_shape}, "
                f"got {tuple(x.shape)}"
            )
        with torch.autocast(x.device.type, enabled=False):
            return self._variance(x).to(x.dtype)

    def extra_repr(self) -> str:
        """Return the constructor's sizes, for ``print(model)``."""
        return f"dim={self.dim}, batch_shape={self.batch_shape}"

    def _covariance(self, x: Tensor, z: Tensor) -> Tensor:
        raise NotImplementedError

    def _variance(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _checked(self, name: str, inputs: Tensor) -> Tensor:
        if inputs.ndim < 2 or inputs.shape[-1] != self.dim:
            raise ValueError(
                f"{name} must have shape (..., number of points, {self.dim}), "
                f"got {tuple(inputs.shape)}: the last dimension is the kernel's dim"
            )
        dtype = torch.promote_types(inputs.dtype, self.like.dtype)
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"{name} or the kernel must be float32 or float64, and neither complex, got "
                f"{inputs.dtype} and a kernel in {self.like.dtype}: convert one"
            )
        return inputs.to(dtype)


class _ScaledKernel(Kernel):
    """A kernel that a variance multiplies, of which there is one per head."""

    raw_outputscale: nn.Parameter

    @property
    def outputscale(self) -> Float[Tensor, "*heads"]:
        """σ_f², the variance that multiplies the kernel, one per head."""
        return self.raw_outputscale.exp()

    def limits(self, units: DataUnits) -> dict[str, Limits]:
        """Return that of σ_f²."""
        return {"raw_outputscale": units.variance}

    def _variance(self, x: Tensor) -> Tensor:
        # Not torch.broadcast_shapes, which imports sympy: seconds in the first call of a process.
        return torch.broadcast_tensors(self.outputscale[..., None], x[..., 0])[0]


class ARDKernel(_ScaledKernel):
    """A kernel with one lengthscale per input dimension and one scale.

    Hyperparameters are stored as logarithms in ``raw_lengthscale`` (``*batch_shape, 1, dim``) and
    ``raw_outputscale`` (``*batch_shape``), and read in user units through ``lengthscale`` and
    ``outputscale``.

    Args:
        dim: number of input dimensions d.
        batch_shape: shape of a batch of independent kernels, e.g. ``(num_heads,)``.
        lengthscale: initial value, broadcast to (*batch_shape, 1, dim).
        outputscale: initial value of the variance σ_f², broadcast to (*batch_shape).
    """

    def __init__(
        self,
        dim: int,
        *,
        batch_shape: tuple[int, ...] = (),
        lengthscale: float | Tensor = 1.0,
        outputscale: float | Tensor = 1.0,
    ) -> None:
        super().__init__(dim, batch_shape=batch_shape)
        self.raw_lengthscale = log_parameter("lengthscale", lengthscale, (*batch_shape, 1, dim))
        self.raw_outputscale = log_parameter("outputscale", outputscale, self.batch_shape)

    @property
    def lengthscale(self) -> Float[Tensor, "*heads 1 d"]:
        """ℓ, one per head and input dimension."""
        return self.raw_lengthscale.exp()

    @property
    def resolution(self) -> Float[Tensor, "*heads 1 d"]:
        """ℓ."""
        return self.lengthscale


class Constant(_ScaledKernel):
    """k(x, z) = σ_f²: a function that has one unknown value everywhere; as ``ARDKernel``."""

    def __init__(
        self,
        dim: int,
        *,
        batch_shape: tuple[int, ...] = (),
        outputscale: float | Tensor = 1.0,
    ) -> None:
        super().__init__(dim, batch_shape=batch_shape)
        self.raw_outputscale = log_parameter("outputscale", outputscale, self.batch_shape)

    @property
    def resolution(self) -> Float[Tensor, "*heads 1 d"]:
        """Infinity."""
        return self.like.new_full((*self.batch_shape, 1, self.dim), torch.inf)

    def spectra(self, share: float) -> list[Spectrum] | None:
        """Return one term at frequency zero."""
        return [Spectrum(0.0)]

    def _covariance(self, x: Tensor, z: Tensor) -> Tensor:
        shape = torch.broadcast_tensors(x[..., :, None, 0], z[..., None, :, 0])[0]
        return torch.broadcast_tensors(self.outputscale[..., None, None], shape)[0]


class _Composite(Kernel):
    """Kernels of one ``dim`` whose batches broadcast, as ``parts``; nested ones are flattened."""

    _combine: ClassVar[Callable[..., Tensor]]  # of the values of two parts

    def __init__(self, *parts: Kernel) -> None:
        if not parts:
            raise ValueError("parts must be one kernel or more, got none")
        dims = [kernel.dim for kernel in parts]
        shapes = [kernel.batch_shape for kernel in parts]
        if len(set(dims)) > 1 or not broadcastable(*shapes):
            raise ValueError(
                "parts must have the same dim and batch shapes that broadcast, got "
                f"dim {dims} and batch_shape {shapes}"
            )
        batch = torch.broadcast_tensors(*(torch.empty(shape) for shape in shapes))[0].shape
        super().__init__(dims[0], batch_shape=tuple(batch))
        nested = (kernel.parts if type(kernel) is type(self) else [kernel] for kernel in parts)
        self.parts = nn.ModuleList(chain.from_iterable(nested))

    @property
    def kernels(self) -> list[Kernel]:
        """The parts."""
        return list(cast("Iterable[Kernel]", self.parts))

    @property
    def resolution(self) -> Float[Tensor, "*heads 1 d"]:
        """The least of the parts."""
        resolutions = torch.broadcast_tensors(*(kernel.resolution for kernel in self.kernels))
        return torch.stack(list(resolutions)).amin(0)

    def _covariance(self, x: Tensor, z: Tensor) -> Tensor:
        return reduce(self._combine, (kernel._covariance(x, z) for kernel in self.kernels))

    def _variance(self, x: Tensor) -> Tensor:
        return reduce(self._combine, (kernel._variance(x) for kernel in self.kernels))


class Sum(_Composite):
    """k(x, z) = Σ_i k_i(x, z): the covariance of a sum of independent processes."""

    _combine = staticmethod(torch.add)

    @property
    def continuous(self) -> Kernel | None:
        """The sum of the parts' continuous ones."""
        candidates = [kernel.continuous for kernel in self.kernels]
        continuous = [kernel for kernel in candidates if kernel is not None]
        if all(a is b for a, b in zip(candidates, self.kernels, strict=True)):
            return self
        return Sum(*continuous) if continuous else None

    def spectra(self, share: float) -> list[Spectrum] | None:
        """Return the terms of all parts."""
        spectra = [kernel.spectra(share) for kernel in self.kernels]
        if any(terms is None for terms in spectra):
            return None
        return [term for terms in spectra for term in terms or ()]


class Product(_Composite):
    """k(x, z) = Π_i k_i(x, z).

    The scales of the factors multiply: the evidence knows only their product.
    """

    _combine = staticmethod(torch.mul)

    @property
    def continuous(self) -> Kernel | None:
        """The product of the factors' continuous parts: white noise times anything is white."""
        candidates = [kernel.continuous for kernel in self.kernels]
        continuous = [kernel for kernel in candidates if kernel is not None]
        if len(continuous) < len(candidates):
            return None
        same = all(a is b for a, b in zip(continuous, self.kernels, strict=True))
        return self if same else Product(*continuous)

    def spectra(self, share: float) -> list[Spectrum] | None:
        """Return terms whose bands add: the product's spectrum convolves those of the factors."""
        terms = [Spectrum(0.0)]
        for kernel in self.kernels:
            spectra = kernel.spectra(share)
            if spectra is None:
                return None
            pairs = product(terms, spectra)
            terms = [Spectrum(a.band + b.band, (*a.rough, *b.rough)) for a, b in pairs]
        return terms


def log_parameter(
    name: str, value: float | Tensor, shape: tuple[int, ...] | None = None
) -> nn.Parameter:
    """Return a parameter that holds log(value), broadcast to ``shape`` if it is given."""
    value = torch.as_tensor(value)
    if value.is_complex():
        raise ValueError(f"{name} must be real, got {value.dtype}")
    if not value.is_floating_point():
        value = value.to(torch.get_default_dtype())
    if not (value.isfinite() & (value > 0)).all():
        raise ValueError(f"{name} must be positive and finite, got {value.tolist()}")
    try:
        value = value.detach().broadcast_to(value.shape if shape is None else shape)
    except RuntimeError as error:
        raise ValueError(
            f"{name} must broadcast to shape {shape}, got {tuple(value.shape)}"
        ) from error
    return nn.Parameter(value.log())
