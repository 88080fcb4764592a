"""Fit the hyperparameters of a process to a batch, and tell whether a batch calls for it."""

import copy
from dataclasses import replace
from functools import partial

import torch

from ohsvgp.bases.base import CAN_FOLLOW
from ohsvgp.exact import log_marginal_likelihood
from ohsvgp.hyperparameters import FEW_TARGETS, FitInfo, Refit, fit
from ohsvgp.likelihoods import Gaussian
from ohsvgp.limits import data_limits, near_limits
from ohsvgp.process import Process
from ohsvgp.saved import clone_generator
from ohsvgp.state import OnlineState
from ohsvgp.stream.batch import Batch

# Up to here the exact evidence takes at most about a second an evaluation.
MAX_EXACT = 2000
# Of more targets a batch's probability is that of so many, evenly chosen.
_MAX_TESTED = 500


def fit_process(
    process: Process,
    state: OnlineState | None,
    batch: Batch,
    generator: torch.Generator,
    options: Refit,
    *,
    seed: int,
) -> FitInfo:
    """Maximise the evidence of a batch, or the online energy, over kernel and likelihood, in place.

    The state is None before the first data; each evaluation starts from the state of the generator,
    of the inducing set.
    """
    if state is not None and process.basis.fixed_hyperparameters:
        raise ValueError(
            f"kernel must keep its hyperparameters once {type(process.basis).__name__} has "
            f"absorbed data: fit them before the first update. {CAN_FOLLOW}"
        )
    kernel, likelihood, basis = process.kernel, process.likelihood, process.basis
    x, y, chosen, weights = batch.data
    features = None if basis.features is None else basis.features(x)
    limits = data_limits(kernel, likelihood, x, y, chosen, features) if options.limited else None
    if limits is not None and state is not None and batch.targets().numel() < FEW_TARGETS:
        # Alone, a target that is predicted exactly would take the noise to zero, and one that is
        # not the variance to infinity.
        limits = near_limits(kernel, likelihood)
    search = partial(
        fit, kernel, likelihood, targets=batch.targets(), options=options, seed=seed, limits=limits
    )
    if state is None and isinstance(likelihood, Gaussian) and len(x) <= MAX_EXACT:
        return search(
            lambda: log_marginal_likelihood(
                kernel, likelihood.noise, x, y, mask=chosen, weights=weights, features=features
            ).sum(),
            name="evidence",
        )
    still = replace(process, basis=basis.without_learning())

    return search(
        lambda: still.energy(state, batch, clone_generator(generator)).sum(), name="energy"
    )


def refitted(
    process: Process,
    state: OnlineState | None,
    batch: Batch,
    generator: torch.Generator,
    refit: Refit,
    *,
    updates: int,
    seed: int,
) -> Process:
    """Return the process with hyperparameters fitted if it is time; the argument stays as it is.

    The state is None before the first data; the generator, of the inducing set, is not advanced.
    """

    def probability() -> float:
        return 1.0 if state is None else batch_probability(process, state, batch)

    count = batch.targets().numel()
    if count == 0 or not refit.due(updates, count, probability):
        return process
    # At once, for what a basis holds of the kernel. Predictions beside the fit have the old ones.
    modules = (process.kernel, process.likelihood, process.basis)
    kernel, likelihood, basis = copy.deepcopy(modules)
    fitted = replace(process, kernel=kernel, likelihood=likelihood, basis=basis)
    options = replace(refit, restarts=0) if state else refit
    fit_process(fitted, state, batch, generator, options, seed=seed)
    return fitted


def batch_probability(process: Process, state: OnlineState, batch: Batch) -> float:
    """Return the probability under the model of errors at least as large as those of a batch.

    Of the sum of squares (y − m)ᵀ S⁻¹ (y − m), S the joint covariance of Gaussian targets: χ² with
    as many degrees of freedom as targets, at most 500 inputs of which are taken, evenly. For other
    likelihoods S is diagonal and this is rough.

    The state is what the model knew before the batch.
    """
    x, y, mask, weights = batch.data
    chosen = torch.ones_like(y, dtype=torch.bool) if mask is None else mask.expand_as(y)
    if len(x) > _MAX_TESTED:
        rows = torch.linspace(0, len(x) - 1, _MAX_TESTED).round().long()
        x, y, chosen = x[rows], y[..., rows], chosen[..., rows]
        weights = None if weights is None else weights[..., rows]
    with torch.no_grad():
        if isinstance(process.likelihood, Gaussian):
            predicted = process.predict_joint(state, x)
            noise = process.likelihood.noise[..., None].expand(y.shape)
            noise = noise if weights is None else noise / weights
            # Hidden targets are as predicted, and independent of the others.
            both = chosen[..., None] & chosen[..., None, :]
            S = (predicted.covariance + torch.diag_embed(noise)) * both + torch.diag_embed(
                (~chosen).to(y)
            )
            root = torch.linalg.cholesky(S)
            error = ((y - predicted.mean) * chosen)[..., None]
            square = torch.linalg.solve_triangular(root, error, upper=False).square().sum()
        else:
            latent = process.predict(state, x)
            predicted = process.likelihood.predictive_moments(latent.mean, latent.variance)
            square = ((y - predicted.mean).square() / predicted.variance * chosen).sum()
    degrees = chosen.sum().to(square)
    return float(torch.special.gammaincc(0.5 * degrees, 0.5 * square))
