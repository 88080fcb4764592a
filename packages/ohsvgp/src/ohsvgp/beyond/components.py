"""Posterior of each of the independent processes that f is the sum of."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from ohsvgp import core
from ohsvgp.beyond.means import MeanKernel, MeanTerm, process_of
from ohsvgp.online import OnlineGP
from probseq.gaussians import DiagonalGaussian
from probseq.kernels import Kernel, Sum


def decompose(gp: OnlineGP, t: Any) -> dict[str, DiagonalGaussian]:
    """Return the posterior of each term of the kernel and of each term of the mean.

    Their means add up to ``OnlineGP.predict``'s. Their variances do not: the data know sums of
    terms better than the terms. Not in the papers.

    Args:
        gp: a model; it stays as it is.
        t: inputs, anywhere and in any order.

    Returns:
        Gaussians by name, in the order of the model: the class of a term, numbered from the second
        of its kind on.

    Raises:
        ValueError: bad inputs.
    """
    x, process = gp.inputs(t), gp.process
    state = None if gp.state is None else process.current(gp.state)
    components: dict[str, DiagonalGaussian] = {}
    counts = Counter[str]()
    with torch.no_grad():
        for name, term in _terms(process.prior):
            K_ss = term.diag(x)
            if state is None or term.continuous is None:
                marginal = DiagonalGaussian(torch.zeros_like(K_ss), K_ss)
            else:
                # cov(v, f_term(x)) = R cov(u, f_term(x)): the terms are independent a priori.
                P = core.features(term, state.inducing, state.whitening, x)
                # The weights explain a term of the mean in full.
                rest = torch.zeros_like(K_ss) if isinstance(term, MeanTerm) else K_ss
                num_weights = state.inducing.num_weights
                marginal = core.predict(state.moments, P, rest, num_weights=num_weights)
            counts[name] += 1
            label = name if counts[name] == 1 else f"{name} {counts[name]}"
            components[label] = marginal.to(gp.dtype)
    return components


def _terms(prior: Kernel) -> Iterator[tuple[str, Kernel]]:
    """Yield the terms of a sum of kernels and of a mean, with the names of their classes."""
    process = process_of(prior)
    for kernel in process.kernels if isinstance(process, Sum) else [process]:
        yield type(kernel).__name__, kernel
    if isinstance(prior, MeanKernel):
        for index, mean in enumerate(prior.mean.terms):
            yield type(mean).__name__, MeanTerm(prior, index)
