"""Shape annotations are checked while the tests run; dense algebra to compare with."""

import math
from dataclasses import dataclass

import pytest
import torch
from jaxtyping import install_import_hook
from torch import Tensor

install_import_hook(["probseq", "cgpt"], "beartype.beartype")

from cgpt.covariances import Scales, exact_covariance, latent_covariances  # noqa: E402


def kernel(a: Tensor, b: Tensor) -> Tensor:
    """The canonical kernel by its definition."""
    return torch.exp(-0.5 * (a[:, None, :] - b[None, :, :]).square().sum(-1))


@dataclass(frozen=True)
class Dense:
    """One sequence and one head, in explicit matrices of linear-Gaussian models.

    ``inducing`` is the covariance of the inducing values, K_o or K_o + σ²I.
    """

    queries: Tensor
    keys: Tensor
    latent: Tensor
    values: Tensor
    query_scale: float
    key_scale: float
    noise: float
    canonical_prior: str

    @property
    def scales(self) -> Scales:
        log_q, log_k = (
            torch.tensor([math.log(scale)], dtype=torch.float64)
            for scale in (self.query_scale, self.key_scale)
        )
        return Scales(log_q, log_k, self.noise)

    def through_latents(self, mask: Tensor | None = None, pad: int = 0):
        """The covariances under test, with so many tokens of junk behind."""
        tokens = [
            torch.cat([x, torch.full((pad, 3), 7.0, dtype=torch.float64)])[None, None]
            for x in (self.queries, self.keys, self.latent)
        ]
        return latent_covariances(*tokens, self.scales, mask, canonical_prior=self.canonical_prior)

    def exactly(self):
        """The exact covariance under test."""
        return exact_covariance(self.queries[None, None], self.keys[None, None], self.scales)

    @property
    def identity(self) -> Tensor:
        return torch.eye(len(self.queries), dtype=torch.float64)

    @property
    def k_q(self) -> Tensor:
        return self.query_scale**2 * kernel(self.queries, self.queries)

    @property
    def k_k(self) -> Tensor:
        """Covariance of the noisy keys' process."""
        return self.key_scale**2 * kernel(self.keys, self.keys) + self.noise**2 * self.identity

    @property
    def k_qk(self) -> Tensor:
        return self.query_scale * self.key_scale * kernel(self.queries, self.keys)

    @property
    def k_qo(self) -> Tensor:
        return self.query_scale * kernel(self.queries, self.latent)

    @property
    def k_ok(self) -> Tensor:
        return self.key_scale * kernel(self.latent, self.keys)

    @property
    def inducing(self) -> Tensor:
        noise = self.noise**2 if self.canonical_prior == "noisy" else 0.0
        return kernel(self.latent, self.latent) + noise * self.identity

    @property
    def inverse(self) -> Tensor:
        """A."""
        return torch.linalg.inv(kernel(self.latent, self.latent) + self.noise**2 * self.identity)

    @property
    def observations(self) -> Tensor:
        """z_k of Algorithm 1."""
        return self.k_k @ self.values

    def conditional(self, name: str) -> tuple[Tensor, Tensor]:
        """Gain and covariance of z_q (``"queries"``) or the noisy z_k (``"keys"``) given z_o."""
        own, cross = (self.k_q, self.k_qo) if name == "queries" else (self.k_k, self.k_ok.mT)
        return cross @ self.inverse, own - cross @ self.inverse @ cross.mT

    def predictive_joint(self) -> Tensor:
        """Covariance of (z_q, z_k): z_o and z_k a GP, z_q = G z_o + e."""
        gain, residual = self.conditional("queries")
        zero = torch.zeros_like(gain)
        base = torch.cat(  # of (e, z_o, z_k)
            [
                torch.cat([residual, zero, zero], 1),
                torch.cat([zero, self.inducing, self.k_ok], 1),
                torch.cat([zero, self.k_ok.mT, self.k_k], 1),
            ]
        )
        read = torch.cat(
            [torch.cat([self.identity, gain, zero], 1), torch.cat([zero, zero, self.identity], 1)]
        )
        return read @ base @ read.mT

    def density_joint(self) -> Tensor:
        """Covariance of (z_q, z_k): z_o from its prior, both others given z_o alone."""
        gain_q, residual_q = self.conditional("queries")
        gain_k, residual_k = self.conditional("keys")
        read = torch.cat([gain_q, gain_k])
        return read @ self.inducing @ read.mT + torch.block_diag(residual_q, residual_k)

    def exact_joint(self) -> Tensor:
        """Covariance of (z_q, z_k), no inducing values in between."""
        return torch.cat(
            [torch.cat([self.k_q, self.k_qk], 1), torch.cat([self.k_qk.mT, self.k_k], 1)]
        )


@pytest.fixture
def draw():
    """Standard normal float64 tensors from a seed."""

    def draw(*shape: int, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return draw


@pytest.fixture
def make_dense(draw):
    """A small problem, every scale other than one."""

    def make(canonical_prior: str = "noise-free", *, seed: int = 0, **changes) -> Dense:
        queries, keys, latent, values = 0.7 * draw(4, 6, 3, seed=seed)
        settings = {
            "queries": queries,
            "keys": keys,
            "latent": latent,
            "values": values,
            "query_scale": 0.6,
            "key_scale": 1.4,
            "noise": 0.3,
            "canonical_prior": canonical_prior,
        }
        return Dense(**{**settings, **changes})

    return make
