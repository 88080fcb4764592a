"""Inducing variables under a kernel of finite rank: the random features of thesis Eq. 4.12-4.16."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from ohsvgp.inducing import Inducing
from probseq.fourier import fourier_features
from probseq.kernels import Kernel


@dataclass(frozen=True, eq=False)
class FeatureFunctional(Inducing):
    """u whose covariance with f(x) is Z φ(x)ᵀ, for a kernel of finite rank k = φ φᵀ.

    The kernel that the methods are given must be a ``FeatureKernel``: an exact K_uf beside a K_uu
    of random features is no joint covariance, and predictive variances come out negative.
    """

    # Z of shape (*b, M, g): the functionals applied to each of the g features
    coefficients: Float[Tensor, "*b m g"]

    @property
    def num_inducing(self) -> int:
        """M."""
        return self.coefficients.shape[-2]

    def covariance(self, kernel: Kernel) -> Float[Tensor, "*b m m"]:
        """Return K_uu = Z Zᵀ (thesis Eq. 4.16)."""
        return self.coefficients @ self.coefficients.mT

    def cross(self, kernel: Kernel, x: Float[Tensor, "*#b n d"]) -> Float[Tensor, "*b m n"]:
        """Return K_uf = Z φ(x)ᵀ."""
        return self.coefficients @ feature_kernel(kernel).features(x).mT

    def cross_inducing(self, kernel: Kernel, other: Inducing) -> Float[Tensor, "*b m k"]:
        """Return K_ab = Z_a Z_bᵀ."""
        if not isinstance(other, FeatureFunctional):
            raise TypeError(
                f"other must be a FeatureFunctional like this set, got {type(other).__name__}"
            )
        return self.coefficients @ other.coefficients.mT

    def tensors(self) -> dict[str, Tensor]:
        """Return the coefficients, and what else a subclass has as a field."""
        return dict(vars(self))


class FeatureKernel(Kernel):
    """Kernel of finite rank k̂(x, z) = φ(x) φ(z)ᵀ with the random features of a stationary one.

    Its parameters are the stationary kernel's.

    Frequencies ω, of shape (*heads, F, d), come from ``probseq.fourier.sample_frequencies``.
    """

    frequencies: Tensor

    def __init__(self, kernel: Kernel, frequencies: Float[Tensor, "*#heads f d"]) -> None:
        super().__init__(kernel.dim, batch_shape=kernel.batch_shape)
        self.kernel = kernel
        self.register_buffer("frequencies", frequencies)

    @property
    def resolution(self) -> Float[Tensor, "*heads 1 d"]:
        """ℓ of the stationary kernel."""
        return self.kernel.resolution

    def features(self, x: Float[Tensor, "*#b n d"]) -> Float[Tensor, "*b n g"]:
        """Return φ(x), g = 2F: all cosines, then all sines, each with the kernel's amplitude."""
        return fourier_features(self.kernel, x, self.frequencies)

    def _covariance(self, x: Tensor, z: Tensor) -> Tensor:
        return self.features(x) @ self.features(z).mT

    def _variance(self, x: Tensor) -> Tensor:
        return self.kernel.diag(x)


def feature_kernel(kernel: Kernel) -> FeatureKernel:
    """Refuse a kernel without features, with a ``TypeError``."""
    if not isinstance(kernel, FeatureKernel):
        raise TypeError(
            f"kernel must be a FeatureKernel for inducing variables of features, got "
            f"{type(kernel).__name__}: the covariances would not be consistent"
        )
    return kernel
