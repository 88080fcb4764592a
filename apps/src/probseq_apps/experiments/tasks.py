"""The classification task: objective and validation score, for any method."""

from collections.abc import Callable, Iterable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probseq.metrics import accuracy, matthews_correlation
from probseq_apps.experiments.prediction import Predictor
from probseq_apps.training.task import LossParts

# Gives a raw batch (bytes of images, padded tokens) the form that the model takes.
Prepare = Callable[[Tensor], Tensor]
Augment = Callable[[Tensor, torch.Generator], Tensor]


class ClassificationTask:
    """Cross-entropy, plus the weighted penalty of methods that have one.

    Args:
        model: transformer that returns logits and penalty.
        predictor: predicts as in the evaluation; gives the validation score.
        prepare: gives a raw batch the form that the model takes.
        augment: changes a raw training batch.
        penalty_weight: weight of the model's penalty, a KL divergence for most methods, at a share
            of the training; None for methods without one.
        score: what the best weights are chosen by; `mcc` is Matthews' correlation.
    """

    def __init__(
        self,
        model: nn.Module,
        predictor: Predictor,
        *,
        prepare: Prepare,
        augment: Augment | None = None,
        penalty_weight: Callable[[float], float] | None = None,
        score: Literal["accuracy", "mcc"] = "accuracy",
    ) -> None:
        self.model = model
        self._predictor = predictor
        self._prepare, self._augment = prepare, augment
        self._penalty_weight = penalty_weight
        self._score = accuracy if score == "accuracy" else matthews_correlation

    def loss(
        self,
        model: nn.Module,
        batch: tuple[Tensor, ...],
        *,
        progress: float,
        generator: torch.Generator,
    ) -> LossParts:
        """Cross-entropy or negative ELBO (thesis Eq. 3.18), in nats an example."""
        inputs, labels = batch
        if self._augment is not None:
            inputs = self._augment(inputs, generator)
        output = model(self._prepare(inputs), generator=generator)
        nll = F.cross_entropy(output.logits.float(), labels)
        if self._penalty_weight is None:
            return LossParts(nll, {"nll": nll.detach()})
        penalty = output.penalty.float()
        loss = nll + self._penalty_weight(progress) * penalty
        return LossParts(loss, {"nll": nll.detach(), "penalty": penalty.detach()})

    def score(self, model: nn.Module, batches: Iterable[tuple[Tensor, ...]]) -> float:
        """Score the mean prediction on the whole validation set."""
        log_probs: list[Tensor] = []
        labels: list[Tensor] = []
        for inputs, batch_labels in batches:
            log_probs.append(self._predictor.batch(model, inputs).log_probs)
            labels.append(batch_labels)
        return float(self._score(torch.cat(log_probs).exp(), torch.cat(labels)))
