"""Models as they are used, not trained."""

from collections.abc import Generator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluation(model: nn.Module) -> Generator[None]:
    """Eval mode for a while; then each part has the mode again that it had before.

    Args:
        model: whose dropout is to have no part in what is computed.
    """
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
