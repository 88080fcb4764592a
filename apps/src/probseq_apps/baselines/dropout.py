"""Monte Carlo dropout (Gal and Ghahramani 2016): dropout that stays active in prediction."""

from collections.abc import Generator
from contextlib import contextmanager

from torch import nn


@contextmanager
def active_dropout(model: nn.Module) -> Generator[None]:
    """Switch the dropout layers of a model in eval mode on, and off again at the end.

    Args:
        model: the model; its other layers stay in eval mode.
    """
    layers = [
        module
        for module in model.modules()
        if isinstance(module, nn.Dropout) and not module.training
    ]
    for layer in layers:
        layer.train()
    try:
        yield
    finally:
        for layer in layers:
            layer.eval()
