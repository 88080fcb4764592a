"""Latent processes at any times."""

from jaxtyping import Float
from torch import Tensor

from ohsvgp import core
from ohsvgp.state import OnlineState
from ohsvgp.step import move
from probseq.gaussians import DiagonalGaussian
from probseq.kernels import Kernel


def latent_posterior(
    kernel: Kernel,
    state: OnlineState | None,
    x: Float[Tensor, "n 1"],
    *,
    num_latents: int,
    rel_jitter: float | None,
    changed: bool,
) -> DiagonalGaussian:
    """Q(f) at any times, shape (L, n); the prior before the first task.

    Args:
        kernel: prior covariance function, from ``Basis.prior``.
        state: what is remembered.
        x: times counted from t0.
        num_latents: L.
        rel_jitter: of ``whiten``.
        changed: whether the kernel's hyperparameters differ from those of the state.
    """
    K_ss = kernel.diag(x)
    if state is None:
        shape = (num_latents, x.shape[0])
        return DiagonalGaussian(K_ss.new_zeros(shape), K_ss.expand(shape))
    whitening, site = state.whitening, state.site
    if changed:
        step = move(
            kernel, state, state.inducing, method="chol", rel_jitter=rel_jitter, changed=True
        )
        whitening, site = step.whitening, step.carried.site
    P = core.features(kernel, state.inducing, whitening, x)
    return core.predict(core.posterior(site), P, K_ss)
