"""The classification task: objective and validation score, for any method."""

from collections.abc import Callable, Iterable
from typing import Literal

import torch
from torch import Tensor, nn

import sgpa
from probseq.metrics import accuracy, matthews_correlation
from probseq_apps.experiments.prediction import Predictor
from probseq_apps.training.task import LossParts

# Gives a raw batch (bytes of images, padded tokens) the form that the model takes.
Prepare = Callable[[Tensor], Tensor]
Augment = Callable[[Tensor, torch.Generator], Tensor]


class ClassificationTask:
    """Cross-entropy, plus the annealed KL divergence of methods that have one.

    Args:
        model: transformer that returns logits and penalty.
        predictor: predicts as in the evaluation; gives the validation score.
        prepare: gives a raw batch the form that the model takes.
        augment: changes a raw training batch.
        kl_anneal: share of the training in which the KL's weight rises from 0 to 1; None for
            methods without a KL.
        kl_scale: the KL's final weight; 1 is the ELBO.
        score: what the best weights are chosen by; `mcc` is Matthews' correlation.
    """

    def __init__(
        self,
        model: nn.Module,
        predictor: Predictor,
        *,
        prepare: Prepare,
        augment: Augment | None = None,
        kl_anneal: float | None = None,
        kl_scale: float = 1.0,
        score: Literal["accuracy", "mcc"] = "accuracy",
    ) -> None:
        self.model = model
        self._predictor = predictor
        self._prepare, self._augment = prepare, augment
        self._kl_anneal, self._kl_scale = kl_anneal, kl_scale
        self._score = accuracy if score == "accuracy" else matthews_correlation

    def loss(
        self,
        model: nn.Module,
        batch: tuple[Tensor, ...],
        *,
        progress: float,
        generator: torch.Generator,
    ) -> LossParts:
        """Negative ELBO (thesis Eq. 3.18) or cross-entropy, in nats an example."""
        inputs, labels = batch
        if self._augment is not None:
            inputs = self._augment(inputs, generator)
        output = model(self._prepare(inputs), generator=generator)
        log_likelihood = sgpa.categorical_log_likelihood(output.logits.float(), labels)
        if self._kl_anneal is None:
            loss = -log_likelihood.mean()
            return LossParts(loss, {"nll": loss.detach()})
        scale = self._kl_scale * sgpa.kl_annealing(progress, self._kl_anneal)
        elbo = sgpa.negative_elbo(log_likelihood, output.penalty.float(), kl_scale=scale)
        parts = {"nll": elbo.nll.detach(), "kl": elbo.kl.detach()}
        return LossParts(elbo.loss, parts)

    def score(self, model: nn.Module, batches: Iterable[tuple[Tensor, ...]]) -> float:
        """Score the mean prediction on the whole validation set."""
        log_probs: list[Tensor] = []
        labels: list[Tensor] = []
        for inputs, batch_labels in batches:
            log_probs.append(self._predictor.batch(model, inputs).log_probs)
            labels.append(batch_labels)
        return float(self._score(torch.cat(log_probs).exp(), torch.cat(labels)))
