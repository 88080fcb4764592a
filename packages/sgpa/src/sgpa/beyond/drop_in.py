"""Sparse GPs beside the attention of models that one has.

The residual form of sparse GP attention; not in the papers.
"""

from typing import Any, TypeVar

import torch
from torch import nn

import probseq.transformers.adapters as adapters
from probseq.transformers.adapters import Layers
from probseq.transformers.names import ATTENTION_JITTER
from sgpa.beyond.process import QueryProcess

M = TypeVar("M", bound=nn.Module)


def replace_attention(
    model: M,
    *,
    layers: Layers = "last",
    calibration: Any = None,
    num_inducing: int = 48,
    initial_variance: float | None = None,
    rho: float = 1.0,
    jitter: float = ATTENTION_JITTER,
    generator: torch.Generator | None = None,
) -> M:
    """Make the attention of a model softmax attention plus a sparse GP of its queries, in place.

    The layers become what :class:`~sgpa.beyond.residual.ResidualSparseGPAttention` is, with all
    weights of the model; see :func:`probseq.transformers.adapters.replace_attention` for the
    models that it knows, and :class:`~sgpa.beyond.process.QueryProcess` for the process.

    Args:
        model: of torch, torchvision, timm or transformers.
        layers: ``"last"``, ``"all"``, indices or names of attention modules.
        calibration: a batch of training data that the model can be called with, on whose queries
            the inducing inputs are put.
        num_inducing: inducing inputs M of each head.
        initial_variance: prior variance σ² of the deviation; ``None`` for a hundredth of the
            variance that the attention's output has over the tokens of ``calibration``.
        rho: standard deviation of the whitened inducing outputs: 1 starts from the prior, where the
            KL divergence is 0; .1 is small where the data are, for a deviation that is not trained.
        jitter: relative jitter of Cholesky factors.
        generator: source of the choice of inducing inputs.

    Raises:
        ValueError: the model has no attention that is known, or an argument cannot be used; the
            model is as it was.

    Example:
        >>> import torch, sgpa
        >>> from probseq.transformers import sample_predictions
        >>> layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        >>> encoder = torch.nn.TransformerEncoder(layer, 2).eval()
        >>> tokens = torch.randn(4, 20, 16)
        >>> encoder = sgpa.replace_attention(encoder, calibration=tokens)
        >>> sample_predictions(encoder, tokens, num_samples=5).shape
        torch.Size([5, 4, 20, 16])
    """

    def make(heads: int, query_width: int, value_width: int) -> nn.Module:
        options: dict[str, Any] = {"initial_variance": initial_variance, "rho": rho}
        return QueryProcess(heads, query_width, value_width, num_inducing, jitter=jitter, **options)

    options: dict[str, Any] = {"calibration": calibration, "generator": generator}
    return adapters.replace_attention(model, make, layers=layers, **options)
