"""Elastic weight consolidation: networks that keep what old tasks need (Kirkpatrick et al. 2017).

The penalty of task k + 1 is ½ Σ_i F_i (θ_i − θ*_i)², F the Fisher information of all tasks so far
and θ* the parameters after task k. Kirkpatrick et al. keep one centre per task; but θ* of task k
minimises a loss that holds the older penalties already, so the Laplace approximation of all tasks
has the last centre and the sum of the informations (Huszár 2018): two vectors, however many tasks.
"""

from collections.abc import Callable, Sequence
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ohsvgp.vae.objective import gaussian_log_density, latent_samples
from probseq.gaussians import DiagonalGaussian, standard_normal

# Time points whose gradients are taken at once: memory against speed.
_CHUNK = 16


class Consolidation(nn.Module):
    """The quadratic penalty, with the ``fisher`` and ``anchor`` of the tasks so far."""

    fisher: Tensor
    anchor: Tensor

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        super().__init__()
        values = _flat(parameters).detach()
        self.register_buffer("fisher", torch.zeros_like(values))
        self.register_buffer("anchor", values.clone())

    def penalty(self, parameters: Sequence[Tensor]) -> Float[Tensor, ""]:
        """Return ½ Σ_i F_i (θ_i − θ*_i)² in nats; zero before the first ``consolidate``."""
        return 0.5 * (self.fisher * (_flat(parameters) - self.anchor).square()).sum()

    def consolidate(self, parameters: Sequence[Tensor], fisher: Float[Tensor, " p"]) -> None:
        """Add a task's information, and centre the penalty on the parameters of now."""
        self.fisher += fisher
        self.anchor.copy_(_flat(parameters).detach())


def diagonal_fisher(
    log_prob: Float[Tensor, " n"], parameters: Sequence[Tensor]
) -> Float[Tensor, " p"]:
    """Return Σ_t (∂ log p(y_t|θ)/∂θ_i)² over the points of a task, in the order of θ.

    With y drawn from the model this estimates the Fisher information without bias; with the data
    in its place it would be the "empirical Fisher", which vanishes with the residuals.

    Log densities have their graph.
    """
    total = torch.zeros_like(_flat(parameters))
    choices = torch.eye(log_prob.shape[0], dtype=log_prob.dtype, device=log_prob.device)
    for chosen in choices.split(_CHUNK):
        gradients = cast(
            tuple[Tensor | None, ...],
            torch.autograd.grad(
                log_prob,
                list(parameters),
                grad_outputs=chosen,
                is_grads_batched=True,
                retain_graph=True,
                allow_unused=True,
            ),
        )
        # One row a point; parameters that the densities do not depend on have no gradient.
        rows = [
            parameter.new_zeros(len(chosen), parameter.numel()) if gradient is None else gradient
            for parameter, gradient in zip(parameters, gradients, strict=True)
        ]
        total += torch.cat([row.reshape(len(chosen), -1) for row in rows], 1).square().sum(0)
    return total


def predictive_fisher(
    latent: DiagonalGaussian,
    decoder: Callable[[Tensor], Tensor],
    noise: Float[Tensor, ""],
    parameters: Sequence[Tensor],
    generator: torch.Generator,
) -> Float[Tensor, " p"]:
    """Return the information on encoder and decoder in a task's predictions p(y_t | f_t).

    f_t depends on the encoder by its sites, so one density serves both networks. One draw of f and
    of y per time point; the sum over time averages.

    q(f), of shape (L, n), has its graph.
    """
    mean = decoder(latent_samples(latent, 1, generator)[0])
    noises = standard_normal(mean.shape, like=mean, generator=generator)
    y = (mean + noise.sqrt() * noises).detach()
    return diagonal_fisher(gaussian_log_density(y, mean, noise).sum(-1), parameters)


def _flat(parameters: Sequence[Tensor]) -> Tensor:
    return torch.cat([parameter.flatten() for parameter in parameters])
