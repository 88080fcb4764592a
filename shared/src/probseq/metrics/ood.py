"""Out-of-distribution detectors and their metrics.

Every detector's score grows with "out of distribution" (OOD). Maximum softmax probability, entropy,
energy and KL matching are those of CGPT's table of OOD results; `sample_scores` are of Monte Carlo
samples, and `feature_scores` of what a layer makes of inputs.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from probseq.checks import as_finite, as_labels, as_probs, as_vector
from probseq.metrics.ranking import auroc, average_precision, fpr_at_tpr

_RIDGE, _DISTANCES_AT_ONCE = 1e-3, 10_000_000


def max_softmax_score(probs: Float[Tensor, "n c"]) -> Float[Tensor, " n"]:
    """Return −max_c p_c (Hendrycks & Gimpel 2017)."""
    return -as_probs(probs).amax(dim=1)


def entropy_score(probs: Float[Tensor, "n c"]) -> Float[Tensor, " n"]:
    """Return the entropy −Σ_c p_c log p_c in nats, with 0 log 0 = 0 (Chan et al. 2021)."""
    return torch.special.entr(as_probs(probs).double()).sum(dim=1)


def energy_score(logits: Float[Tensor, "n c"]) -> Float[Tensor, " n"]:
    """Return the energy −logsumexp_c(logits_c) (Liu et al. 2020).

    Logits, not probabilities: softmax has divided the energy out.

    The logits are those of one forward pass: with Monte Carlo samples, score each and average the
    scores.
    """
    if logits.ndim != 2:
        raise ValueError(f"logits must have shape (N, C), got {tuple(logits.shape)}")
    return -torch.logsumexp(as_finite("logits", logits).double(), dim=1)


def sample_scores(logits: Float[Tensor, "s n c"]) -> dict[str, Float[Tensor, " n"]]:
    """Return scores of the logits of S Monte Carlo samples: energy, information and logit-variance.

    ``energy`` is the mean over samples; ``information`` the mutual information between prediction
    and sample, H(mean_s p_s) − mean_s H(p_s) in nats (Houlsby et al. 2011); ``logit-variance`` that
    of the logits less their mean over the classes, which no softmax sees, summed over classes. A
    single sample, as of a model that draws nothing, has its energy alone.
    """
    logits = as_finite("logits", logits).double()
    samples = len(logits)
    energy = energy_score(logits.flatten(0, 1)).unflatten(0, (samples, -1)).mean(0)
    if samples == 1:
        return {"energy": energy}
    probs = logits.softmax(-1)
    entropies = torch.special.entr(probs).sum(-1)
    information = torch.special.entr(probs.mean(0)).sum(-1) - entropies.mean(0)
    variance = (logits - logits.mean(-1, keepdim=True)).var(0, correction=0).sum(-1)
    # Below 0 by round-off alone: the entropy is concave.
    information = information.clamp_min(0.0)
    return {"energy": energy, "information": information, "logit-variance": variance}


def feature_scores(
    features: Float[Tensor, "n d"], train: Float[Tensor, "m d"], labels: Int[Tensor, " m"]
) -> dict[str, Float[Tensor, " n"]]:
    r"""Return distances from the features of training examples: mahalanobis and nearest.

    ``mahalanobis`` is the least :math:`(x - \mu_c)^\top \Sigma^{-1} (x - \mu_c)` over the classes,
    with one covariance within classes for all (Lee et al. 2018); ``nearest`` the distance to the
    nearest training example (Sun et al. 2022, with k = 1, and features as they are). To each
    direction of the covariance, which may have fewer examples than directions, a thousandth of the
    mean variance is added; examples that do not differ within classes, as a single one of each,
    have variance 1.
    """
    x, train = (as_finite("features", each).double() for each in (features, train))
    if x.ndim != 2 or train.ndim != 2 or x.shape[1] != train.shape[1] or 0 in train.shape:
        raise ValueError(
            "features must have shape (N, D) as those of the training examples, got "
            f"{tuple(x.shape)} and {tuple(train.shape)}"
        )
    labels = as_labels(labels, len(train), torch.iinfo(torch.int64).max)
    _, index = labels.unique(return_inverse=True)
    member = F.one_hot(index).double()
    means = (member.mT @ train) / member.sum(0)[:, None]
    _, scales, basis = torch.linalg.svd(train - means[index], full_matrices=False)
    variances = scales.square() / len(train)
    ridge = _RIDGE * variances.sum() / train.shape[1]
    ridge = torch.where(ridge > 0, ridge, 1.0)
    squares, nearest = list[Tensor](), list[Tensor]()
    for rows in x.split(max(1, _DISTANCES_AT_ONCE // (len(train) + means.numel()))):
        away = rows[:, None] - means
        along = away @ basis.mT
        # Beside the directions in which the examples differ the variance is the ridge alone.
        beside = (away.square().sum(-1) - along.square().sum(-1)).clamp_min(0.0) / ridge
        squares.append((beside + (along.square() / (variances + ridge)).sum(-1)).amin(1))
        nearest.append(torch.cdist(rows, train).amin(1))
    return {"mahalanobis": torch.cat(squares), "nearest": torch.cat(nearest)}


@dataclass(frozen=True)
class KLMatching:
    """KL divergence to the typical predictive distribution of a class (Hendrycks et al. 2022).

    The typical distribution d_k is the mean predictive distribution of the validation samples whose
    label is k, and the score is KL(p ‖ d_ŷ) with ŷ = argmax p, as in the detector library behind
    CGPT's table. (The paper takes the samples of which class k is predicted, and the least KL over
    the classes.)
    """

    typical: Float[Tensor, "c c"]  # d_k in row k; zeros in the row of a class without samples
    fitted: Bool[Tensor, " c"]  # which rows had samples

    @classmethod
    def fit(cls, probs: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> "KLMatching":
        """Average the predictive distributions of each class on validation data."""
        probs = as_probs(probs).detach()
        labels = as_labels(labels, *probs.shape)
        # Row k of `member` marks the samples of class k, and d_k is the mean of their p
        member = labels == torch.arange(probs.shape[1], device=probs.device)[:, None]
        count = member.sum(dim=1)
        typical = (member.double() @ probs.double()) / count.clamp_min(1)[:, None]
        return cls(typical, count > 0)

    def score(self, probs: Float[Tensor, "n c"]) -> Float[Tensor, " n"]:
        """Score predictive distributions; higher is more OOD.

        Returns:
            KL divergences in nats. A typical probability of zero counts as the smallest normal
            number of the dtype of ``probs``, so that scores stay finite.
        """
        probs = as_probs(probs)
        if probs.shape[1] != self.fitted.numel():
            raise ValueError(
                f"probs must have the {self.fitted.numel()} classes of the fit, "
                f"got shape {tuple(probs.shape)}"
            )
        tiny = torch.finfo(probs.dtype).tiny
        predicted = probs.argmax(dim=1)
        probs = probs.double()
        # KL(p ‖ d_k) = Σ_c p_c log p_c − Σ_c p_c log d_kc for all k with one product.
        cross = probs @ self.typical.clamp_min(tiny).log().T
        divergence = -torch.special.entr(probs).sum(dim=1, keepdim=True) - cross
        unfitted = ~self.fitted[predicted]
        if unfitted.any():
            missing = predicted[unfitted].unique().tolist()
            raise ValueError(
                "probs must predict classes that had labels in the fit, got classes "
                f"{missing}: fit on more data"
            )
        chosen = divergence.gather(1, predicted[:, None])[:, 0]
        return chosen.clamp_min(0.0)  # round-off only: a KL divergence isn't negative


def ood_metrics(
    in_scores: Float[Tensor, " n"], out_scores: Float[Tensor, " m"]
) -> dict[str, Tensor]:
    """Return detection metrics of scores that grow with OOD.

    Returns:
        Scalars: ``auroc``; ``aupr_out``, average precision with OOD as the positive class;
        ``aupr_in``, with in-distribution positive and the scores negated; ``fpr95``, the share of
        in-distribution samples flagged at the first threshold that catches 95% of the OOD ones.
    """
    scores, is_out = _labelled(in_scores, out_scores)
    return {
        "auroc": auroc(scores, is_out),
        "aupr_out": average_precision(scores, is_out),
        "aupr_in": average_precision(-scores, ~is_out),
        "fpr95": fpr_at_tpr(scores, is_out),
    }


def _labelled(in_scores: Tensor, out_scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return all scores, and whether they are of OOD samples."""
    in_scores = as_vector("in_scores", in_scores).detach()
    out_scores = as_vector("out_scores", out_scores).detach()
    scores = torch.cat([in_scores.double(), out_scores.double()])
    return scores, torch.arange(scores.numel(), device=scores.device) >= in_scores.numel()
