"""Temperature scaling (Guo et al. 2017)."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

# A model that is right on the whole validation set has its best temperature at 0.
SMALLEST, LARGEST = 0.05, 20.0


def scale_log_probs(log_probs: Float[Tensor, "n c"], temperature: float) -> Float[Tensor, "n c"]:
    r"""Sharpen or flatten predictions: :math:`p_T \propto p^{1/T}`.

    For one softmax this is `softmax(logits / T)`. A mean over Monte Carlo samples is scaled as a
    whole, after the mean, so that scaling needs the predictions alone.

    Args:
        log_probs: logarithms of the predictive probabilities.
        temperature: T > 0; above 1 the predictions become less sure.

    Returns:
        Logarithms of the scaled probabilities.
    """
    return torch.log_softmax(log_probs / temperature, -1)


def fit_temperature(log_probs: Float[Tensor, "n c"], labels: Int64[Tensor, " n"]) -> float:
    """Temperature of the smallest negative log-likelihood, by L-BFGS on log T in float64.

    The result is kept within 0.05 and 20.

    Args:
        log_probs: logarithms of the predictive probabilities on validation data.
        labels: true classes.

    Returns:
        The temperature T > 0.

    Raises:
        ValueError: there are no validation data.
    """
    if len(labels) == 0:
        raise ValueError("temperature scaling needs validation data, and this data set has none")
    log_probs = log_probs.detach().double()
    log_temperature = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [log_temperature], max_iter=100, tolerance_grad=1e-9, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(log_probs / log_temperature.exp(), labels)
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)  # pyright: ignore[reportArgumentType]  (returns a tensor, as documented)
    return min(max(float(log_temperature.detach().exp()), SMALLEST), LARGEST)
