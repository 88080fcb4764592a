"""Helpers of the metrics' tests."""

from collections.abc import Callable, Iterator

import jaxtyping
import pytest
import torch
from torch import Tensor

MakeProbs = Callable[..., tuple[Tensor, Tensor]]


@pytest.fixture
def plain_calls() -> Iterator[None]:
    """Calls as users make them: the test suite's shape checks don't get in before our messages."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture
def make_probs() -> MakeProbs:
    """Random (probs (N, C), labels (N,)) with labels that the probabilities half explain."""

    def make(
        num_samples: int = 257,
        num_classes: int = 5,
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
    ) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        logits = 1.5 * torch.randn(num_samples, num_classes, generator=generator, dtype=dtype)
        labels = torch.multinomial((0.5 * logits).softmax(dim=1), 1, generator=generator)[:, 0]
        return logits.softmax(dim=1), labels

    return make
