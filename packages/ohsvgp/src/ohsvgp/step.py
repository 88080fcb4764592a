"""One step of the stream: change the inducing set, then absorb the new data."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ohsvgp import core
from ohsvgp.core import Bound, Carried, Posterior, Site
from ohsvgp.inducing import Inducing, continuous
from ohsvgp.inference.natural import natural_update
from ohsvgp.likelihoods import Gaussian, Likelihood
from ohsvgp.state import OnlineState
from ohsvgp.stream.batch import Data
from ohsvgp.whitening import Whitening
from probseq.kernels import Kernel

__all__ = ["Absorbed", "Move", "absorb", "empty_site", "move"]


class Move(NamedTuple):
    """From the old inducing set to the new one.

    Attributes:
        inducing: the new set.
        whitening: of its K_uu.
        carried: the old site as a factor of the new set's v_b.
    """

    inducing: Inducing
    whitening: Whitening
    carried: Carried


class Absorbed(NamedTuple):
    """What new data leave.

    Attributes:
        site: on v_b.
        moments: of q(v_b).
        bound: the online bound of the data.
    """

    site: Site
    moments: Posterior
    bound: Bound


def empty_site(M: int, like: Tensor) -> Site:
    """The site of no data: G = 0, h = 0."""
    return Site(like.new_zeros(M, M), like.new_zeros(M))


def move(
    kernel: Kernel,
    old: OnlineState | None,
    inducing: Inducing,
    *,
    method: Literal["chol", "eig"],
    rel_jitter: float | None,
    changed: bool,
    alpha: float = 0.0,
) -> Move:
    """Whiten the new inducing set and relate the old one to it.

    Args:
        kernel: covariance function now.
        old: the state; None before the first data.
        inducing: the new set.
        method: of ``whiten``.
        rel_jitter: of ``whiten``.
        changed: whether the kernel's hyperparameters differ from those of ``old.whitening``.
        alpha: of ``core.carry``.

    Returns:
        The new set with what ``absorb`` needs.
    """
    if old is not None and inducing is old.inducing and not changed:
        return Move(inducing, old.whitening, core.carry(old.site, None, moments=old.moments))
    if old is None or inducing is old.inducing:
        K_ab = K_bb = inducing.covariance(kernel)
    else:
        K_bb, K_ab = inducing.covariances(kernel, old.inducing)
    whitening = inducing.whitened(K_bb, method=method, rel_jitter=rel_jitter)
    if old is None:
        empty = empty_site(inducing.num_inducing, K_bb)
        return Move(inducing, whitening, core.carry(empty, None))
    R_a = old.whitening
    prior_a = torch.eye(old.inducing.num_inducing, dtype=K_bb.dtype, device=K_bb.device)
    if inducing is old.inducing:
        # The jitter is noise on u itself, so the same set shares it.
        K_ab = K_bb + torch.diag_embed(inducing.noise(whitening.jitter))
        prior_a = core.transition(R_a, K_ab, R_a)
    elif changed:
        K_aa = old.inducing.covariance(kernel)
        jitter = torch.diag_embed(old.inducing.noise(R_a.jitter))
        prior_a = core.transition(R_a, K_aa + jitter, R_a)
    T = core.transition(R_a, K_ab, whitening)
    # v_a | v_b ~ N(T v_b, R_a K_aa R_aᵀ − T Tᵀ).
    carried = core.carry(old.site, T, prior_a - T @ T.mT, alpha=alpha, moments=old.moments)
    return Move(inducing, whitening, carried)


def absorb(
    kernel: Kernel,
    likelihood: Likelihood,
    step: Move,
    data: Data,
    infer: Callable[..., tuple[Site, Bound]] = natural_update,
) -> Absorbed:
    """The new site on v_b and the online bound of the new data.

    In closed form for the Gaussian likelihood, by natural-gradient steps or Adam for others.

    Args:
        kernel: covariance function.
        likelihood: observation model.
        step: from ``move``.
        data: new observations; may be empty.
        infer: ``natural_update``, or ``variational_update`` with its steps given.

    Returns:
        The site, its moments and the bound.
    """
    smooth = continuous(kernel)
    Psi = core.features(kernel, step.inducing, step.whitening, data.x)
    process, weights = step.inducing.process, step.inducing.num_weights
    K_ff = process(smooth).diag(data.x)
    if not isinstance(likelihood, Gaussian):
        site, bound = infer(
            likelihood, step.carried, Psi, K_ff, data.y, mask=data.mask, weights=weights
        )
        return Absorbed(site, core.posterior(site), bound)
    noise = likelihood.noise[..., None]
    if smooth is not kernel:  # white noise of the kernel is noise of the observations
        noise = noise + process(kernel).diag(data.x) - K_ff
    if data.weights is not None:
        noise = noise / data.weights
    precision = (1 / noise).expand(*noise.shape[:-1], data.y.shape[-1])
    if data.mask is not None:
        precision = precision * data.mask
    new = core.whitened_update(step.carried.site, Psi, precision, precision * data.y)
    moments = core.posterior(new)
    bound = core.online_bound(
        step.carried,
        new,
        Psi,
        K_ff,
        data.y,
        noise,
        mask=data.mask,
        moments=moments,
        weights=weights,
    )
    return Absorbed(new, moments, bound)
