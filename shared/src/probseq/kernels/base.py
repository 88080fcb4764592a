"""What every kernel module has: positive hyperparameters per head, and checked inputs."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probseq.checks import broadcastable, check_counts, check_real, check_shape
from probseq.kernels.distances import check_points

__all__ = ["Kernel", "check_arguments"]


class Kernel(nn.Module):
    """A covariance function k(x, z) with one lengthscale per input dimension and one scale.

    Hyperparameters are stored as logarithms in ``raw_lengthscale`` (``*batch_shape, 1, dim``) and
    ``raw_outputscale`` (``*batch_shape``), and read in user units through ``lengthscale`` and
    ``outputscale``. A subclass writes ``_covariance`` and ``_variance``.

    Inputs broadcast against ``batch_shape``: with ``batch_shape=(num_heads,)``, inputs of shape
    (B, num_heads, T, dim), (num_heads, T, dim) and (T, dim) are all evaluated once per head.

    NaN and infinity in a tensor reach the result.

    Args:
        dim: number of input dimensions d.
        batch_shape: shape of a batch of independent kernels, e.g. ``(num_heads,)``.
        lengthscale: initial value, broadcast to (*batch_shape, 1, dim).
        outputscale: initial value of the variance σ_f², broadcast to (*batch_shape).

    Raises:
        ValueError: ``dim`` is no whole number of at least 1, ``batch_shape`` no shape, or a
            hyperparameter not positive and finite, or of a shape that does not broadcast.
    """

    def __init__(
        self,
        dim: int,
        *,
        batch_shape: tuple[int, ...] = (),
        lengthscale: float | Tensor = 1.0,
        outputscale: float | Tensor = 1.0,
    ) -> None:
        super().__init__()
        check_counts(dim=dim)
        check_shape(batch_shape=batch_shape)
        self.dim = dim
        self.batch_shape = batch_shape
        self.raw_lengthscale = _log_parameter("lengthscale", lengthscale, (*batch_shape, 1, dim))
        self.raw_outputscale = _log_parameter("outputscale", outputscale, self.batch_shape)

    @property
    def lengthscale(self) -> Float[Tensor, "*heads 1 d"]:
        """ℓ, one per head and input dimension."""
        return self.raw_lengthscale.exp()

    @property
    def outputscale(self) -> Float[Tensor, "*heads"]:
        """σ_f², the variance that multiplies the kernel, one per head."""
        return self.raw_outputscale.exp()

    def forward(
        self, x: Float[Tensor, "*#b n d"], z: Float[Tensor, "*#b m d"]
    ) -> Float[Tensor, "*#b n m"]:
        """Covariance matrix of the function values at ``x`` and at ``z``.

        Autocast is switched off inside: eight bits of mantissa do not survive a Cholesky
        factorisation.

        Args:
            x: inputs, the rows.
            z: inputs, the columns.

        Returns:
            k(x_i, z_j), in the wider dtype of inputs and parameters.

        Raises:
            ValueError: the last dimension of an input is not ``dim``, batches do not broadcast, or
                the covariance would be neither float32 nor float64.
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
            return self._covariance(x, z)

    def diag(self, x: Float[Tensor, "*#b n d"]) -> Float[Tensor, "*#b n"]:
        """Variances k(x_i, x_i): the diagonal of ``kernel(x, x)`` in O(n).

        Args:
            x: inputs.

        Returns:
            The variances.

        Raises:
            ValueError: as in :meth:`forward`.
        """
        x = self._checked("x", x)
        if not broadcastable(x.shape[:-2], self.batch_shape):
            raise ValueError(
                f"x must have a batch that broadcasts against batch_shape={self.batch_shape}, "
                f"got {tuple(x.shape)}"
            )
        with torch.autocast(x.device.type, enabled=False):
            return self._variance(x)

    def extra_repr(self) -> str:
        """The constructor's sizes, for ``print(model)``."""
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
        dtype = torch.promote_types(inputs.dtype, self.raw_lengthscale.dtype)
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"{name} or the kernel must be float32 or float64, and neither complex, got "
                f"{inputs.dtype} and a kernel in {self.raw_lengthscale.dtype}: convert one"
            )
        return inputs.to(dtype)


def check_arguments(x: Tensor, z: Tensor, lengthscale: Tensor, outputscale: Tensor) -> None:
    """Refuse arguments of a kernel function that do not go together, or scales out of range.

    Looks at the values of the scales, but not inside a compiled graph, which cannot.

    Raises:
        ValueError: shapes or dtypes do not go together, a lengthscale is not positive or an
            outputscale is negative.
    """
    check_points(x, z)
    check_real(lengthscale=lengthscale, outputscale=outputscale)
    d = x.shape[-1]
    if lengthscale.ndim < 2 or lengthscale.shape[-2] != 1 or lengthscale.shape[-1] not in (1, d):
        raise ValueError(
            f"lengthscale must have shape (..., 1, {d}), got {tuple(lengthscale.shape)}"
        )
    batches = (x.shape[:-2], z.shape[:-2], lengthscale.shape[:-2], outputscale.shape)
    if not broadcastable(*batches):
        raise ValueError(
            "x, z, lengthscale and outputscale must have batches that broadcast, got "
            f"{', '.join(str(tuple(batch)) for batch in batches)}"
        )
    if torch.compiler.is_compiling():
        return
    if not bool((lengthscale > 0).all()):
        raise ValueError(f"lengthscale must be positive, got {lengthscale.tolist()}")
    if not bool((outputscale >= 0).all()):
        raise ValueError(f"outputscale must not be negative, got {outputscale.tolist()}")


def _log_parameter(name: str, value: float | Tensor, shape: tuple[int, ...]) -> nn.Parameter:
    """Parameter that holds log(value), broadcast to ``shape``."""
    value = torch.as_tensor(value)
    if not value.is_floating_point():
        value = value.to(torch.get_default_dtype())
    if not (value.isfinite() & (value > 0)).all():
        raise ValueError(f"{name} must be positive and finite, got {value.tolist()}")
    try:
        value = value.detach().broadcast_to(shape)
    except RuntimeError as error:
        raise ValueError(
            f"{name} must broadcast to shape {shape}, got {tuple(value.shape)}"
        ) from error
    return nn.Parameter(value.log())
