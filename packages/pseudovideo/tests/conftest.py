"""Shape annotations are checked while the tests run; real images without files."""

import sys
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import pytest
import torch
from jaxtyping import install_import_hook

install_import_hook(["probseq", "pseudovideo"], "beartype.beartype")
# Networks that others are held against stand in modules of their own.
sys.path.insert(0, str(Path(__file__).parent / "diffusion"))


@pytest.fixture
def plain_calls() -> Iterator[None]:
    """Calls as users make them: the suite's shape checks don't get in before our messages."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture(scope="session")
def digits() -> torch.Tensor:
    """The 1,797 digits of scikit-learn, (n, 1, 16, 16) in −1..1."""
    from sklearn.datasets import load_digits

    levels = torch.as_tensor(load_digits().images, dtype=torch.float32)[:, None] / 8 - 1
    return torch.nn.functional.interpolate(levels, size=16, mode="bilinear")


@pytest.fixture
def video_covariance():
    """A function from a covariance of images, and settings of noise, to that of whole videos."""
    from pseudovideo.corruptions import noise_coefficients

    def of_videos(covariance, config):
        mean, mixing = noise_coefficients(config)
        # Cov(z_s, z_t) = a_s a_t Σ + (L Lᵀ)_st I, with axes (T, n, T, n)
        signal = torch.einsum("s,t,ij->sitj", mean, mean, covariance)
        eye = torch.eye(len(covariance), dtype=covariance.dtype)
        return signal + torch.einsum("st,ij->sitj", mixing @ mixing.T, eye)

    return of_videos
