"""Small HVAEs with weights that do something: fresh ones have outputs of 0."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_video import UNET
from torch import nn

from pseudovideo.hvae import HVAEConfig


@pytest.fixture(autouse=True)
def _same_fresh_weights() -> None:
    """Fresh weights come from the global generator: the same ones in each test."""
    torch.manual_seed(0)


@pytest.fixture
def tiny() -> Callable[..., HVAEConfig]:
    """Settings of a small network; keywords change them."""

    def build(**settings: Any) -> HVAEConfig:
        levels: dict[str, Any] = {"num_levels": 4, "sigma_max": 6.0}
        return HVAEConfig(**{**UNET, **levels, **settings})

    return build


@pytest.fixture
def stirred() -> Callable[..., Any]:
    """Gives a model random weights and returns it."""

    def stir(model: nn.Module, *, scale: float = 0.2, seed: int = 0) -> nn.Module:
        g = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                noise = torch.randn(parameter.shape, generator=g, dtype=torch.float64)
                parameter.add_(scale * noise.to(parameter.dtype))
        return model

    return stir


@pytest.fixture
def few() -> torch.Tensor:
    """Five images (5, 1, 8, 8) of two values."""
    g = torch.Generator().manual_seed(3)
    return torch.randint(2, (5, 1, 8, 8), generator=g) * 2.0 - 1
