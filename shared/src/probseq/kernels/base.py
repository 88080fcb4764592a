"""What every kernel module has: positive hyperparameters per head, and checked inputs."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["Kernel"]


class Kernel(nn.Module):
    """A covariance function k(x, z) with one lengthscale per input dimension and one scale.

    Hyperparameters are stored as logarithms in ``raw_lengthscale`` (``*batch_shape, 1, dim``) and
    ``raw_outputscale`` (``*batch_shape``), and read in user units through ``lengthscale`` and
    ``outputscale``. A subclass writes ``_covariance`` and ``_variance``.

    Inputs broadcast against ``batch_shape``: with ``batch_shape=(num_heads,)``, inputs of shape
    (B, num_heads, T, dim), (num_heads, T, dim) and (T, dim) are all evaluated once per head.

    Args:
        dim: number of input dimensions d.
        batch_shape: shape of a batch of independent kernels, e.g. ``(num_heads,)``.
        lengthscale: initial value, broadcast to (*batch_shape, 1, dim).
        outputscale: initial value of the variance σ_f², broadcast to (*batch_shape).

    Raises:
        ValueError: ``dim`` below 1, a hyperparameter that is not positive and finite, or one whose
            shape does not broadcast.
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
        if dim < 1:
            raise ValueError(f"dim must be at least 1, got {dim}: it is the inputs' last dimension")
        self.dim = dim
        self.batch_shape = tuple(batch_shape)
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
            ValueError: the last dimension of an input is not ``dim``.
        """
        x, z = self._checked("x", x), self._checked("z", z)
        with torch.autocast(x.device.type, enabled=False):
            return self._covariance(x, z)

    def diag(self, x: Float[Tensor, "*#b n d"]) -> Float[Tensor, "*#b n"]:
        """Variances k(x_i, x_i): the diagonal of ``kernel(x, x)`` in O(n).

        Args:
            x: inputs.

        Returns:
            The variances.

        Raises:
            ValueError: the last dimension of ``x`` is not ``dim``.
        """
        x = self._checked("x", x)
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
        return inputs.to(torch.promote_types(inputs.dtype, self.raw_lengthscale.dtype))


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
