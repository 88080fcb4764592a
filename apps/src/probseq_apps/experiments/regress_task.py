"""The regression task: objective and validation score, for any method."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from probseq.metrics import mae
from probseq_apps.data.graph_tokens import TokenLayout, flip_signs, trim_tokens
from probseq_apps.experiments.regress_model import RegressionModel
from probseq_apps.experiments.regress_prediction import NumberPredictor
from probseq_apps.training.task import LossParts


class RegressionTask:
    """Negative log likelihood under a Laplace likelihood, plus the weighted penalty.

    The eigenvectors in the tokens get new signs in each training batch, see
    `graph_tokens.flip_signs`; validation and test have them as they come.

    Args:
        model: transformer and likelihood.
        predictor: predicts as in the evaluation; gives the validation score.
        layout: where the eigenvectors stand in a token.
        mean: of the training targets, to standardise them.
        std: their standard deviation.
        penalty_weight: weight of the model's penalty at a share of the training; None for methods
            without one.
    """

    model: nn.Module

    def __init__(
        self,
        model: RegressionModel,
        predictor: NumberPredictor,
        *,
        layout: TokenLayout,
        mean: float,
        std: float,
        penalty_weight: Callable[[float], float] | None = None,
    ) -> None:
        self.model = model
        self._likelihood = model.likelihood
        self._predictor, self._layout = predictor, layout
        self._mean, self._std = mean, std
        self._penalty_weight = penalty_weight

    def loss(
        self,
        model: nn.Module,
        batch: tuple[Tensor, ...],
        *,
        progress: float,
        generator: torch.Generator,
    ) -> LossParts:
        """Negative log likelihood or ELBO (thesis Eq. 3.18) of the standardised targets."""
        tokens, targets = batch
        tokens = flip_signs(trim_tokens(tokens), self._layout, generator)
        output = model(tokens, generator=generator)
        standardised = ((targets - self._mean) / self._std).to(output.logits.dtype)
        nll = -self._likelihood.log_prob(output.logits, standardised).mean()
        scale = self._std * self._likelihood.scale.detach()
        if self._penalty_weight is None:
            return LossParts(nll, {"nll": nll.detach(), "scale": scale})
        penalty = output.penalty.float()
        loss = nll + self._penalty_weight(progress) * penalty
        parts = {"nll": nll.detach(), "penalty": penalty.detach(), "scale": scale}
        return LossParts(loss, parts)

    def score(self, model: nn.Module, batches: Iterable[tuple[Tensor, ...]]) -> float:
        """Negative mean absolute error of the mean prediction on the whole validation set.

        The thesis selects by "validation accuracy", which regression has not.
        """
        if not isinstance(model, RegressionModel):
            raise TypeError(f"model must be a RegressionModel, got {type(model).__name__}")
        means: list[Tensor] = []
        targets: list[Tensor] = []
        for tokens, batch_targets in batches:
            means.append(self._predictor.batch(model, tokens).mean(0))
            targets.append(batch_targets)
        return -float(mae(torch.cat(means), torch.cat(targets)))
